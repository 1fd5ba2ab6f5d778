"""How many requests a teacher has in flight: as few as keep it just busy, and never below two.

With one in flight a teacher idles while its answer travels; with two the travel is hidden as long
as it takes less than the computing. Where it takes longer, or the teacher works on several requests
at once, more are needed: the window grows for as long as that brings more rows per second. What is
compared is the time from one answer to the next while the window is full. A teacher that has two,
and whose device worked for all of that time, is just busy, and nothing is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from . import climbing

#: Requests in flight that every teacher may have.
LEAST = 2
#: A device that worked for so much of the time from answer to answer is busy with one at a time.
BUSY, BUSIER = 0.98, 1.02
#: Answers over which the busy part is taken.
GAIN = 1 / 16


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Bounds of the window of each teacher.

    Attributes:
        least: requests in flight at first.
        most: never more; equal to `least` it is pinned, as determinism asks for.
        rule: how is climbed: a wider window has to bring 3 % more.

    Raises:
        ValueError: not 1 <= least <= most.
    """

    least: int = LEAST
    most: int = 8
    rule: climbing.ClimbRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"needs 1 <= least <= most, not {self.least}, {self.most}")
        ladder = tuple(range(self.least, self.most + 1))
        object.__setattr__(self, "rule", climbing.ClimbRule(ladder, samples=32, gain=0.03))


class Window(NamedTuple):
    """The window of one teacher, and what it stands on.

    Attributes:
        climb: see `climbing`.
        busy: part of the time from answer to answer that the device worked; None: not known.
    """

    climb: climbing.Climb
    busy: float | None = None


def start(config: WindowConfig, now: float) -> Window:
    """The window of a teacher that joins."""
    return Window(climbing.start(config.least, config.rule, now))


def size(window: Window, config: WindowConfig) -> int:
    """Requests that may be in flight at the teacher now."""
    return climbing.setting(window.climb, config.rule)


def answered(
    window: Window,
    rows: int,
    turnaround_s: float,
    device_s: float,
    full: bool,
    now: float,
    config: WindowConfig,
) -> Window:
    """An answer has come.

    Args:
        window: as it was.
        rows: of the request (>= 1).
        turnaround_s: since the answer before it (see `turnaround`).
        device_s: how long the device worked on it; <= 0: it does not say.
        full: the window was full until now, so the teacher had all that it might have.
        now: seconds of a clock that does not go back.
        config: the bounds, the same at each call.
    """
    if config.least == config.most or not full or turnaround_s <= 0:
        return window
    if device_s > 0:
        part = min(device_s / turnaround_s, 2 * BUSIER)
        busy = part if window.busy is None else window.busy + GAIN * (part - window.busy)
        window = window._replace(busy=busy)
    now_at = size(window, config)
    just_busy = window.busy is not None and BUSY <= window.busy <= BUSIER
    climb = climbing.measured(
        climbing.look(window.climb, now, config.rule),
        now_at,
        turnaround_s / rows,
        now,
        config.rule,
        most=config.least if just_busy and now_at == config.least else config.most,
    )
    return window._replace(climb=climb)
