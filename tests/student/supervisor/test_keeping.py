"""What a node keeps, and what it may begin with: spoiled, slow and hanging disks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.scheduler.students.world import World
from edl.student.checkpoint import Checkpoint, Contents, Repository, SnapshotWriter
from edl.student.settings import TrainSettings
from edl.student.show.plain import Plain
from edl.student.supervisor import keeping as module
from edl.student.supervisor.facts import Generation, Place
from edl.student.supervisor.judging import Judge
from edl.student.supervisor.keeping import Keeping
from edl.student.supervisor.node import Supervisor
from edl.student.supervisor.telling import Teller
from edl.tests.ground.programs import wait_for

WAIT_S = 20.0


def contents(step: int) -> Contents:
    return Contents(step, 1, {"model/w": np.full(64, step, np.float32)}, {})


def snapshot(keeping: Keeping, step: int) -> None:
    with SnapshotWriter(keeping.keys) as writer:
        writer.write(contents(step))


def judged(judge: Judge, generation: int) -> int:
    deadline_s = time.monotonic() + WAIT_S
    while (found := judge.newest(generation)) is None:
        assert time.monotonic() < deadline_s
    return found


def test_a_checkpoint_that_spoils_after_it_was_verified_is_not_ordered_again(
    tmp_path: Path,
) -> None:
    repository = Repository(str(tmp_path))
    assert judged(Judge(repository), 0) == 0
    for step in (40, 50):
        newest = repository.save(contents(step))
    judge = Judge(Repository(str(tmp_path)), WAIT_S)
    assert (judged(judge, 1), judged(judge, 1)) == (50, 50)
    file = Path(newest.location) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert judged(judge, 2) == 40


class Held(Repository):
    """Reads and writes when it is let."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.begun, self.may = threading.Event(), threading.Event()

    def verify(self, checkpoint: Checkpoint) -> None:
        self.begun.set()
        assert self.may.wait(WAIT_S)
        super().verify(checkpoint)

    def save(self, contents: Contents) -> Checkpoint:
        self.begun.set()
        assert self.may.wait(WAIT_S)
        return super().save(contents)


def test_what_takes_long_to_verify_is_not_waited_for(tmp_path: Path) -> None:
    Repository(str(tmp_path)).save(contents(7))
    held = Held(str(tmp_path))
    judge = Judge(held, patience_s=0.01)
    assert judge.newest(1) is None
    assert held.begun.wait(WAIT_S)
    assert judge.newest(2) is None  # what is being read is of the generation before
    held.may.set()
    assert judged(judge, 2) == 7


def test_a_disk_that_hangs_keeps_the_memory_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_VOID_S", 0.05)
    keeping = Keeping(str(tmp_path), 3)
    held = Held(str(tmp_path))
    persister, owner = keeping._persister, keeping._owner
    persister._repository = held
    snapshot(keeping, 9)
    keeping.write()
    assert held.begun.wait(WAIT_S)
    keeping.begin(5)
    try:
        assert keeping.snapshot == -1
        for slot in owner._slots:
            assert "edl-snapshot" in os.readlink(f"/proc/self/fd/{slot.fd}")
        snapshot(keeping, 6)
        keeping.write()
        wait_for(keeping.written)
    finally:
        held.may.set()
        persister._thread.join(WAIT_S)
        keeping.close()
        owner.close()
    assert persister.trouble == ""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    settings = TrainSettings(
        str(tmp_path / "job.py"), "job", (1, 2), coordinator="redis://x", epochs=1,
        checkpoint=str(tmp_path / "checkpoints"),
    )  # fmt: skip
    teller = Teller(Plain(lambda line: None))
    supervisor = Supervisor(settings, MemoryBoard(), "a", "127.0.0.1", teller)
    yield supervisor
    supervisor._keeping.close()


def of_others(restored: int, keeper: str = "") -> Generation:
    return Generation(World(3, ("b",), restored, keeper), (Place("b", ("127.0.0.1:1",)),))


def test_a_node_in_reserve_offers_no_snapshot_of_a_past_that_is_void(
    supervisor: Supervisor,
) -> None:
    snapshot(supervisor._keeping, 100)
    supervisor._seat.tell(snapshot=100)
    supervisor._begin(of_others(restored=80))
    assert supervisor._seat._facts.snapshot == -1


def test_a_node_that_goes_writes_what_the_others_begin_with(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    snapshot(supervisor._keeping, 100)
    supervisor._begin(of_others(restored=100, keeper="a"))
    place = Repository(str(tmp_path / "checkpoints"))
    wait_for(lambda: [one.step for one in place.list()] == [100])
