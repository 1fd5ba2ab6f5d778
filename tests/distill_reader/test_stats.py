"""The line for progress bars, and which callbacks a change of the figures calls."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader import Callback, ReaderStats
from edl.distill_reader.stats import Callbacks, calls_for
from edl.tests.waiting import DEADLINE_S

NONE = ReaderStats()
A_IS_OUT = {"ejected": ("a",), "ejected_for": ("failed",)}
A_AND_B_ARE_OUT = {"ejected": ("a", "b"), "ejected_for": ("failed", "lied")}
SECONDS = st.floats(0, 1e8)


def test_the_line_of_a_progress_bar() -> None:
    stats = ReaderStats(
        samples_per_s=811.7,
        volume_bytes=12 << 20,
        upper_bytes=256 << 20,
        teachers=("a", "b", "c"),
        want=4,
        starved_s=0.04,
        blocked_s=12.1,
        source_wait_s=247.0,
    )
    said = "  812/s volume   5% teachers   3/4 starved  0.0s blocked 12.1s source  247s"
    assert str(stats) == stats.line() == said


@given(
    st.builds(
        ReaderStats,
        samples_per_s=st.floats(0, 1e12),
        volume_bytes=st.integers(0, 1 << 50),
        upper_bytes=st.integers(0, 1 << 40),
        teachers=st.integers(0, 64).map(lambda count: tuple(map(str, range(count)))),
        want=st.integers(0, 64),
        starved_s=SECONDS,
        blocked_s=SECONDS,
        source_wait_s=SECONDS,
    )
)
def test_the_line_is_as_long_whatever_the_figures(stats: ReaderStats) -> None:
    assert len(stats.line()) == len(ReaderStats().line()) < 80


# --- callbacks


def test_callbacks_close_if_the_system_refuses_their_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse = mock.Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    callbacks = Callbacks([Callback()], ReaderStats)
    with pytest.raises(RuntimeError):
        callbacks.start()
    callbacks.close()


def test_a_callback_that_calls_exit_does_not_end_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Exits(Callback):
        def on_teacher_joined(self, teacher: str) -> None:
            sys.exit(3)

    class Waits(Callback):
        def on_want_changed(self, want: int, before: int) -> None:
            called.set()

    called = threading.Event()
    now = replace(NONE, teachers=("a",), want=2)
    callbacks = Callbacks([Exits(), Waits()], lambda: now)
    callbacks.start()
    callbacks.notify()
    assert called.wait(DEADLINE_S)
    callbacks.close()
    assert "on_teacher_joined of callback" in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "calls"),
    [
        ({}, {"teachers": ("a", "b")}, [("teacher_joined", "a"), ("teacher_joined", "b")]),
        ({"teachers": ("a", "b")}, {"teachers": ("b",)}, [("teacher_lost", "a")]),
        ({"teachers": ("a",)}, A_IS_OUT, [("teacher_ejected", "a", "failed")]),
        ({}, A_IS_OUT, [("teacher_ejected", "a", "failed")]),
        (A_IS_OUT, A_IS_OUT, []),
        (A_IS_OUT, A_AND_B_ARE_OUT, [("teacher_ejected", "b", "lied")]),
        ({"teachers": ("a",), **A_IS_OUT}, {"teachers": ("a",)}, [("teacher_joined", "a")]),
        (
            {"want": 1},
            {"want": 3, "engine_restarts": 2},
            [("engine_restarted", 2), ("want_changed", 3, 1)],
        ),
    ],
)
def test_calls_follow_what_changed(
    before: dict[str, Any], after: dict[str, Any], calls: list[tuple[Any, ...]]
) -> None:
    told = calls_for(replace(NONE, **before), replace(NONE, **after))
    assert [(name.removeprefix("on_"), *values) for name, values in told] == calls


def test_every_method_of_a_callback_is_called() -> None:
    after = replace(
        NONE, teachers=("a",), want=3, engine_restarts=2, ejected=("b",), ejected_for=("lied",)
    )
    calls = [*calls_for(NONE, after), *calls_for(after, NONE)]
    for state in ("starved", "blocked", "source_wait"):
        entered = replace(NONE, state=state)
        calls += calls_for(NONE, entered)
        assert [*calls_for(entered, entered), *calls_for(entered, NONE)] == []
    for name, arguments in calls:
        getattr(Callback(), name)(*arguments)
    told = {name for name, _ in calls} | {"on_batch"}
    assert told == {name for name in vars(Callback) if name.startswith("on_")}
