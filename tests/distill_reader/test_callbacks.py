"""Callbacks of a reader: which call follows from which change of its figures, and who makes it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import Callback, DistilReader, ReaderStats
from edl.distill_reader.callbacks import calls_for
from edl.errors import UsageError
from edl.tests.distill_reader.test_reader import ROWS, Batches, check_epoch, reader_of, until
from edl.tests.scripted_teacher import ScriptedTeacher, label

NONE = ReaderStats()
A_IS_OUT = {"ejected": ("a",), "ejected_for": ("failed",)}


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


class Recorder(Callback):
    """Keeps each call, with the thread that made it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.threads: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def record(*arguments: Any) -> None:
            self.calls.append((name, arguments))
            self.threads.add(threading.current_thread().name)

        return record

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in [*self.calls] if called == name]


@pytest.mark.parametrize(
    ("before", "after", "calls"),
    [
        ({}, {"teachers": ("a", "b")}, [("joined", "a"), ("joined", "b")]),
        ({"teachers": ("a", "b")}, {"teachers": ("b",)}, [("lost", "a")]),
        ({"teachers": ("a",)}, A_IS_OUT, [("ejected", "a")]),
        ({}, A_IS_OUT, [("ejected", "a")]),
        (A_IS_OUT, A_IS_OUT, []),
        ({"teachers": ("a",)}, {"teachers": ("a",), **A_IS_OUT}, [("ejected", "a")]),
        ({"teachers": ("a",), **A_IS_OUT}, {"teachers": ("a",)}, [("joined", "a")]),
        ({"teachers": ("a",)}, {"teachers": ("a",)}, []),
    ],
)
def test_what_is_told_of_teachers(
    before: dict[str, Any], after: dict[str, Any], calls: list[tuple[str, str]]
) -> None:
    told = list(calls_for(replace(NONE, **before), replace(NONE, **after)))
    assert [(name, teacher) for name, (teacher, *_) in told] == [
        (f"on_teacher_{what}", name) for what, name in calls
    ]


def test_of_an_ejected_teacher_it_is_told_why() -> None:
    after = replace(NONE, ejected=("a", "b"), ejected_for=("silent", "lied"))
    before = replace(NONE, ejected=("a",), ejected_for=("silent",))
    assert list(calls_for(before, after)) == [("on_teacher_ejected", ("b", "lied"))]


def test_what_is_told_of_states() -> None:
    for state in ("starved", "blocked", "source_wait"):
        after = replace(NONE, state=state)
        assert list(calls_for(NONE, after)) == [(f"on_{state}", (after,))]
        assert list(calls_for(after, after)) == []
        assert list(calls_for(after, NONE)) == [], "that all is well is not worth a call"


def test_what_is_told_of_wants_and_engines() -> None:
    after = replace(NONE, want=3, engine_restarts=2)
    assert list(calls_for(replace(NONE, want=1), after)) == [
        ("on_engine_restarted", (2,)),
        ("on_want_changed", (3, 1)),
    ]


def test_each_call_is_one_that_a_callback_has() -> None:
    after = replace(
        NONE, teachers=("a",), want=3, engine_restarts=2, ejected=("b",), ejected_for=("lied",)
    )
    calls = [*calls_for(NONE, after), *calls_for(after, NONE)]
    for state in ("starved", "blocked", "source_wait"):
        calls += calls_for(NONE, replace(NONE, state=state))
    for name, arguments in calls:
        getattr(Callback(), name)(*arguments)
    told = {name for name, _ in calls} | {"on_batch"}
    assert told == {name for name in vars(Callback) if name.startswith("on_")}


def test_a_reader_tells_of_its_batches_and_teachers(teacher: ScriptedTeacher) -> None:
    other, recorder = ScriptedTeacher(), Recorder()
    source = Batches(20)
    try:
        with reader_of(source, teacher, other, callbacks=[recorder]) as reader:
            check_epoch(source, list(reader))
            assert [samples for samples, _ in recorder.of("on_batch")] == [ROWS] * 20
            assert all(waited_s >= 0 for _, waited_s in recorder.of("on_batch"))
            until(lambda: len(recorder.of("on_teacher_joined")) == 2)
            other.stop()
            check_epoch(source, list(reader))  # who is asked nothing is not missed
            until(lambda: recorder.of("on_teacher_lost") == [(other.address,)])
    finally:
        other.stop()
    assert {name for (name,) in recorder.of("on_teacher_joined")} == {
        teacher.address,
        other.address,
    }
    assert recorder.threads == {threading.main_thread().name, "edl-reader-callbacks"}


def test_a_liar_is_told_of(teacher: ScriptedTeacher) -> None:
    asked, recorder, lies = threading.Event(), Recorder(), itertools.count()

    def lie(request: Any) -> Any:
        asked.set()
        if next(lies) >= 2:  # what is asked at once: it is let in again, and does so no more
            return label(request)
        return {"logits": np.full((ROWS, 10), np.nan, np.float32)}

    def there_second() -> bool:
        return asked.wait(30.0)

    liar = ScriptedTeacher(lie)
    teacher.is_ready = there_second
    try:
        with reader_of(Batches(30), teacher, liar, callbacks=[recorder]) as reader:
            list(reader)
            until(lambda: recorder.of("on_teacher_ejected") == [(liar.address, "wrong")])
    finally:
        liar.stop()


def test_waiting_is_told_of(teacher: ScriptedTeacher) -> None:
    recorder, labels = Recorder(), threading.Event()

    def late(request: Any) -> Any:
        labels.wait(20)
        return label(request)

    teacher.behaviour = late
    with reader_of(Batches(300, (256,)), teacher, upper_bytes=1 << 16, callbacks=[recorder]) as r:
        thread = threading.Thread(target=lambda: next(iter(r)))
        thread.start()
        until(lambda: len(recorder.of("on_starved")) == 1)
        ((stats,),) = recorder.of("on_starved")
        assert stats.state == "starved"
        labels.set()
        thread.join(10)


def test_what_callbacks_raise_is_logged_and_stops_nothing(
    teacher: ScriptedTeacher, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Callback):
        def on_batch(self, samples: int, waited_s: float) -> None:
            raise RuntimeError("of the user's own")

        def on_teacher_joined(self, teacher: str) -> None:
            raise RuntimeError("of the user's own")

    source, recorder = Batches(5), Recorder()
    with reader_of(source, teacher, callbacks=[Broken(), recorder]) as reader:
        check_epoch(source, list(reader))
        until(lambda: len(recorder.of("on_teacher_joined")) == 1)
    assert len(recorder.of("on_batch")) == 5
    text = caplog.text
    assert text.count("on_batch of callback") == 5
    assert "on_teacher_joined of callback" in text
    assert "RuntimeError: of the user's own" in text


def test_a_callback_may_close_the_reader(teacher: ScriptedTeacher) -> None:
    made, closed = threading.Event(), threading.Event()

    class Closes(Callback):
        def on_teacher_joined(self, teacher: str) -> None:
            assert made.wait(10)
            reader.close()
            closed.set()

    reader = reader_of(Batches(5), teacher, callbacks=[Closes()])
    made.set()
    assert closed.wait(10)
    with pytest.raises(UsageError, match="closed"):
        iter(reader)


def test_only_callbacks_are_taken() -> None:
    with pytest.raises(UsageError, match=r"subclasses of Callback, not <function"):
        DistilReader(Batches(1), service="s", teachers=["127.0.0.1:9"], callbacks=[until])  # type: ignore[list-item]
