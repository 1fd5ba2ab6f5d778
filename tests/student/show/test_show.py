"""The progress of a training: plain lines, or a picture at a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from edl.student.show import open_display
from edl.student.show.picture import Picture
from edl.student.show.plain import Plain
from edl.student.show.terminal import Terminal, drawn
from edl.student.show.wording import count, duration, size
from edl.student.words import Progress

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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def picture(*words: Progress, steps: int = 100) -> Picture:
    found = Picture()
    found.begin(1, 2, 0, steps)
    for rank, word in enumerate(words):
        found.progress(rank, word, 5.0)
    return found


def test_figures_of_several_ranks_count_by_their_rows() -> None:
    other = replace(STEP, rows=10, losses={"hard": 6.0, "total": 6.0}, metrics={}, teachers=1)
    both = picture(STEP, other)
    assert both.losses == {"hard": 3.0, "soft": 1.0, "total": 2.625}
    assert both.metrics == {"accuracy": 0.875}
    assert both.teachers == (4, 8)
    assert both.buffer == (128 << 20, 512 << 20)
    assert (both.step, both.epoch, both.total, both.samples_per_s) == (10, 2, 64, 4096.0)


def test_a_rank_without_rows_or_reader_adds_nothing() -> None:
    idle = Progress(step=10)
    assert picture(idle).teachers is None
    assert picture(idle).buffer is None
    assert picture(idle).losses == {}
    assert picture(STEP, replace(idle, losses={"hard": 9.0})).losses == STEP.losses


def test_the_time_that_is_left_follows_the_pace() -> None:
    found = Picture()
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
    assert picture(STEP, steps=0).remaining_s is None


def test_plain_lines_come_now_and_then() -> None:
    lines: list[str] = []
    clock = Clock()
    plain = Plain(lines.append, every_s=10, clock=clock)
    plain.begin(1, 2, 0, 500)
    assert lines == ["generation 1: 2 ranks go on behind step 0 of 500"]
    for step in range(1, 41):
        clock.now = step * 0.5
        plain.progress(0, replace(STEP, step=step))
    plain.close()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "step 1/500",
        "step 21/500",
        "step 40/500",
    ]
    assert lines[-1] == (
        "step 40/500  epoch 2  total 1.5  hard 2  soft 1  accuracy 0.875  4.1k samples/s  2 ranks"
        "  teachers 3/4  buffer 25% of 256 MiB  ETA 3:50"
    )
    plain.close()
    assert len(lines) == 4


def test_plain_lines_report_a_long_wait_once() -> None:
    lines: list[str] = []
    clock = Clock()
    plain = Plain(lines.append, every_s=100, clock=clock)
    plain.begin(1, 1, 0, 0)
    waits = replace(STEP, waiting_for="soft labels: 0 of 3 teachers live")

    def heard(now: float, word: Progress) -> list[str]:
        clock.now, before = now, len(lines)
        plain.progress(0, word)
        return lines[before:]

    assert heard(0, STEP) != []
    said = ["waiting for rank 0: soft labels: 0 of 3 teachers live"]
    assert [heard(now, waits) for now in (1, 5.9, 6, 9)] == [[], [], said, []]
    assert heard(9.1, replace(STEP, step=11)) == []
    assert [heard(now, replace(waits, step=11)) for now in (9.2, 14.1, 14.3)] == [[], [], said]


def test_plain_lines_report_the_wait_of_a_node_at_once() -> None:
    lines: list[str] = []
    plain = Plain(lines.append, clock=Clock())
    plain.waiting("2 nodes, 1 is here")
    plain.waiting("")
    plain.line("a [bold]line[/bold] of another")
    plain.close()
    assert lines == ["waiting for 2 nodes, 1 is here", "a [bold]line[/bold] of another"]


def test_a_length_that_was_an_estimate_is_given_up() -> None:
    found = picture(STEP, steps=8)
    assert (found.steps, found.remaining_s) == (0, None)


def shown(found: Picture, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(drawn(found, "digits"))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_the_picture_at_a_terminal() -> None:
    found = picture(STEP)
    found.progress(0, replace(STEP, step=20, waiting_for="soft labels"), 10.0)
    bar, losses, labels, waits = shown(found)
    assert bar.startswith("digits ━")
    assert "step 20/100 epoch 2 4.1k samples/s 2 ranks ETA 0:40" in bar
    assert losses == "total 1.5 hard 2 soft 1 accuracy 0.875"
    assert labels.startswith("buffer ━")
    assert labels.endswith("64 MiB of 256 MiB teachers 3/4")
    assert waits == "waiting for rank 0: soft labels"


def test_a_terminal_keeps_lines_above_the_picture() -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None)
    display = open_display(console, "digits")
    display.begin(1, 1, 0, 20)
    display.progress(0, STEP)
    display.waiting("another node")
    display.line("[0] a line [red]of a rank")
    display.close()
    text = file.getvalue()
    assert "[0] a line [red]of a rank\n" in text
    assert text.rindex("step 10/20") > text.rindex("of a rank")
    assert text.rindex("waiting for another node") > text.rindex("of a rank")


def test_elsewhere_there_are_plain_lines() -> None:
    file = io.StringIO()
    display = open_display(Console(file=file, width=40), "digits")
    display.begin(1, 1, 0, 20)
    display.progress(0, STEP)
    display.close()
    first, second = file.getvalue().splitlines()
    assert first == "generation 1: 1 rank goes on behind step 0 of 20"
    assert second.startswith("step 10/20  epoch 2  total 1.5")
    assert not isinstance(display, Terminal)


def test_figures_are_short() -> None:
    assert [count(n) for n in (3.14159, 999, 4096, 2e6)] == ["3.1", "999", "4.1k", "2.0M"]
    assert [size(n) for n in (12, 5 << 20)] == ["12 B", "5 MiB"]
    assert [duration(s) for s in (59.6, 3723)] == ["1:00", "1:02:03"]
