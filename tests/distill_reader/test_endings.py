"""However a training loop ends, it ends at once, with its own exit code, and its engine with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from edl.supervise import python_command, start
from edl.tests.ground.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher

EXIT_CODES = {
    "falls off": 0,
    "closes": 0,
    "breaks": 0,
    "raises": 1,
    "exits": 3,
    "interrupted": -signal.SIGINT,
    "killed": -signal.SIGKILL,
}
SIGNALS = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}


@pytest.fixture(scope="module")
def teacher() -> Iterator[str]:
    teacher = ScriptedTeacher()
    yield teacher.address
    teacher.stop()


@pytest.mark.parametrize("ending", EXIT_CODES)
def test_ending(ending: str, teacher: str) -> None:
    program = "edl.tests.distill_reader.trainer_program"
    trainer = start(python_command("trainer", program, ending, teacher))
    try:
        engine = int(trainer.expect(r"engine (\d+)", 30).group(1))
        if ending in SIGNALS:
            trainer.send_signal(SIGNALS[ending])
        assert trainer.wait(5) == EXIT_CODES[ending], trainer.tail()
        wait_gone([engine], timeout_s=3)
        if ending not in ("raises", "interrupted"):
            assert not any("Traceback" in line for line in trainer.tail(50)), trainer.tail(50)
        assert not any("Exception ignored" in line for line in trainer.tail(50))
    finally:
        trainer.stop()
