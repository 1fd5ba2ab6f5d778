"""Jobs: the messages between the server process and a predictor, and how a predictor runs a job.

Messages over `proto.channel`:

```
to the predictor    job   id, at_s, inputs {name: ref}, parts [part], free [record]
                                                                   label the parts in one run, and
                                                                   free these records of outputs;
                                                                   at_s: when the job was sent
from the predictor  progress  text                                 for the user
                    ready     spec, t_t_s, micro_batch             it accepts jobs; again when its
                                                                   micro-batch becomes smaller
                    refused   error, message                       it cannot serve this model
                    done      id, results [result]                 a result for each part, in order
a part              samples, outputs (text of `outputs_to_text`), deadline_s
a result            record, outputs {name: ref}, device_seconds
                    or error, message, and the output of a BadAnswer
```

A ref is the location of an array in shared memory (`proto.arena`). The server process owns the
memory of inputs, and frees a job's inputs after `done`. The predictor owns the memory of outputs.
It frees the records in `free`, because the server no longer needs their labels.

A job may contain several requests. Requests after their deadline are not computed. If the joint run
fails, each request runs alone, so an error reaches only the request that caused it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Self

import numpy as np

from ..proto.arena import Arena, Array, ArrayRef
from ..proto.dataclass_json import from_plain, to_plain
from ..runtime import errors
from ..runtime.errors import (
    BadAnswer,
    DeadlineExceeded,
    EdlError,
    RetryableError,
    TeacherError,
    UsageError,
)
from ..scheduler.rates import harmonic_mean_t_t
from .backends import ModelSpec, Submit
from .request import RequestedOutput, check_finite, encode_outputs

#: The smallest t_t, in seconds per sample; 0 would mean an infinite rate.
MIN_T_T_S: Final = 1e-9


class JobRequest(NamedTuple):
    """One request of a job without its arrays; the fields are those of `BatchRequest`."""

    samples: int
    outputs: tuple[RequestedOutput, ...]
    deadline_s: float = math.inf


# Cached, because most requests of a teacher ask for the same outputs.


@lru_cache(maxsize=256)
def outputs_to_text(outputs: tuple[RequestedOutput, ...]) -> str:
    """Encode requested outputs for a message to a predictor."""
    return json.dumps(to_plain(outputs))


@lru_cache(maxsize=256)
def outputs_from_text(text: str) -> tuple[RequestedOutput, ...]:
    """Decode the text of `outputs_to_text`."""
    return tuple([from_plain(RequestedOutput, plain) for plain in json.loads(text)])


@dataclass(frozen=True, slots=True)
class RequestLabels:
    """The labels of one request. Their memory is valid until the owner calls `release`, once.

    Attributes:
        outputs: arrays of the requested outputs by name, in the order of the request.
        device_seconds: time in the model; for a joint run, the share of this request's samples.
        release: frees the memory if it is shared.
    """

    outputs: Mapping[str, Array]
    device_seconds: float
    release: Callable[[], object] = lambda: None


#: The result of one request: its labels, or its error.
Result = RequestLabels | EdlError
#: The results of a job, in the order of its requests.
Results = Future[Sequence[Result]]


@dataclass(frozen=True, slots=True)
class PredictorReady:
    """What a predictor reports when it accepts jobs.

    Attributes:
        spec: the model.
        t_t_s: seconds per sample on the device, measured at the start.
        micro_batch: samples per run.
    """

    spec: ModelSpec
    t_t_s: float
    micro_batch: int

    @classmethod
    def combined(cls, reports: Sequence[Self], merge_samples: int = 0) -> Self:
        """Combine reports on one model: the mean t_t, all numerics, the largest micro-batch.

        Args:
            reports: of all predictors.
            merge_samples: requests are merged up to this number of samples; 0: they are not merged.
        """
        first = reports[0]
        numerics = sorted({report.spec.numerics for report in reports})
        if len(numerics) == 1:
            spec = first.spec
        else:
            entries = [entry for one_numerics in numerics for entry in one_numerics]
            spec = replace(first.spec, numerics=("mixed", *entries))
        if merge_samples:
            spec = spec.merging(merge_samples)
        t_t_s = harmonic_mean_t_t([max(report.t_t_s, MIN_T_T_S) for report in reports])
        return cls(spec, t_t_s, max(report.micro_batch for report in reports))


def error_fields(error: EdlError) -> dict[str, str]:
    """Return an error as fields of a message, with its nearest base class in `errors`.

    Errors other than TeacherError and UsageError may be the fault of this process, not of the
    request or the model, so they are sent as RetryableError.
    """
    error_class: type[EdlError] = RetryableError
    if isinstance(error, TeacherError | UsageError):
        error_class = next(
            base for base in type(error).__mro__ if base.__module__ == errors.__name__
        )
    output = {"output": error.output} if isinstance(error, BadAnswer) else {}
    return {"error": error_class.__name__, "message": str(error), **output}


def error_of(message: Mapping[str, Any]) -> EdlError:
    """Return the error in a message."""
    error_class, text = getattr(errors, message["error"]), message["message"]
    return BadAnswer(text, message["output"]) if error_class is BadAnswer else error_class(text)


def arrays_at(refs: Mapping[str, Any], arena: Arena) -> dict[str, Array]:
    """Return the arrays of a message, as views of shared memory."""
    return {name: arena.get(ArrayRef(*ref)) for name, ref in refs.items()}


def submit_parts(
    submit: Submit,
    inputs: Mapping[str, Array],
    parts: Sequence[JobRequest],
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], list[Result]]:
    """Start to label the requests in `inputs`.

    Args:
        submit: starts a run of the model with any number of rows.
        inputs: rows of all requests, one request after another.
        parts: the requests; at least 1.
        clock: seconds; the clock of the deadlines.

    Returns:
        A function that waits for the end of the run and returns the result of each part.
    """
    now, expired = clock(), DeadlineExceeded("the deadline was over before the request's turn came")
    results: list[Result] = [expired] * len(parts)
    # The parts before their deadline, their indexes, and the sum of their samples.
    live, live_parts, samples = list[int](), list[JobRequest](), 0
    for index, part in enumerate(parts):
        if part.deadline_s > now:
            live.append(index)
            live_parts.append(part)
            samples += part.samples
    if not live:
        return lambda: results
    if len(live) < len(parts):
        inputs_by_part = split_rows(inputs, parts)
        inputs = _concatenate([inputs_by_part[i] for i in live])
    try:
        running = submit(inputs)
    except EdlError as error:  # `finish` handles it
        running = partial(_raise, error.with_traceback(None))

    def finish() -> list[Result]:
        try:
            outputs, device_s = running()
        except EdlError as error:
            if len(live) == 1:
                # Without its traceback: the frames in it refer to the arrays.
                results[live[0]] = error.with_traceback(None)
                return results
            # Run each request alone, so that an error reaches only the request that caused it.
            runs = [
                submit_parts(submit, rows, [part], clock)
                for part, rows in zip(live_parts, split_rows(inputs, live_parts), strict=True)
            ]
            for i, run in zip(live, runs, strict=True):
                (results[i],) = run()
            return results
        split_outputs = split_rows(outputs, live_parts)
        for i, part, part_outputs in zip(live, live_parts, split_outputs, strict=True):
            results[i] = _checked(part_outputs, part, device_s * part.samples / samples)
        return results

    return finish


def _raise(error: EdlError) -> Any:
    raise error


def _checked(outputs: Mapping[str, Array], part: JobRequest, device_seconds: float) -> Result:
    try:
        check_finite({output.name: outputs[output.name] for output in part.outputs})
        return RequestLabels(encode_outputs(outputs, part.outputs), device_seconds)
    except EdlError as error:
        return error.with_traceback(None)


def split_rows(
    arrays: Mapping[str, Array], parts: Sequence[JobRequest]
) -> list[Mapping[str, Array]]:
    """Return the rows of each part, as views."""
    if len(parts) == 1:
        return [arrays]
    rows_by_part, start = list[Mapping[str, Array]](), 0
    for part in parts:
        stop = start + part.samples
        rows_by_part.append({name: array[start:stop] for name, array in arrays.items()})
        start = stop
    return rows_by_part


def _concatenate(parts: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([arrays[name] for arrays in parts]) for name in parts[0]}
