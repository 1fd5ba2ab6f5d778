"""One node with its ranks: whatever they do, the job ends, with every sample trained once."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edl.errors import CheckpointUnavailable, EdlError, UsageError
from edl.student.checkpoint import Repository
from edl.student.settings import TrainSettings
from edl.student.supervisor import node as node_module
from edl.student.supervisor.crew import Crew
from edl.student.supervisor.plan import plan
from edl.student.words import Ask, FromRank, Order, Progress
from edl.tests.student.rank.world import settings as rank_settings
from edl.tests.student.supervisor.fleet import STAND_IN, Fleet
from edl.tests.waiting import wait_until

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


def test_a_failure_is_reported_even_if_the_last_checkpoint_cannot_be_written(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise CheckpointUnavailable("no room")

    monkeypatch.setattr(node_module, "write_last", no_room)
    fleet.job = {"crash": {"step": 3, "rank": 0, "times": 9}}
    node = fleet.start("a")
    fleet.end()
    assert "step 3 of epoch 0" in str(node.error)


def test_a_rank_that_crashes_twice_is_started_again(fleet: Fleet) -> None:
    fleet.job = {"crash": {"step": 17, "rank": 0, "times": 2}}
    fleet.start("a")
    fleet.finished()
    assert fleet.generation() == 3


def test_a_usage_error_is_not_retried(fleet: Fleet) -> None:
    fleet.job = {"usage": "job.py:3, in model(): no layers"}
    node = fleet.start("a")
    fleet.end()
    assert isinstance(node.error, UsageError)
    assert str(node.error) == "job.py:3, in model(): no layers"
    assert fleet.generation() == 1


def test_a_stopped_job_leaves_a_checkpoint_and_continues_later(fleet: Fleet) -> None:
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


class Asked:
    """Answers no lease before it is let, and then raises what it was given."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def answer(self, rank: int, ask: Ask, alive: Callable[[], bool]) -> Any:
        if ask.what == "lease":
            self.may.wait()
            raise ValueError("no answer to that")
        return None


@contextmanager
def crew_of_one(folder: Path, asked: Asked) -> Iterator[Crew]:
    spec = folder / "job.json"
    spec.write_text(json.dumps({"rows": 8}))
    settings = TrainSettings(str(spec), "job", epochs=1, total_batch=4)
    order = Order(settings, local_rank=1, endpoints=("127.0.0.1:1",))
    crew = Crew([order], asked, lambda rank, line: None, STAND_IN)
    try:
        yield crew
    finally:
        asked.may.set()
        crew.close()


def test_a_rank_is_heard_while_its_question_waits_and_ends_where_there_is_no_answer(
    tmp_path: Path,
) -> None:
    asked, said = Asked(), list[FromRank | int]()

    def waits() -> bool:
        said.extend(word for _, word in crew.news(0.05))
        return any(isinstance(word, Progress) and word.waiting_for for word in said)

    with crew_of_one(tmp_path, asked) as crew:
        wait_until(waits)
        asked.may.set()
        wait_until(lambda: bool(crew.news(0.05)) and not crew.running)
        assert "SIGKILL" in crew.ranks[0].ending()


def test_the_plan_names_the_rows_of_a_rank_at_both_limits(tmp_path: Path) -> None:
    several = {"coordinator": "redis://127.0.0.1:1", "checkpoint": str(tmp_path)}
    told = "\n".join(
        plan(rank_settings(epochs=2, nodes=(1, 8), ranks_per_node=2, total_batch=7, **several))
    )
    assert "96 samples an epoch in 14 steps of 7 rows" in told
    assert "28 steps in all" in told
    assert "with 1 node: 2 ranks of about 4 rows" in told
    assert "with 3 nodes: 6 ranks of about 2 rows" in told
    assert "more than 3 nodes: in reserve, as a step has 7 rows" in told
    assert "training begins from the beginning" in told
    assert not list(tmp_path.iterdir())
