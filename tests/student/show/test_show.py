"""The progress of a training: plain lines, or a picture at a terminal."""

from __future__ import annotations

import errno
import io
from dataclasses import replace

import pytest
from rich.console import Console

from edl.student.messages import Progress
from edl.student.show import displays
from edl.student.show.displays import Plain, open_display
from edl.student.show.status import TrainingStatus

STEP = Progress(
    step=10,
    epoch=2,
    rows=30,
    total=64,
    losses={"hard": 2.0, "soft": 1.0, "total": 1.5},
    metrics={"accuracy": 0.875},
    step_s=0.2,
    wait_s=0.1,
    samples_per_s=4096.0,
    teachers=3,
    volume=64 << 20,
    upper_bytes=256 << 20,
    wanted=4,
)


def status(*words: Progress, steps: int = 100) -> TrainingStatus:
    found = TrainingStatus()
    found.begin(1, 2, 0, steps)
    for rank, word in enumerate(words):
        found.progress(rank, word, 5.0)
    return found


def test_figures_of_several_ranks_count_by_their_rows() -> None:
    other = replace(STEP, rows=10, losses={"hard": 6.0, "total": 6.0}, metrics={}, teachers=1)
    both = status(STEP, other)
    assert both.losses == {"hard": 3.0, "soft": 1.0, "total": 2.625}
    assert both.metrics == {"accuracy": 0.875}
    assert both.teachers == (4, 8)
    assert both.buffer == (128 << 20, 512 << 20)
    assert (both.step, both.epoch, both.total, both.samples_per_s) == (10, 2, 64, 4096.0)
    idle = Progress(step=10)  # without rows or a reader: it adds nothing
    alone = status(idle)
    assert (alone.teachers, alone.buffer, alone.losses) == (None, None, {})
    assert status(STEP, replace(idle, losses={"hard": 9.0})).losses == STEP.losses


def test_the_time_that_is_left_follows_the_pace() -> None:
    found = TrainingStatus()
    found.begin(1, 1, 0, 100)
    assert found.remaining_s is None
    for step in range(1, 11):
        found.progress(0, replace(STEP, step=step), now=step * 0.5)
    assert found.remaining_s == pytest.approx(45.0)
    for step in range(11, 90):  # four times slower: the last minute counts
        found.progress(0, replace(STEP, step=step), now=5.0 + (step - 10) * 2.0)
    assert found.remaining_s == pytest.approx(22.0)
    found.begin(2, 1, 50, 100)
    assert (found.step, found.remaining_s) == (50, None)
    assert status(STEP, steps=0).remaining_s is None
    too_short = status(STEP, steps=8)  # the length was an estimate
    assert (too_short.steps, too_short.remaining_s) == (0, None)


def test_plain_lines_come_now_and_then() -> None:
    lines: list[str] = []
    times = iter(range(41))
    plain = Plain(lines.append, every_s=20, clock=lambda: next(times))
    plain.begin(1, 2, 0, 500)
    for step in range(1, 41):
        plain.progress(0, replace(STEP, step=step))
    plain.close()
    plain.close()
    steps = [line.split("  ")[0] for line in lines[1:]]
    assert steps == ["step 1/500", "step 21/500", "step 40/500"]
    assert lines[-1].endswith("ETA 7:40")


def test_a_long_wait_is_reported_once() -> None:
    lines: list[str] = []
    now = 0.0
    plain = Plain(lines.append, every_s=100, clock=lambda: now)
    plain.begin(1, 1, 0, 0)
    waits = replace(STEP, waiting_for="soft labels")
    told = "waiting for rank 0: soft labels"
    plain.progress(0, STEP)
    for now, step, said in (
        (1, 10, 0), (5.9, 10, 0), (6, 10, 1), (9, 10, 1),
        (9.1, 11, 1), (9.2, 11, 1), (14.1, 11, 1), (14.3, 11, 2),
    ):  # fmt: skip
        plain.progress(0, replace(waits, step=step))
        assert lines.count(told) == said, now
    plain.waiting("2 nodes, 1 is here")
    plain.waiting("")
    assert lines[-1] == "waiting for 2 nodes, 1 is here", "of a node at once"


def test_waits_of_the_node_and_of_the_next_generation_are_reported_once_each() -> None:
    lines: list[str] = []
    now = 0.0
    plain = Plain(lines.append, every_s=100, clock=lambda: now)
    plain.begin(1, 1, 10, 0)
    plain.waiting("a shard")
    for now in (0, 6):
        plain.progress(0, STEP)
        assert lines.count("waiting for a shard") == 1, now
    plain.waiting("")
    waits = replace(STEP, waiting_for="soft labels")
    told = "waiting for rank 0: soft labels"
    for generation, times in ((1, (10, 20)), (2, (21, 22, 30))):
        plain.begin(generation, 1, 10, 0)
        for now in times:
            plain.progress(0, waits)
            assert lines.count(told) == generation - (now < times[-1])


def test_a_terminal_that_cannot_redraw_gets_plain_lines() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(open_display(console, "digits"), Plain)


def test_a_terminal_keeps_lines_above_the_picture() -> None:
    file = io.StringIO()
    console = Console(file=file, width=140, force_terminal=True, color_system=None)
    display = open_display(console, "digits")
    display.begin(1, 2, 0, 20)
    display.progress(0, replace(STEP, step=9))
    display.progress(0, STEP)
    display.waiting("another node")
    display.line("[0] a line [red]of a rank")
    display.close()
    text = file.getvalue()
    assert "[0] a line [red]of a rank\n" in text
    drawn = " ".join(text[text.rindex("of a rank") :].split())
    for part in (
        "digits ━",
        "step 10/20 epoch 2 4.1k samples/s 2 ranks ETA 0:",
        "total 1.5 hard 2 soft 1 accuracy 0.875",
        "64 MiB of 256 MiB teachers 3/4",
        "waiting for another node",
    ):
        assert part in drawn


def test_elsewhere_there_are_plain_lines() -> None:
    file = io.StringIO()
    display = open_display(Console(file=file, width=40), "digits")
    display.begin(1, 1, 0, 20)
    display.progress(0, replace(STEP, samples_per_s=40.0, volume=3, upper_bytes=12))
    display.line("a [bold]line[/bold] of another: 1:x:2")
    display.close()
    first, second, third = file.getvalue().splitlines()
    assert first.startswith("generation 1: 1 rank ")
    assert second == (
        "step 10/20  epoch 2  total 1.5  hard 2  soft 1  accuracy 0.875  40.0 samples/s"
        "  teachers 3/4  buffer 25% of 12 B"
    )
    assert third == "a [bold]line[/bold] of another: 1:x:2"


class Broken(io.StringIO):
    """A file whose next write raises `error`, if it is set."""

    error: OSError | None = None

    def write(self, text: str) -> int:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().write(text)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), BrokenPipeError()])
def test_a_training_goes_on_if_a_line_cannot_be_written(error: OSError) -> None:
    file = Broken()
    display = open_display(Console(file=file), "digits")
    display.line("before")
    file.error = error
    display.line("lost")
    display.line("after")
    display.close()
    assert file.getvalue() == "before\nafter\n"


def test_a_training_goes_on_if_its_terminal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displays, "_REFRESHES_PER_S", 1e-6)  # only the lines write
    file = Broken()
    console = Console(file=file, force_terminal=True, color_system=None)
    display = open_display(console, "digits")
    file.error = OSError(errno.EIO, "no terminal")
    display.line("lost")
    display.line("lost, too")
    display.close()
    assert "lost" not in file.getvalue()
