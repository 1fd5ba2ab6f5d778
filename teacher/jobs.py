"""Jobs: what the socket side has the predictor process label, and how a job is labelled.

They travel as messages over `proto.channel`:

```
to the predictor    job   id, at_s, inputs {name: ref}, parts [part]   label these in one go
                    free  record                                   the answer has been sent
from it             progress  text                                 for the operator
                    ready     spec, t_t_s, micro_batch             it takes jobs from now on; again
                                                                   when its micro-batch is smaller
                    refused   error, message                       it cannot serve this model
                    done      id, results [result]                 one for each part, in order
a result            record, outputs {name: ref}, device_seconds
                    or error, message
```

A ref says where an array lies in shared memory (`proto.arena`). The socket side owns the memory of
the inputs, the predictor that of the outputs: each frees what it allocated, when told that it may.

A job is made of several requests, of which none spoils the others. A request whose time is over is
not computed. Where the joint run fails, each request is run alone, so that the error of one is the
error of that one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from .. import errors
from ..errors import (
    BadAnswer,
    DeadlineExceeded,
    EdlError,
    RetryableError,
    TeacherError,
    UsageError,
)
from ..proto.arena import Arena, Array, ArrayRef
from ..scheduler.rates import pooled_t_t
from .backends import Finish, ModelSpec, Submit
from .request import RequestedOutput, encode_outputs
from .self_test import check_finite

#: Seconds of a time that the clock cannot tell from none.
LEAST_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class JobPart:
    """What one request has in a job: so many rows of its inputs; the rest as in `Request`."""

    samples: int
    outputs: tuple[RequestedOutput, ...]
    deadline_s: float = math.inf

    def to_json(self) -> list[Any]:
        deadline_s = None if self.deadline_s == math.inf else self.deadline_s
        return [self.samples, [one.to_json() for one in self.outputs], deadline_s]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        samples, outputs, deadline_s = value
        wanted = tuple(RequestedOutput.from_json(one) for one in outputs)
        return cls(samples, wanted, math.inf if deadline_s is None else deadline_s)


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """The labels of one request, in memory that is valid until `release`, which is called once.

    Attributes:
        outputs: what was wanted, in that order.
        device_seconds: time in the model, its share of a joint run by its samples.
        release: gives the memory back, where that is shared.
    """

    outputs: Mapping[str, Array]
    device_seconds: float
    release: Callable[[], object] = lambda: None


#: What becomes of one request: its labels, or the error that it ends with.
Result = LabelledBatch | EdlError
#: What a job gives, for each of its requests in order.
Results = Future[Sequence[Result]]


@dataclass(frozen=True, slots=True)
class PredictorReady:
    """What a predictor says once it takes jobs.

    Attributes:
        spec: the model.
        t_t_s: device time in seconds per sample, as measured at the start.
        micro_batch: samples of one run.
    """

    spec: ModelSpec
    t_t_s: float
    micro_batch: int

    @classmethod
    def together(cls, every: Sequence[Self]) -> Self:
        """What predictors of one model are as one."""
        first = every[0]
        numerics = sorted({one.spec.numerics for one in every})
        if len(numerics) == 1:
            spec = first.spec
        else:
            words = [word for one in numerics for word in one]
            spec = replace(first.spec, numerics=("mixed", *words))
        t_t_s = pooled_t_t([max(one.t_t_s, LEAST_S) for one in every])
        return cls(spec, t_t_s, max(one.micro_batch for one in every))


def error_fields(error: EdlError) -> dict[str, str]:
    """`error` as fields of a message: the nearest class that both sides know.

    What tells neither of the request nor of the model may be ours alone: it may be tried again.
    """
    kind: type[EdlError] = RetryableError
    if isinstance(error, TeacherError | UsageError):
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    output = {"output": error.output} if isinstance(error, BadAnswer) else {}
    return {"error": kind.__name__, "message": str(error), **output}


def error_of(message: Mapping[str, Any]) -> EdlError:
    """The error that a message carries."""
    kind, text = getattr(errors, message["error"]), message["message"]
    return BadAnswer(text, message["output"]) if kind is BadAnswer else kind(text)


def refs_to_json(names: Mapping[str, Any], refs: tuple[ArrayRef, ...]) -> dict[str, Any]:
    """Names and the places of their arrays, in the same order."""
    return dict(zip(names, refs, strict=True))


def arrays_at(refs: Mapping[str, Any], arena: Arena) -> dict[str, Array]:
    """The arrays that a message names, as views of shared memory."""
    return {name: arena.get(ArrayRef.from_json(ref)) for name, ref in refs.items()}


def submit_parts(
    submit: Submit,
    inputs: Mapping[str, Array],
    parts: Sequence[JobPart],
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
    live = [index for index, part in enumerate(parts) if part.deadline_s > now]
    if not live:
        return lambda: _in_place(len(parts), {})
    cut = _cut(inputs, parts)
    running = _begun(submit, inputs if len(live) == len(parts) else _joined([cut[i] for i in live]))

    def finish() -> list[Result]:
        try:
            every, device_s = running()
        except EdlError as error:
            if len(live) == 1:
                # Without its frames: the arrays that they know are to be let go at once.
                return _in_place(len(parts), {live[0]: error.with_traceback(None)})
            # Each by itself, so that the error of one is the error of that one.
            runs = {i: submit_parts(submit, cut[i], [parts[i]], clock) for i in live}
            return _in_place(len(parts), {i: run()[0] for i, run in runs.items()})
        samples = sum(parts[i].samples for i in live)
        labels = zip(live, _cut(every, [parts[i] for i in live]), strict=True)
        results = {
            i: _checked(own, parts[i], device_s * parts[i].samples / samples) for i, own in labels
        }
        return _in_place(len(parts), results)

    return finish


def _begun(submit: Submit, inputs: Mapping[str, Array]) -> Finish:
    """A run; one that could not begin ends by that error."""
    try:
        return submit(inputs)
    except EdlError as error:
        refused = error.with_traceback(None)

    def finish() -> tuple[dict[str, Array], float]:
        raise refused

    return finish


def _in_place(count: int, results: Mapping[int, Result]) -> list[Result]:
    """The results in the order of their requests; those that are missing were not computed."""
    late = DeadlineExceeded("its deadline was over before its turn")
    return [results.get(index, late) for index in range(count)]


def _checked(own: Mapping[str, Array], part: JobPart, device_seconds: float) -> Result:
    try:
        check_finite({one.name: own[one.name] for one in part.outputs})
        return LabelledBatch(encode_outputs(own, part.outputs), device_seconds)
    except EdlError as error:
        return error.with_traceback(None)


def _cut(arrays: Mapping[str, Array], parts: Sequence[JobPart]) -> list[Mapping[str, Array]]:
    """The rows of each part, as views."""
    if len(parts) == 1:
        return [arrays]
    cut, start = list[Mapping[str, Array]](), 0
    for part in parts:
        stop = start + part.samples
        cut.append({name: array[start:stop] for name, array in arrays.items()})
        start = stop
    return cut


def _joined(some: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    if len(some) == 1:
        return some[0]
    return {name: np.concatenate([own[name] for own in some]) for name in some[0]}
