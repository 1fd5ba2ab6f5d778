"""A trainer ends while its readers are in whatever stage: all they had is gone, at once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl.distill_reader.store.database import Database
from edl.distill_reader.store.looking import verify
from edl.supervise import Process, python_command, start
from edl.tests.ground.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher

BOUND_S = 5.0
START_S = 90.0
STAGES = 7


@pytest.fixture(scope="module")
def teacher() -> Iterator[str]:
    teacher = ScriptedTeacher()
    teacher.parameters = {"content_id": "model-1"}
    yield teacher.address
    teacher.stop()


def by(number: signal.Signals) -> Callable[[Process], None]:
    return lambda trainer: trainer.send_signal(number)


def again_and_again(trainer: Process) -> None:
    """Ctrl-C of somebody who does not wait for what follows from the first."""
    while trainer.alive:
        trainer.send_signal(signal.SIGINT)
        trainer.wait(0.05)


def by_itself(_: Process) -> None: ...


#: How it is brought about, and exit codes that say so.
ENDINGS: dict[str, tuple[Callable[[Process], None], tuple[int, ...]]] = {
    "killed": (by(signal.SIGKILL), (-signal.SIGKILL,)),
    "interrupted": (by(signal.SIGINT), (-signal.SIGINT,)),
    "interrupted again and again": (again_and_again, (-signal.SIGINT, 1)),
    "terminated": (by(signal.SIGTERM), (-signal.SIGTERM,)),
    "hung up": (by(signal.SIGHUP), (-signal.SIGHUP,)),
    "exits": (by_itself, (3,)),
    "exits at once": (by_itself, (4,)),
    "raises": (by_itself, (1,)),
    "falls off": (by_itself, (0,)),
}
EACH_TIME = ("killed", "interrupted again and again", "exits")


@pytest.mark.parametrize(
    "ending",
    [pytest.param(one, marks=[] if one in EACH_TIME else [pytest.mark.nightly]) for one in ENDINGS],
)
def test_ending_in_every_stage_at_once(ending: str, teacher: str, tmp_path: Path) -> None:
    program = "edl.tests.distill_reader.stages_program"
    trainer = start(python_command("trainer", program, ending, teacher, tmp_path))
    how, codes = ENDINGS[ending]
    try:
        trainer.expect("^ready$", START_S)
        told = [line.split(maxsplit=1) for line in trainer.tail(50) if line[:1].isdigit()]
        stages = {int(pid): stage for pid, stage in told}
        assert len(stages) == STAGES
        how(trainer)
        assert trainer.wait(BOUND_S) in codes, trainer.tail(50)
        wait_gone(list(stages), timeout_s=BOUND_S)
    finally:
        trainer.stop()
    assert json.loads((tmp_path / "run.json").read_text())[-1]["name"] == "the end"
    assert not (tmp_path / "labels.edl-wal").exists(), "the store was closed"
    with Database(str(tmp_path / "labels.edl")) as database:
        assert verify(database, lambda rows: None) > 0
