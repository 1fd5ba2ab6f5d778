"""What `valkey-cli` does for the scripts of `deploy/kubernetes/base/redis/`, where there is none.

    kubernetes_redis_cli.py -h HOST -p PORT [--user NAME] WORD...

Prints the answer's parts, a line each; exit code 1 where nobody answers. The password is in
REDISCLI_AUTH.
"""

from __future__ import annotations

import os
import socket
import sys


def main(words: list[str]) -> int:
    options = {}
    while words and words[0].startswith("-"):
        name, value, *words = words
        options[name] = value
    calls = [words]
    if "--user" in options:
        calls.insert(0, ["AUTH", options["--user"], os.environ["REDISCLI_AUTH"]])
    try:
        with socket.create_connection((options["-h"], int(options["-p"])), 1.0) as connection:
            answers = connection.makefile("rb")
            for call in calls:
                parts = [part.encode() for part in call]
                packed = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
                connection.sendall(b"*%d\r\n" % len(parts) + packed)
                said = _answer(answers)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(said))
    return 0


def _answer(answers: object) -> list[str]:
    line = answers.readline().decode().rstrip("\r\n")  # type: ignore[attr-defined]
    if not line:
        raise OSError("it hung up")
    kind, rest = line[0], line[1:]
    if kind == "*":
        return [part for _ in range(int(rest)) for part in _answer(answers)]
    if kind == "$" and int(rest) >= 0:
        return [answers.read(int(rest) + 2)[:-2].decode()]  # type: ignore[attr-defined]
    return [] if kind == "$" else [rest]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
