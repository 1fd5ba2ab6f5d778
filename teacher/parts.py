"""Labels a job of several requests in one go, and lets none of them spoil the others.

A request whose time is over is not computed. Where the joint run fails, each request is run alone,
so that the error of one is the error of that one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from ..errors import DeadlineExceeded, EdlError
from ..proto.arena import Array
from .backends import Submit
from .request import Wanted, in_their_forms
from .self_test import check_finite


@dataclass(frozen=True, slots=True)
class Part:
    """What one request has in a job: so many rows of its inputs; the rest as in `Request`."""

    samples: int
    outputs: tuple[Wanted, ...]
    deadline_s: float = math.inf

    def to_json(self) -> list[Any]:
        deadline_s = None if self.deadline_s == math.inf else self.deadline_s
        return [self.samples, [one.to_json() for one in self.outputs], deadline_s]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        samples, outputs, deadline_s = value
        wanted = tuple(Wanted.from_json(one) for one in outputs)
        return cls(samples, wanted, math.inf if deadline_s is None else deadline_s)


@dataclass(frozen=True, slots=True)
class Labelled:
    """One request's labels.

    Attributes:
        outputs: what was wanted, in that order.
        device_seconds: time in the model, its share of a joint run by its samples.
    """

    outputs: Mapping[str, Array]
    device_seconds: float


Result = Labelled | EdlError


def submit_parts(
    submit: Submit,
    inputs: Mapping[str, Array],
    parts: Sequence[Part],
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], list[Result]]:
    """Begin to label the requests that `inputs` is made of.

    Args:
        submit: begins a run of the model, which may be of any number of rows.
        inputs: the requests' rows, one request after another.
        parts: the requests; at least 1.
        clock: of their deadlines.

    Returns:
        What waits for the end, and returns for each part its labels, or the error that it ends
        with.
    """
    now = clock()
    cut = _cut(inputs, parts)
    live = [index for index, part in enumerate(parts) if part.deadline_s > now]
    if not live:
        return lambda: _in_place(len(parts), {})
    together = inputs if len(live) == len(parts) else _joined([cut[index] for index in live])
    alone = partial(_submit_each, submit, [cut[index] for index in live], live, parts, clock)
    try:
        running = submit(together)
    except EdlError as error:
        # Without its frames: the arrays that they know are to be let go at once.
        refused = error.with_traceback(None)
        labels = alone() if len(live) > 1 else lambda: {live[0]: refused}
        return lambda: _in_place(len(parts), labels())

    def finish() -> list[Result]:
        try:
            every, device_s = running()
        except EdlError as error:
            failed: dict[int, Result] = {live[0]: error.with_traceback(None)}
            return _in_place(len(parts), alone()() if len(live) > 1 else failed)
        samples = sum(parts[index].samples for index in live)
        labels = _cut(every, [parts[index] for index in live])
        return _in_place(
            len(parts),
            {
                index: _checked(own, parts[index], device_s * parts[index].samples / samples)
                for index, own in zip(live, labels, strict=True)
            },
        )

    return finish


def _submit_each(
    submit: Submit,
    cut: Sequence[Mapping[str, Array]],
    live: Sequence[int],
    parts: Sequence[Part],
    clock: Callable[[], float],
) -> Callable[[], dict[int, Result]]:
    """Each request by itself, so that the error of one is the error of that one."""
    runs = [
        submit_parts(submit, own, [parts[index]], clock)
        for index, own in zip(live, cut, strict=True)
    ]
    return lambda: {index: run()[0] for index, run in zip(live, runs, strict=True)}


def _in_place(count: int, results: Mapping[int, Result]) -> list[Result]:
    """The results in the order of their requests; those that are missing were not computed."""
    late = DeadlineExceeded("its deadline was over before its turn")
    return [results.get(index, late) for index in range(count)]


def _checked(own: Mapping[str, Array], part: Part, device_seconds: float) -> Result:
    try:
        check_finite({one.name: own[one.name] for one in part.outputs})
        return Labelled(in_their_forms(own, part.outputs), device_seconds)
    except EdlError as error:
        return error.with_traceback(None)


def _cut(arrays: Mapping[str, Array], parts: Sequence[Part]) -> list[dict[str, Array]]:
    """The rows of each part, as views."""
    cut, start = [], 0
    for part in parts:
        stop = start + part.samples
        cut.append({name: array[start:stop] for name, array in arrays.items()})
        start = stop
    return cut


def _joined(some: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    if len(some) == 1:
        return some[0]
    return {name: np.concatenate([own[name] for own in some]) for name in some[0]}
