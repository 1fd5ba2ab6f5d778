"""What `valkey-cli` does for the scripts of `deploy/kubernetes/base/redis/`, where there is none.

    kubernetes_redis_cli.py -h HOST -p PORT [--user NAME] WORD...

Prints the answer's parts, a line each; exit code 1 where nobody answers. The password is in
REDISCLI_AUTH.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import BinaryIO


def main(host: str, port: str, *words: str) -> int:
    calls = [words]
    if words[0] == "--user":
        calls = [("AUTH", words[1], os.environ["REDISCLI_AUTH"]), words[2:]]
    try:
        with socket.create_connection((host, int(port)), 1.0) as connection:
            answers = connection.makefile("rb")
            for call in calls:
                connection.sendall(" ".join(call).encode() + b"\r\n")
                said = _answer(answers)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(said))
    return 0


def _answer(answers: BinaryIO) -> list[str]:
    line = answers.readline().decode().rstrip("\r\n")
    if not line:
        raise OSError("it hung up")
    kind, rest = line[0], line[1:]
    if kind == "*":
        return [part for _ in range(int(rest)) for part in _answer(answers)]
    if kind == "$" and int(rest) >= 0:
        return [answers.read(int(rest) + 2)[:-2].decode()]
    return [] if kind == "$" else [rest]


if __name__ == "__main__":
    _, _, host, _, port, *words = sys.argv
    sys.exit(main(host, port, *words))
