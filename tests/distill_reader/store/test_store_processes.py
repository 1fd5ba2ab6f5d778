"""Processes that fill one store are killed in the midst of it: it opens, and no label is wrong."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.store import LabelDatabase
from edl.tests.distill_reader.store.samples import rows_in, sample_keys
from edl.tests.distill_reader.store.store_program import BUDGET_BYTES, LOTS, numbers_of
from edl.tests.distill_reader.store.test_store import SLACK_BYTES, bytes_on_disk

pytestmark = pytest.mark.system

MIB = 1 << 20
#: A store of 64 MiB holds all that is written, one of 1 MiB evicts all the time.
ROOMY, TIGHT = 64 * MIB, MIB
PROGRAM = (sys.executable, "-P", "-m", "edl.tests.distill_reader.store.store_program")
FULL_COUNT = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("kills", "max_bytes"),
    [
        (12, ROOMY),
        (8, TIGHT),
        pytest.param(300, ROOMY, marks=FULL_COUNT),
        pytest.param(200, TIGHT, marks=FULL_COUNT),
    ],
)
def test_a_writer_is_killed_in_the_midst_of_writing(
    tmp_path: Path, rng: random.Random, kills: int, max_bytes: int
) -> None:
    """Beside another one that goes on; what a writer said it had written is there."""
    settings = LabelStore(tmp_path / "labels", max_bytes)
    told: set[int] = set()
    with writer(settings, rng, subprocess.DEVNULL) as other:
        for _ in range(kills):
            with writer(settings, rng) as one:
                assert one.stdout is not None
                told |= {int(one.stdout.readline()) for _ in range(rng.randrange(1, 6))}
                time.sleep(rng.uniform(0, 0.03))  # it may be anywhere when it is killed
        assert other.poll() is None
    check(settings, told if max_bytes == ROOMY else set())


@contextlib.contextmanager
def writer(
    settings: LabelStore, rng: random.Random, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A process that fills the store, and is killed at the end."""
    arguments = ["fill", settings.path, str(settings.max_bytes), str(rng.random())]
    with subprocess.Popen([*PROGRAM, *arguments], stdout=stdout, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def check(settings: LabelStore, told: set[int]) -> None:
    """The store opens, every row in it is right, and those of the lots in `told` are there."""
    assert bytes_on_disk(settings.path) <= settings.max_bytes + SLACK_BYTES
    with LabelDatabase(settings) as store:
        for lot in range(LOTS):
            rows = rows_in(None, numbers_of(lot))
            found = store.get_many(sample_keys(numbers_of(lot)))
            assert (
                found == rows
                if lot in told
                else all(one in (None, row) for one, row in zip(found, rows, strict=True))
            )
        assert store.stats.damaged == 0
        assert store.stats.trouble == ""
    assert not os.path.exists(settings.path + "-wal"), "the last to close tidies up"


PROCESSES, STORES = 4, 40


def test_processes_that_open_a_new_store_at_once_all_get_it(tmp_path: Path) -> None:
    """As the ranks of a job do on one host."""
    with ExitStack() as ending:
        openers = [
            ending.enter_context(
                subprocess.Popen(
                    [*PROGRAM, "open"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
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
            with LabelDatabase(LabelStore(path, BUDGET_BYTES)) as store:
                assert store.get_many(sample_keys(range(4))) == rows_in(None, range(4))
