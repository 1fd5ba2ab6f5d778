"""One node with its ranks: whatever they do, the job ends, with every sample trained once."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.errors import CheckpointUnavailable, EdlError, UsageError
from edl.student.checkpoint import Repository
from edl.student.supervisor import node as node_module
from edl.tests.student.supervisor.fleet import Fleet

pytestmark = pytest.mark.system

#: Ranks wait there until a test has done what it does to a job that runs.
BEFORE_THE_END = {"gate": 100}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


def test_a_job_of_two_ranks_ends(fleet: Fleet) -> None:
    fleet.settings = {"ranks_per_node": 2}
    node = fleet.start("a")
    fleet.finished()
    assert node.outcome is not None
    assert (node.outcome.kind, node.outcome.step) == ("finished", 120)
    assert node.outcome.metrics == {"accuracy": 0.5}
    newest = Repository(str(fleet.folder / "checkpoints")).newest_valid()
    assert newest is not None
    assert newest.step == 120
    assert node.lines.count("waiting for the next generation") <= 1, "only before the first"


def test_a_job_without_a_place_for_checkpoints_survives_too(fleet: Fleet) -> None:
    fleet.settings, fleet.job = {"checkpoint": None}, BEFORE_THE_END
    node = fleet.start("a")
    fleet.reach(15)
    node.signal(0)
    fleet.open_gate()
    fleet.finished()
    assert fleet.generation() == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_hangs_is_replaced(
    fleet: Fleet, rng: random.Random, number: signal.Signals
) -> None:
    fleet.settings, fleet.job = {"ranks_per_node": 2}, BEFORE_THE_END
    if number == signal.SIGSTOP:
        fleet.settings["hang_s"] = 5.0
    node = fleet.start("a")
    fleet.reach(rng.randrange(1, 60))
    node.signal(1, number)
    fleet.open_gate()
    fleet.finished()
    assert fleet.generation() == 2
    word = "hung" if number == signal.SIGSTOP else "SIGKILL"
    (_, again) = fleet.events("generation")
    assert word in again["why"]
    assert "rank 1" in again["why"]


def test_a_rank_that_crashes_on_one_step_three_times_stops_the_job(fleet: Fleet) -> None:
    fleet.job = {"crash": {"step": 17, "rank": 0, "times": 9}}
    node = fleet.start("a")
    fleet.end()
    assert isinstance(node.error, EdlError)
    assert "step 17 of epoch 0 (positions 64-67): ValueError: as was asked" in str(node.error)
    assert "3 times" in str(node.error)
    assert fleet.generation() == 3


def test_why_the_job_failed_is_said_also_where_the_last_checkpoint_cannot_be_written(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise CheckpointUnavailable("no room")

    monkeypatch.setattr(node_module, "write_last", no_room)
    fleet.job = {"crash": {"step": 3, "rank": 0, "times": 9}}
    node = fleet.start("a")
    fleet.end()
    assert "step 3 of epoch 0" in str(node.error)


def test_a_rank_that_crashes_once_is_started_again(fleet: Fleet) -> None:
    fleet.job = {"crash": {"step": 17, "rank": 0, "times": 2}}
    fleet.start("a")
    fleet.finished()
    assert fleet.generation() == 3


def test_what_cannot_work_is_not_tried_again(fleet: Fleet) -> None:
    fleet.job = {"usage": "job.py:3, in model(): no layers"}
    node = fleet.start("a")
    fleet.end()
    assert isinstance(node.error, UsageError)
    assert str(node.error) == "job.py:3, in model(): no layers"
    assert fleet.generation() == 1


def test_who_is_told_to_stop_leaves_with_a_checkpoint_and_goes_on_later(fleet: Fleet) -> None:
    fleet.settings = {"ranks_per_node": 2, "save_every_steps": None}
    fleet.job = BEFORE_THE_END
    node = fleet.start("a")
    fleet.reach(12)
    node.stop.request()
    fleet.end()
    fleet.open_gate()
    assert node.error is None
    assert node.outcome is not None
    assert node.outcome.kind == "left"
    newest = Repository(str(fleet.folder / "checkpoints")).newest_valid()
    assert newest is not None
    assert newest.step == node.outcome.step >= 12
    fleet.start("b")
    fleet.finished()
    assert fleet.events("generation")[-1]["restored"] == newest.step


def test_a_damaged_newest_checkpoint_is_passed_over(fleet: Fleet) -> None:
    fleet.job = BEFORE_THE_END
    node = fleet.start("a")
    fleet.reach(25)
    node.stop.request()
    fleet.end()
    fleet.open_gate()
    newest, before = Repository(str(fleet.folder / "checkpoints")).list()[:2]
    file = Path(newest.location) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    fleet.start("b")
    fleet.finished()
    assert fleet.events("generation")[-1]["restored"] == before.step


def test_a_place_that_takes_no_checkpoint_is_one_clear_error(fleet: Fleet) -> None:
    fleet.settings = {"checkpoint": str(fleet.folder / "checkpoints" / "deeper")}
    (fleet.folder / "checkpoints").write_text("a file where a folder should be")
    node = fleet.start("a")
    fleet.end()
    assert isinstance(node.error, CheckpointUnavailable | UsageError)
    assert "checkpoints" in str(node.error)
