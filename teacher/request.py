"""A request for labels: its requested outputs, checks against the model, and its deadline."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from ..proto.arena import Arena, Array, ArrayRef, Layouts
from ..proto.datatypes import Parameter, TensorSpec, count_not_finite, datatype_of
from ..proto.forms import LabelForm, check_form, encode
from ..proto.tensors import InferRequest
from ..runtime.errors import (
    BadAnswer,
    EdlError,
    Forbidden,
    RateLimited,
    RequestRefused,
    Unauthenticated,
    UsageError,
    VersionMismatch,
    WireError,
    WrongInstance,
)
from .backends import ModelSpec


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A batch of one caller.

    Attributes:
        inputs: arrays by name, of equal length (at least 1) along axis 0.
        outputs: the requested outputs.
        deadline_s: on the monotonic clock, which all processes of a machine share.
        refs: locations of the inputs in the predictors' memory, in the order of `inputs`; None if
            they are elsewhere.
        samples: number of samples.
    """

    inputs: Mapping[str, Array]
    outputs: Sequence[RequestedOutput]
    deadline_s: float = math.inf
    refs: tuple[ArrayRef, ...] | None = None
    samples: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", len(next(iter(self.inputs.values()))))

    @property
    def merge_key(self) -> Hashable:
        """Names, dtypes and row shapes of the inputs; requests with equal keys can share a run."""
        return frozenset(
            (name, array.dtype.str, array.dtype.name, array.shape[1:])
            for name, array in self.inputs.items()
        )


class TeacherOverloaded(RateLimited):
    """Every slot is taken."""


class RequestTooLarge(RateLimited):
    """The request has more bytes than its method allows."""


_REASONS: Final[dict[type[Exception], str]] = {
    Unauthenticated: "unauthenticated",
    Forbidden: "forbidden",
    VersionMismatch: "version",
    WireError: "malformed",
    RequestRefused: "malformed",
    WrongInstance: "wrong_instance",
    TeacherOverloaded: "overloaded",
    RequestTooLarge: "too_large",
    RateLimited: "rate_limited",
}
#: All reasons, so that their counters start at 0.
REASONS: Final = tuple(dict.fromkeys(_REASONS.values()))


def reason_of(error: EdlError) -> str:
    """Return the reason of a refusal, for metrics; empty if the error is not a refusal."""
    return next((_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS), "")


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """One requested output.

    Attributes:
        name: of the output.
        form: encoding of the labels; None: as the model returns them.
        kind: `OutputKind` of the output; empty if unknown.
    """

    name: str
    form: LabelForm | None = None
    kind: str = ""


def check_finite(outputs: Mapping[str, Array]) -> None:
    """Raise BadAnswer if an output of floats holds NaN or infinity."""
    for name, array in outputs.items():
        if bad := count_not_finite(array):
            raise BadAnswer(
                f"output {name!r} holds {bad} NaN or infinite values of {array.size}", name
            )


def encode_outputs(
    outputs: Mapping[str, Array], requested: Iterable[RequestedOutput]
) -> dict[str, Array]:
    """Encode outputs in their forms; return the arrays to send by name, in the requested order.

    Args:
        outputs: arrays of the model by name, all finite.
        requested: the requested outputs.

    Raises:
        RequestRefused: a value does not fit its form, or parts of two outputs have the same name.
    """
    sent: dict[str, Array] = {}
    for output in requested:
        array, form = outputs[output.name], output.form
        arrays = (
            {output.name: array} if form is None else encode(output.name, array, form, output.kind)
        )
        if duplicates := sent.keys() & arrays.keys():
            raise RequestRefused(
                f"two outputs would be sent as {min(duplicates)!r}: ask for {output.name!r} in "
                "another form"
            )
        sent |= arrays
    return sent


def form_parameters(
    requested: Iterable[RequestedOutput], spec: ModelSpec
) -> dict[str, dict[str, Parameter]]:
    """Return the form of each sent array as parameters of an answer, by name of the array."""
    classes = {tensor.name: tensor.shape[-1] for tensor in spec.outputs}
    return {
        part: output.form.parameters(classes[output.name])
        for output in requested
        if output.form is not None
        for part in output.form.parts(output.name)
    }


#: The only version of a model that a teacher serves; requests may omit it.
MODEL_VERSION = "1"
_MAX_TIMEOUT_US = 86_400_000_000


def check_model(name: str, version: str, served: str) -> None:
    """Raise RequestRefused unless `name` and `version` are those of the served model."""
    if name != served:
        raise RequestRefused(f"unknown model {name!r}: this teacher serves {served!r}")
    if version not in ("", MODEL_VERSION):
        raise RequestRefused(
            f"unknown version {version!r} of model {served!r}: expected {MODEL_VERSION!r} or none"
        )


def check_request(request: InferRequest, spec: ModelSpec) -> tuple[RequestedOutput, ...]:
    """Check the names of inputs, and the requested outputs, against `spec`.

    Returns:
        The requested outputs in their order; all if none is named.

    Raises:
        RequestRefused: a name does not fit the model, or an output cannot have the requested form.
    """
    given, expected = list(request.inputs), [tensor.name for tensor in spec.inputs]
    unknown = [name for name in given if name not in expected]
    missing = [name for name in expected if name not in given]
    if unknown or missing:
        problem = f"unknown input {unknown[0]!r}" if unknown else f"missing input {missing[0]!r}"
        raise RequestRefused(f"{problem}: expected {expected}, got {given}")
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    names = _requested_outputs(request.outputs, list(outputs))
    return tuple(
        RequestedOutput(name, _form(request, outputs[name]), outputs[name].kind) for name in names
    )


def check_inputs(inputs: Mapping[str, Array], spec: ModelSpec) -> None:
    """Check dtypes and shapes of inputs; `check_request` must have checked their names.

    Raises:
        RequestRefused: a dtype or shape does not fit the model, or the batch is empty.
    """
    rows: dict[str, int] = {}
    for tensor in spec.inputs:
        array = inputs[tensor.name]
        datatype, shape = datatype_of(array.dtype), array.shape
        if datatype != tensor.datatype:
            raise RequestRefused(
                f"input {tensor.name!r} has datatype {datatype}, expected {tensor.datatype}"
            )
        if not tensor.admits(shape):
            raise RequestRefused(
                f"input {tensor.name!r} has shape {list(shape)}, expected {list(tensor.shape)} "
                "(-1 stands for any size)"
            )
        rows[tensor.name] = shape[0]
    if len(set(rows.values())) > 1:
        raise RequestRefused(f"the inputs differ in their first dimension, the batch: {rows}")
    if 0 in rows.values():
        raise RequestRefused("the batch is empty: expected at least 1 sample, got 0")


def deadline_of(request: InferRequest, call_deadline_s: float | None, now_s: float) -> float:
    """Return the deadline of a request, in seconds on the monotonic clock.

    Args:
        request: its parameter `timeout` is in microseconds, 0 for none, as in Triton.
        call_deadline_s: the deadline of its call; None for none. The earlier deadline counts.
        now_s: the arrival of the request. Both times are on the monotonic clock.

    Returns:
        Infinity for no deadline; else at most a day from now, which every wait can handle.

    Raises:
        RequestRefused: `timeout` is negative or no whole number.
    """
    timeout_us = request.parameters.get("timeout", 0)
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or timeout_us < 0:
        raise RequestRefused(
            "the parameter 'timeout' must be a whole number of microseconds, at least 0, not "
            f"{timeout_us!r:.40}"
        )
    if not timeout_us and call_deadline_s is None:
        return math.inf
    own_s = now_s + min(timeout_us or _MAX_TIMEOUT_US, _MAX_TIMEOUT_US) / 1e6
    return own_s if call_deadline_s is None else min(own_s, call_deadline_s)


def _requested_outputs(requested: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
    for name in requested:
        if name not in known:
            raise RequestRefused(f"unknown output {name!r}: expected some of {known}")
    if len(set(requested)) < len(requested):
        raise RequestRefused(f"an output is asked for twice: got {list(requested)}")
    return requested or tuple(known)


def _form(request: InferRequest, output: TensorSpec) -> LabelForm | None:
    own = request.output_parameters.get(output.name, {})
    try:
        form = LabelForm.from_parameters(own, request.parameters)
    except UsageError as error:
        raise RequestRefused(f"output {output.name!r}: {error}") from None
    if form is not None:
        check_form(output.name, output.datatype, output.shape, form, output.kind)
    return form


class InputBuffers:
    """Shared memory for the inputs of one request.

    Args:
        memory: the memory from which predictors read inputs.
        layouts: dtype and shape of each input.

    Attributes:
        arrays: the inputs, to be filled.
        refs: their locations in `memory`.

    Raises:
        OSError: the system provides no more shared memory.
    """

    def __init__(self, memory: Arena, layouts: Layouts) -> None:
        self._memory = memory
        self._record = memory.allocate(layouts)
        self._will_be_freed = False
        self.refs = self._record.arrays
        self.arrays: list[Array] = [*map(memory.get, self.refs)]

    def free_after(self, labels: Future[Any]) -> None:
        """Free the memory when `labels` are done; a predictor may read it until then."""
        self._will_be_freed = True
        labels.add_done_callback(self._free)

    def close(self) -> None:
        """Free the memory now, unless `free_after` was called. Idempotent.

        Call both in the same thread.
        """
        if not self._will_be_freed:
            self._will_be_freed = True
            self._free()

    def _free(self, _: object = None) -> None:
        self._memory.free(self._record.offset)
