"""A training loop that goes on until it is interrupted: `traced_program TEACHER TRACE`."""

from __future__ import annotations

import sys
import time

from edl.distill_reader import DistilReader
from edl.standard_streams import write_whole_lines
from edl.supervise import end_with_parent
from edl.tests.distill_reader.readers import Batches


def main(teacher: str, trace: str) -> None:
    with DistilReader(Batches(64), service="s", teachers=[teacher], trace=trace) as reader:
        while True:
            for number, _ in enumerate(reader):
                time.sleep(0.001)  # a training step
                if number == 40:
                    print("trains", flush=True)


if __name__ == "__main__":
    end_with_parent()
    write_whole_lines()
    main(*sys.argv[1:])
