"""A training whose memory ends: `memory_program LIMIT_MIB WHO TEACHER`.

The limit is that of a file's size, which holds for memory files too; WHO is `trainer` or `engine`.
"""

from __future__ import annotations

import resource
import sys

import numpy as np

from edl.distill_reader import DistilReader
from edl.runtime.standard_streams import write_whole_lines
from edl.runtime.supervise import end_with_parent
from edl.tests.scripted_teacher import logits_of

COUNT = 60
#: Rows of a batch. Its inputs are 0.4 MB, its labels 1 MB.
ROWS = 25_000


def main(limit_mib: int, who: str, teacher: str) -> None:
    limit = (limit_mib << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    source = [(np.full((ROWS, 4), number, np.float32), number) for number in range(COUNT)]
    with DistilReader(
        source, service="s", teachers=[teacher], upper_bytes=1 << 30, shared_memory=False
    ) as reader:
        print("engine", reader.engine_pid, flush=True)
        if who == "trainer":
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        else:
            resource.prlimit(reader.engine_pid, resource.RLIMIT_FSIZE, limit)
        kept = []  # nothing is let go of
        for x, number, soft in reader:
            np.testing.assert_array_equal(soft, logits_of(x))
            kept.append((x, number, soft))
            print("had", number, flush=True)
        print("restarts", reader.stats.engine_restarts, flush=True)


if __name__ == "__main__":
    end_with_parent()
    write_whole_lines()
    main(int(sys.argv[1]), *sys.argv[2:])
