"""Teachers in the process of the tests, or in one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from edl.distill_reader import engine_client
from edl.runtime.supervise import python_command, start
from edl.tests.scripted_teacher import Behaviour, ScriptedTeacher, label
from edl.tests.waiting import DEADLINE_S

StartTeacher = Callable[..., ScriptedTeacher]


@pytest.fixture(autouse=True)
def replies_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures behind an epoch are complete, although the machine has stopped for a while."""
    monkeypatch.setattr(engine_client, "REPLY_TIMEOUT_S", DEADLINE_S)


@pytest.fixture(autouse=True)
def ends_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces and stores are complete, although the machine stops while an engine ends."""
    monkeypatch.setattr(engine_client, "STOP_GRACE_S", DEADLINE_S)


@pytest.fixture
def start_teacher() -> Iterator[StartTeacher]:
    """Starts teachers, which are stopped at the end."""
    with ExitStack() as stack:

        def start(behaviour: Behaviour = label, **options: object) -> ScriptedTeacher:
            teacher = ScriptedTeacher(behaviour, **options)  # type: ignore[arg-type]
            stack.callback(teacher.stop)
            return teacher

        yield start


@pytest.fixture
def teacher(start_teacher: StartTeacher) -> ScriptedTeacher:
    return start_teacher()


@pytest.fixture
def second(start_teacher: StartTeacher) -> ScriptedTeacher:
    return start_teacher()


@pytest.fixture(scope="module")
def teacher_address() -> Iterator[str]:
    """A teacher in a process of its own: DataLoader forks this one, which gRPC must not see."""
    process = start(python_command("teacher", "edl.tests.scripted_teacher"))
    yield process.expect(r"ready on (\S+)", timeout_s=DEADLINE_S).group(1)
    process.stop()
