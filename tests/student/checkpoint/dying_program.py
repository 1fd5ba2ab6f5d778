"""Children that save for as long as they live: `dying_program disk URL` or `memory KEY,KEY`.

Prints `child PID` for each child, `saved STEP` behind each save of it, and `dead PID`; after a line
of input the next one is forked, which takes a hundredth of the time of a new interpreter. Ends with
its input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from edl.student.checkpoint import Contents, Repository, SnapshotWriter
from edl.tests.student.checkpoint.samples import contents_of

#: Steps of one child at most.
STEPS = 100_000


def main(way: str, where: str) -> int:
    number = 0
    while sys.stdin.readline():
        number += 1
        pid = os.fork()
        if pid == 0:
            try:
                save_until_killed(saver(way, where), number * STEPS)
            finally:
                os._exit(1)
        tell(f"child {pid}")
        os.waitpid(pid, 0)
        tell(f"dead {pid}")
    return 0


def saver(way: str, where: str) -> Callable[[Contents], object]:
    if way == "disk":
        return Repository(where, keep=3).save
    return SnapshotWriter(where.split(",")).write


def save_until_killed(save: Callable[[Contents], object], step: int) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        step += 1
        save(contents_of(step))
        tell(f"saved {step}")


def tell(line: str) -> None:
    """In one write, so that lines of two processes do not mix."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
