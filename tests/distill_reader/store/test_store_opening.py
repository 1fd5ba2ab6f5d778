"""Readers that begin together, in processes or threads of their own, on a store that is new."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.store import Store
from edl.tests.distill_reader.store.opening_program import BUDGET_BYTES
from edl.tests.distill_reader.store.samples import rows_in, sample_keys

PROCESSES, STORES = 4, 40


def test_processes_that_open_a_new_store_at_once_all_get_it(tmp_path: Path) -> None:
    """As the ranks of a job do on one host."""
    program = [sys.executable, "-P", "-m", "edl.tests.distill_reader.store.opening_program"]
    with ExitStack() as ending:
        openers = [
            ending.enter_context(
                subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(PROCESSES)
        ]
        for number in range(STORES):
            path = tmp_path / str(number)
            for opener in openers:
                assert opener.stdin is not None
                opener.stdin.write(f"{path}\n")
                opener.stdin.flush()
            assert [opener.stdout and opener.stdout.readline() for opener in openers] == (
                ["\n"] * PROCESSES
            )
            with Store(LabelStore(path, BUDGET_BYTES)) as store:
                assert store.get_many(sample_keys(range(4))) == rows_in(None, range(4))


def test_another_reader_of_this_process_takes_no_lock_away(tmp_path: Path) -> None:
    """As the members of an ensemble share one: SQLite's locks are the process's."""
    path = tmp_path / "labels"

    def locks() -> list[str]:
        inode = f":{os.stat(path).st_ino} "
        return [line for line in Path("/proc/locks").read_text().splitlines() if inode in line]

    with Store(LabelStore(path, BUDGET_BYTES)) as one:
        one.get_many(sample_keys([1]))
        assert locks()
        Store(LabelStore(path, BUDGET_BYTES)).close()
        assert locks()
