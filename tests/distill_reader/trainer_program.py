"""A training loop that ends in the way it is told: `trainer_program ENDING TEACHER`.

Prints the pid of the reader's engine once it has a batch, so that a test can see it go.
"""

from __future__ import annotations

import sys
import threading

from edl.distill_reader import DistilReader
from edl.tests.distill_reader.test_reader import Batches

ENDINGS = ("falls off", "raises", "exits", "interrupted", "killed", "closes", "breaks")


def main(ending: str, teacher: str) -> None:
    reader = DistilReader(Batches(1000), service="s", teachers=[teacher])
    iterator = iter(reader)
    next(iterator)
    print(f"engine {reader.engine_pid}", flush=True)
    match ending:
        case "raises":
            raise RuntimeError("of the training loop itself")
        case "exits":
            sys.exit(3)
        case "interrupted" | "killed":
            threading.Event().wait(30)  # until the signal comes
        case "closes":
            reader.close()
        case "breaks":
            for _ in iterator:
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
