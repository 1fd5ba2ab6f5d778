"""However a training loop ends, it ends at once, with its own exit code, and all it started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from edl.supervise import python_command, start
from edl.tests.distill_reader.trainer_program import SOURCES
from edl.tests.ground.programs import wait_gone
from edl.tests.leaks import remove_paddles_segments
from edl.tests.scripted_teacher import ScriptedTeacher

EXIT_CODES = {
    "falls off": 0,
    "closes": 0,
    "breaks": 0,
    "deletes": 0,
    "raises": 1,
    "source raises": 1,
    "exits": 3,
    "interrupted": -signal.SIGINT,
    "killed": -signal.SIGKILL,
}
SIGNALS = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}
#: What is said on the way out, of which nothing else may be said.
SAID = {"raises": "RuntimeError", "source raises": "Broken", "interrupted": "KeyboardInterrupt"}
BOUND_S = 5.0


@pytest.fixture(scope="module")
def teacher() -> Iterator[str]:
    teacher = ScriptedTeacher()
    yield teacher.address
    teacher.stop()


def case(ending: str, source: str) -> Any:
    """Those of PyTorch in full at night only, as they are like Paddle's."""
    at_night = source == "torch" and ending not in ("breaks", "source raises", "killed")
    return pytest.param(ending, source, marks=[pytest.mark.nightly] if at_night else [])


@pytest.mark.parametrize(
    ("ending", "source"), [case(ending, source) for ending in EXIT_CODES for source in SOURCES]
)
def test_ending(ending: str, source: str, teacher: str) -> None:
    program = "edl.tests.distill_reader.trainer_program"
    trainer = start(python_command("trainer", program, ending, teacher, source))
    try:
        told = trainer.expect(r"descendants (.+)", 60).group(1)
        descendants = [int(pid) for pid in told.split()]
        assert len(descendants) >= (1 if source == "plain" else 3), "an engine, workers"
        if ending in SIGNALS:
            trainer.send_signal(SIGNALS[ending])
        assert trainer.wait(BOUND_S) == EXIT_CODES[ending], trainer.tail(50)
        wait_gone(descendants, timeout_s=BOUND_S)
        if ending == "killed":
            remove_paddles_segments(descendants)
        said = trainer.tail(80)
        assert any(SAID.get(ending, "") in line for line in said), said
        if ending not in SAID and ending != "killed":  # of which workers may complain
            assert not any("Traceback" in line for line in said), said
        assert not any("Exception ignored" in line for line in said), said
    finally:
        trainer.stop()
