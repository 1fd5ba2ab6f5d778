"""Labels a job of several requests in one go, and lets none of them spoil the others.

A request whose time is over is not computed. Where the joint run fails, each request is run alone,
so that the error of one is the error of that one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..errors import DeadlineExceeded, EdlError
from ..proto.arena import Array
from .finite import check_finite
from .wanted import Wanted, in_their_forms

#: Every output for some inputs, both of equal length along axis 0.
RunBatch = Callable[[Mapping[str, Array]], Mapping[str, Array]]


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


def label_parts(
    run: RunBatch,
    inputs: Mapping[str, Array],
    parts: Sequence[Part],
    clock: Callable[[], float] = time.monotonic,
) -> list[Result]:
    """Label the requests that `inputs` is made of.

    Args:
        run: the model.
        inputs: the requests' rows, one request after another.
        parts: the requests; at least 1.
        clock: of their deadlines.

    Returns:
        For each part its labels, or the error that it ends with.
    """
    now = clock()
    cut = _cut(inputs, parts)
    results: list[Result] = [DeadlineExceeded("its deadline was over before its turn")] * len(parts)
    live = [index for index, part in enumerate(parts) if part.deadline_s > now]
    if not live:
        return results
    together = inputs if len(live) == len(parts) else _joined([cut[index] for index in live])
    start = time.perf_counter()
    try:
        every = run(together)
    except EdlError as error:
        if len(live) == 1:
            # Without its frames, which know `results`: the arrays there are to be let go at once.
            results[live[0]] = error.with_traceback(None)
        else:
            for index in live:
                (results[index],) = label_parts(run, cut[index], [parts[index]], clock)
        return results
    device_seconds = time.perf_counter() - start
    samples = sum(parts[index].samples for index in live)
    labels = _cut(every, [parts[index] for index in live])
    for index, own in zip(live, labels, strict=True):
        share = parts[index].samples / samples
        results[index] = _checked(own, parts[index], device_seconds * share)
    return results


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
