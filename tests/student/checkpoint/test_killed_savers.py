"""Processes are killed in the midst of a save: the newest valid checkpoint loads, and verifies."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from edl.student.checkpoint import Persister, Repository, SnapshotOwner, open_checkpoint
from edl.student.checkpoint.cli import app
from edl.tests.cli_output import json_of
from edl.tests.student.checkpoint.samples import check, newest_step
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

#: A save of the samples takes about so long, copy and disk.
SAVE_S = 0.03
COPY_S = 0.002
FULL_COUNT = [pytest.mark.nightly, pytest.mark.timeout(3600)]
KILLS = [20, pytest.param(300, marks=FULL_COUNT)]


class Savers:
    """Children of a program that save, one after the other.

    Attributes:
        saved: the last step that a child said it had saved.
    """

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin, self._stdout = stdin, stdout
        self._child = 0
        self.saved = 0

    def begin(self) -> None:
        """Let the next child begin."""
        self._stdin.write("go\n")
        self._stdin.flush()
        self._child = self.wait_for("child")

    def wait_for(self, wanted: str) -> int:
        """Read until a line of this word; its number."""
        while True:
            word, _, number = self._stdout.readline().partition(" ")
            assert word, "the program has ended"
            if word == "saved":
                self.saved = max(self.saved, int(number))
            if word == wanted:
                return int(number)

    def kill(self) -> None:
        """Kill the child, and hear all that it has said."""
        os.kill(self._child, signal.SIGKILL)
        self.wait_for("dead")


@contextlib.contextmanager
def dying(way: str, where: str) -> Iterator[Savers]:
    """The program; its first child waits for `begin`."""
    command = [sys.executable, "-P", "-m", "edl.tests.student.checkpoint.dying_program", way, where]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            yield Savers(process.stdin, process.stdout)
        finally:
            process.kill()


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("protocol", ["", "local://"])
def test_killed_while_it_writes_to_the_disk(
    tmp_path: Path, rng: random.Random, kills: int, protocol: str
) -> None:
    """Through the file system itself, and through fsspec, which renames nothing."""
    url = f"{protocol}{tmp_path}"
    with dying("disk", url) as savers:
        for _ in range(kills):
            savers.begin()
            savers.wait_for("saved")
            time.sleep(rng.uniform(0, SAVE_S))  # it may be anywhere when it is killed
            savers.kill()
            repository = Repository(url)
            found = repository.newest_valid()
            assert found is not None
            assert found.step >= savers.saved, "what was said to be saved is there"
            check(repository.load(found))
    repository = Repository(url, keep=1)
    for one in repository.list():
        repository.verify(one)  # none of all is damaged
    repository.save(open_checkpoint(url))
    if not protocol:
        assert len(list(tmp_path.iterdir())) == 1, "what the dead have left is tidied up"


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("meanwhile", [False, True])
def test_killed_during_copy(
    tmp_path: Path, rng: random.Random, kills: int, meanwhile: bool
) -> None:
    """What it left is persisted after its death; also while others of its copies are persisted."""
    last = 0
    with SnapshotOwner() as owner, dying("memory", owner.location) as savers:
        persister = Persister(owner, Repository(str(tmp_path)))
        persister.start()
        try:
            for _ in range(kills):
                savers.begin()
                for _ in range(rng.randrange(1, 5)):
                    savers.wait_for("saved")
                    if meanwhile:
                        persister.wake()
                time.sleep(rng.uniform(0, COPY_S))  # as above
                savers.kill()
                found = persister.persist_now(DEADLINE_S)
                assert found is not None
                assert found.step >= (last if meanwhile else savers.saved)
                last = found.step
                check(Repository(str(tmp_path)).load(found))
        finally:
            persister.stop(DEADLINE_S)


def test_operators_look_and_prune_while_a_training_saves(tmp_path: Path) -> None:
    with dying("disk", str(tmp_path)) as savers:
        savers.begin()
        for _ in range(10):
            savers.wait_for("saved")
            assert all(not one["problem"] for one in json_of(app, "list", tmp_path))
            assert all(not one["problem"] for one in json_of(app, "verify", tmp_path))
            json_of(app, "prune", tmp_path, "--keep", 1)
    assert (newest_step(tmp_path) or 0) >= savers.saved
