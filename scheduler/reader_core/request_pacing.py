"""How fast each teacher answers, and what it is sent by that: how many requests, how large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from ..hedging import Turnarounds, began
from ..ledger import events as ev
from ..windows import RequestSize, SizeConfig, Window, WindowConfig
from .events import AnswerCame


@dataclass(slots=True)
class _Teacher:
    """What is known of one teacher, from its joining until it is gone."""

    window: Window
    sizes: SizeConfig
    size: RequestSize | None
    sent: dict[int, tuple[float, int | None]] = field(default_factory=dict)
    answered_at: float = -inf


class RequestPacing:
    """The teachers of one service.

    Args:
        config: bounds of each window.
        rows: of a request at most; None: a request is one batch; "auto": what suits each teacher.

    Attributes:
        times: what requests take, for those who look for late ones.
    """

    def __init__(self, config: WindowConfig, rows: int | Literal["auto"] | None) -> None:
        self.times = Turnarounds()
        self._windows = config
        self._rows = rows
        self._usual_rows = 1
        self._teachers: dict[str, _Teacher] = {}

    def batch(self, rows: int) -> None:
        """The student has batches of so many rows."""
        self._usual_rows = rows

    def joined(self, name: str, now: float, most_rows: int | None) -> ev.TeacherJoined:
        """A teacher can be sent to, whose model takes so many rows: what the ledger is told."""
        known = self._teachers.get(name)
        if known is None or known.sizes.most_rows != most_rows:
            sizes = SizeConfig(most_rows)
            size = None
            if self._rows == "auto":
                size = RequestSize.start(sizes, self._usual_rows, now)
            window = Window.start(self._windows, now)
            known = self._teachers[name] = _Teacher(window, sizes, size)
        return ev.TeacherJoined(name, self.window(name), self._most_rows(known))

    def window(self, name: str) -> int:
        """Requests that a teacher may have in flight."""
        known = self._teachers.get(name)
        return self._windows.least if known is None else known.window.size

    def sent(self, name: str, request: int, now: float) -> None:
        """A request goes out."""
        if (known := self._teachers.get(name)) is not None:
            known.sent[request] = (now, self._most_rows(known))

    def ended(self, name: str, request: int) -> None:
        """A request is over without an answer."""
        if (known := self._teachers.get(name)) is not None:
            known.sent.pop(request, None)

    def sent_at(self, name: str, request: int) -> float | None:
        """When a request went out that is not over."""
        known = self._teachers.get(name)
        told = None if known is None else known.sent.get(request)
        return None if told is None else told[0]

    def oldest(self, name: str) -> float | None:
        """When the oldest request went out that is not over; None: there is none."""
        known = self._teachers.get(name)
        return next(iter(known.sent.values()))[0] if known is not None and known.sent else None

    def answered_at(self, name: str) -> float:
        """When a teacher answered last."""
        known = self._teachers.get(name)
        return -inf if known is None else known.answered_at

    def answered(self, answer: AnswerCame, in_flight: int, now: float) -> Iterator[ev.Event]:
        """A teacher has answered, when it had so many requests: what the ledger is told of that."""
        name, rows, device_s = answer.teacher, answer.rows, answer.device_s
        known = self._teachers.get(name)
        told = None if known is None else known.sent.pop(answer.request, None)
        if known is None or told is None:
            return
        sent_at, asked = told
        turnaround_s = now - began(sent_at, known.answered_at)
        known.answered_at = now
        self.times.answered(name, rows, turnaround_s)
        before = known.window.size
        known.window = known.window.answered(rows, turnaround_s, device_s, in_flight >= before, now)
        if (window := known.window.size) != before:
            yield ev.WindowChanged(name, window)
        if known.size is not None and asked is not None:
            size_before = self._most_rows(known)
            known.size = known.size.answered(asked, rows, device_s, now)
            if (most_rows := self._most_rows(known)) != size_before:
                yield ev.RequestSizeChanged(name, most_rows)

    def forget(self, name: str) -> None:
        """A teacher is gone."""
        self.times.forget(name)
        self._teachers.pop(name, None)

    def _most_rows(self, teacher: _Teacher) -> int | None:
        if teacher.size is not None:
            return teacher.size.rows
        return None if self._rows == "auto" else self._rows
