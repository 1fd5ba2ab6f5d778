"""Answers that are like one that has passed every check: looked at for what can differ.

Whose answer it is, of which model, with which outputs, shapes and dtypes, stands in its head; and
what was found right of one head is right of each answer that has it. What is left to be checked is
that the rows are those of the request, and that the elements are finite.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from ...proto.alike import Head
from ...proto.clients import Answer
from ..label_forms import LabelForms
from .answers import device_seconds, is_finite
from .outcomes import Done, Job

#: Requests of so many sizes are known at a time.
SIZES: Final = 8


class _Passed(NamedTuple):
    """What has passed.

    Attributes:
        head: of the answer.
        name: of its only label, which is the output as it came.
        fetches: what was asked for.
        forms: in which form.
        draining: what it said, and so on.
        content_id: of the model.
        numerics_id: of the teacher.
    """

    head: Head
    name: str
    fetches: tuple[str, ...]
    forms: LabelForms
    draining: bool
    content_id: str
    numerics_id: str


class Alike:
    """The latest answers of one teacher to have passed, one for each size. Used by one thread."""

    def __init__(self) -> None:
        self._passed: dict[int, _Passed | None] = {}  # by rows; None: it is like no other

    def done(self, job: Job, answer: memoryview, asked_at: float, beside: int) -> Done | None:
        """What comes of an answer.

        Args:
            job: what was asked.
            answer: as it came over a stream.
            asked_at: when it was asked, by the monotonic clock.
            beside: requests that were on their way to the teacher then, this one included.

        Returns:
            None where it has to be looked at from the beginning: it is unlike the last one, or
            wrong.
        """
        if (
            (passed := self._passed.get(job.samples)) is None
            or passed.fetches is not job.fetches
            or passed.forms is not job.forms
            or (said := passed.head.read(answer, job.name)) is None
            or not is_finite(said[1])
        ):
            return None
        now = time.monotonic()
        return Done(
            job,
            {passed.name: said[1]},
            device_seconds(said[0], now - asked_at, beside),
            passed.draining,
            now - job.asked_at,
            passed.content_id,
            passed.numerics_id,
        )

    def learn(self, answer: memoryview, said: Answer, done: Done) -> None:
        """An answer has passed every check, and this has come of it."""
        job = done.job
        if len(done.labels) != 1 or done.rows or self._passed.get(job.samples, job) is None:
            return
        if len(self._passed) >= SIZES:
            self._passed.clear()
        ((name, label),) = done.labels.items()
        head = Head.of(answer) if label is said.outputs.get(name) else None
        self._passed[job.samples] = (
            None
            if head is None
            else _Passed(
                head, name, job.fetches, job.forms, done.draining, done.content_id, done.numerics_id
            )
        )

    def forget(self) -> None:
        """The teacher has answered a probe: it may be another."""
        self._passed.clear()
