"""The line for progress bars: what it says, and that it does not jump about."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader import ReaderStats, engine_client
from edl.tests.distill_reader.test_reader import Batches, reader_of, until
from edl.tests.scripted_teacher import ScriptedTeacher

SECONDS = st.floats(0, 1e8)


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


def test_what_it_says() -> None:
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


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, " 0.0s"), (99.94, "99.9s"), (99.96, " 100s"), (999.4, " 999s"), (999.6, "16.7m"),
        (3600.0, "60.0m"), (86400.0, "24.0h"), (1e7, " 116d"), (1e12, " 999d"),
    ],
)  # fmt: skip
def test_how_long_something_lasted(seconds: float, shown: str) -> None:
    assert ReaderStats(source_wait_s=seconds).line().endswith(f"source {shown}")


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(0.0, "  0.0"), (81.2, " 81.2"), (999.4, "  999"), (1234.0, " 1.2k"), (2.5e5, " 250k")],
)
def test_how_fast_it_is(rate: float, shown: str) -> None:
    assert ReaderStats(samples_per_s=rate).line().startswith(f"{shown}/s ")


@given(
    rate=st.floats(0, 1e12),
    volume=st.integers(0, 1 << 50),
    upper=st.integers(0, 1 << 40),
    has=st.integers(0, 64),
    want=st.integers(0, 64),
    waits=st.tuples(SECONDS, SECONDS, SECONDS),
)
def test_it_is_as_long_whatever_the_figures(
    rate: float, volume: int, upper: int, has: int, want: int, waits: tuple[float, float, float]
) -> None:
    starved_s, blocked_s, source_wait_s = waits
    stats = ReaderStats(
        samples_per_s=rate,
        volume_bytes=volume,
        upper_bytes=upper,
        teachers=tuple(map(str, range(has))),
        want=want,
        starved_s=starved_s,
        blocked_s=blocked_s,
        source_wait_s=source_wait_s,
    )
    assert len(stats.line()) == len(ReaderStats().line()) < 80


def test_a_reader_has_it_at_any_moment(teacher: ScriptedTeacher) -> None:
    with reader_of(Batches(5), teacher) as reader:
        assert reader.progress.startswith("  0.0/s")
        list(reader)
        until(lambda: " 1/" in reader.progress)
        until(lambda: not reader.progress.startswith("  0.0/s"))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that are asked for are waited for until they come, on a busy machine too."""
    monkeypatch.setattr(engine_client, "FIGURES_S", 30.0)


@pytest.mark.usefixtures("patient")
def test_behind_an_epoch_they_know_all_of_it(teacher: ScriptedTeacher) -> None:
    """At once, however fast it was: figures are told five times a second otherwise."""
    with reader_of(Batches(7), teacher) as reader:
        for epoch in range(1, 6):
            assert len(list(reader)) == 7
            stats = reader.stats
            assert dict(stats.served) == {teacher.address: 7 * epoch}
            assert (stats.delivered, stats.volume_bytes, stats.in_flight[0][1]) == (7 * epoch, 0, 0)


@pytest.mark.usefixtures("patient")
def test_behind_one_that_was_left_they_know_that(teacher: ScriptedTeacher) -> None:
    with reader_of(Batches(50), teacher) as reader:
        stream = iter(reader)
        next(stream)
        reader._pipeline.leave(reader._pipeline.stream.epoch)
        assert reader.stats.volume_bytes == 0


@pytest.mark.usefixtures("patient")
def test_an_engine_that_died_tells_by_the_next_one(teacher: ScriptedTeacher) -> None:
    with reader_of(Batches(7), teacher) as reader:
        list(reader)
        os.kill(reader.engine_pid, signal.SIGSTOP)
        reader._pipeline.engine.ask_for_figures()
        os.kill(reader.engine_pid, signal.SIGKILL)
        until(lambda: reader.stats.engine_restarts == 1)
        until(lambda: reader.stats.teachers == (teacher.address,))
        assert len(list(reader)) == 7
        assert dict(reader.stats.served) == {teacher.address: 7}


def test_they_are_waited_for_a_second_at_most(teacher: ScriptedTeacher) -> None:
    with reader_of(Batches(7), teacher) as reader:
        list(reader)
        os.kill(reader.engine_pid, signal.SIGSTOP)
        reader._pipeline.engine.ask_for_figures()
        begun = time.monotonic()
        for _ in range(40):
            assert reader.stats.delivered == 7
        assert time.monotonic() - begun < 20 * engine_client.FIGURES_S, "once, and not at each look"
        os.kill(reader.engine_pid, signal.SIGCONT)
