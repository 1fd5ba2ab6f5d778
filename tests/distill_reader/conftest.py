"""Teachers in the process of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from edl.tests.scripted_teacher import Behaviour, ScriptedTeacher, label

StartTeacher = Callable[..., ScriptedTeacher]


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
