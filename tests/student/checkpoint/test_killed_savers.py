"""Processes are killed in the midst of a save: the newest valid checkpoint loads, and verifies."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from pathlib import Path

import pytest

from edl.student.checkpoint import Persister, Repository, SnapshotOwner, open_checkpoint
from edl.student.checkpoint.cli import app
from edl.tests.cli_output import json_of
from edl.tests.student.checkpoint.samples import check, newest_step, persist, save_until_killed
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

#: Of one process.
MOST_STEPS = 100_000
#: A save of the samples takes about so long, copy and disk.
SAVE_S = 0.03
COPY_S = 0.002
FULL_COUNT = [pytest.mark.nightly, pytest.mark.timeout(3600)]
KILLS = [20, pytest.param(300, marks=FULL_COUNT)]


FORKS = multiprocessing.get_context("forkserver")  # much faster than new interpreters
FORKS.set_forkserver_preload([save_until_killed.__module__])


class Saver:
    """A process that saves until it is killed.

    Attributes:
        saved: the last step that it said it had saved.
    """

    def __init__(self, way: str, where: str, number: int = 1) -> None:
        self._told, telling = FORKS.Pipe(duplex=False)
        arguments = (way, where, number * MOST_STEPS, telling)
        self._process = FORKS.Process(target=save_until_killed, args=arguments, daemon=True)
        self._process.start()
        telling.close()
        self.hear()

    def hear(self) -> None:
        self.saved: int = self._told.recv()

    def kill(self) -> None:
        """Kill it, and hear all that it has said."""
        self._process.kill()
        self._process.join()
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.hear()
        self._told.close()


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("protocol", ["", "local://"])
def test_killed_while_it_writes_to_the_disk(
    tmp_path: Path, rng: random.Random, kills: int, protocol: str
) -> None:
    """Through the file system itself, and through fsspec, which renames nothing."""
    url = f"{protocol}{tmp_path}"
    for number in range(1, kills + 1):
        saver = Saver("disk", url, number)
        time.sleep(rng.uniform(0, SAVE_S))  # it may be anywhere when it is killed
        saver.kill()
        repository = Repository(url)
        found = repository.newest_valid()
        assert found is not None
        assert found.step >= saver.saved, "what was said to be saved is there"
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
    with SnapshotOwner() as owner:
        persister = Persister(owner, Repository(str(tmp_path)))
        try:
            for number in range(1, kills + 1):
                saver = Saver("memory", ",".join(owner.keys), number)
                for _ in range(rng.randrange(4)):
                    if meanwhile:
                        persister.wake()
                    saver.hear()
                time.sleep(rng.uniform(0, COPY_S))  # as above
                saver.kill()
                found = persist(persister)
                assert found is not None
                assert found.step >= (last if meanwhile else saver.saved)
                last = found.step
                check(Repository(str(tmp_path)).load(found))
        finally:
            persister.stop(DEADLINE_S)


def test_operators_look_and_prune_while_a_training_saves(tmp_path: Path) -> None:
    saver = Saver("disk", str(tmp_path))
    for _ in range(10):
        saver.hear()
        assert all(not one["problem"] for one in json_of(app, "list", tmp_path))
        assert all(not one["problem"] for one in json_of(app, "list", tmp_path, "--verify"))
        json_of(app, "prune", tmp_path, "--keep", 1)
    saver.kill()
    assert (newest_step(tmp_path) or 0) >= saver.saved
