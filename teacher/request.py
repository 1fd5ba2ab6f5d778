"""A request as it comes: what it asks for, whether the model takes it, and until when."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ..errors import (
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
from ..proto.arena import Arena, Array, ArrayRef, Layouts
from ..proto.datatypes import Parameter, TensorSpec
from ..proto.forms import LabelForm, check_form, encode
from ..proto.tensors import InferRequest, datatype_of
from .backends import ModelSpec


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A batch of one caller.

    Attributes:
        inputs: by name, equally long along axis 0, at least 1.
        outputs: what to answer with.
        deadline_s: on the monotonic clock, which all processes of a machine share: from then on
            nobody wants the answer.
        refs: where the inputs lie in the predictors' memory, in their order; None: elsewhere.
        samples: in the batch.
    """

    inputs: Mapping[str, Array]
    outputs: Sequence[RequestedOutput]
    deadline_s: float = math.inf
    refs: tuple[ArrayRef, ...] | None = None
    samples: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", len(next(iter(self.inputs.values()))))

    @property
    def shape(self) -> Hashable:
        """Equal for requests that may be labelled in one go: names, dtypes, trailing dimensions."""
        return frozenset(
            (name, array.dtype.str, array.dtype.name, array.shape[1:])
            for name, array in self.inputs.items()
        )


class TeacherOverloaded(RateLimited):
    """Every slot is taken."""


class RequestTooLarge(RateLimited):
    """A request above what its method takes."""


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
#: Every word there is, so that a counter stands at 0 before it first happens.
REASONS: Final = tuple(dict.fromkeys(_REASONS.values()))


def reason_of(error: EdlError) -> str:
    """The word for `error`; empty when nothing was refused: it failed, and may succeed later."""
    return next((_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS), "")


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """One output that is asked for, of this kind; `form` None: as the model gives it."""

    name: str
    form: LabelForm | None = None
    kind: str = ""

    def parameters(self, spec: TensorSpec) -> dict[str, dict[str, Parameter]]:
        """What the answer's outputs say of their form, by their names."""
        if self.form is None:
            return {}
        named = self.form.parameters(spec.shape[-1])
        return dict.fromkeys(self.form.parts(self.name), named)

    def to_json(self) -> list[Any]:
        if self.form is None:
            return [self.name, None, None, self.kind]
        return [self.name, str(self.form), self.form.temperature, self.kind]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        name, form, temperature, kind = value
        return cls(name, LabelForm.parse(form, temperature), kind)


def encode_outputs(
    outputs: Mapping[str, Array], wanted: Iterable[RequestedOutput]
) -> dict[str, Array]:
    """The arrays that travel, in the order in which they are wanted.

    Args:
        outputs: what the model gives, finite.
        wanted: some of these.

    Raises:
        RequestRefused: an output holds values that its form cannot, or a part of one has the name
            of another.
    """
    travel: dict[str, Array] = {}
    for one in wanted:
        array, form = outputs[one.name], one.form
        arrays = {one.name: array} if form is None else encode(one.name, array, form, one.kind)
        if twice := travel.keys() & arrays.keys():
            raise RequestRefused(
                f"two outputs would travel as {min(twice)!r}: ask for {one.name!r} in another form"
            )
        travel |= arrays
    return travel


def form_parameters(
    wanted: Iterable[RequestedOutput], spec: ModelSpec
) -> dict[str, dict[str, Parameter]]:
    """What an answer says of its outputs' forms, by the names of what travels."""
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    return {
        part: form for one in wanted for part, form in one.parameters(outputs[one.name]).items()
    }


#: The only version of a model that a teacher serves; a request may also leave it open.
MODEL_VERSION = "1"
_MOST_US = 86_400_000_000


def check_model(name: str, version: str, served: str) -> None:
    """Raise RequestRefused unless `name` and `version` are those of the model `served`."""
    if name != served:
        raise RequestRefused(f"unknown model {name!r}: this teacher serves {served!r}")
    if version not in ("", MODEL_VERSION):
        raise RequestRefused(
            f"unknown version {version!r} of model {served!r}: expected {MODEL_VERSION!r} or none"
        )


def check_request(request: InferRequest, spec: ModelSpec) -> tuple[RequestedOutput, ...]:
    """Hold inputs and wanted outputs against `spec`.

    Returns:
        The outputs to answer with, in the order asked for; all where none is named.

    Raises:
        RequestRefused: a name, dtype or shape is not the model's, the batch is empty, or an output
            cannot have the form that is asked for.
    """
    _check_names("input", request.inputs, [tensor.name for tensor in spec.inputs])
    rows: dict[str, int] = {}
    for tensor in spec.inputs:
        array = request.inputs[tensor.name]
        _check_input(tensor, array)
        rows[tensor.name] = len(array)
    if len(set(rows.values())) > 1:
        raise RequestRefused(f"the inputs differ in their first dimension, the batch: {rows}")
    if 0 in rows.values():
        raise RequestRefused("the batch is empty: expected at least 1 sample, got 0")
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    names = _wanted(request.outputs, list(outputs))
    return tuple(
        RequestedOutput(name, _form(request, outputs[name]), outputs[name].kind) for name in names
    )


def deadline_of(request: InferRequest, call_s: float | None, now_s: float) -> float:
    """Until when the answer is wanted, on the monotonic clock; infinity: at any time.

    Args:
        request: its parameter `timeout` counts: microseconds, 0 for none, as Triton has it.
        call_s: the deadline of the call that it came by; the earlier one counts.
        now_s: when it came.

    Returns:
        At most a day from now, so that everything that waits can wait for it.

    Raises:
        RequestRefused: `timeout` is no such number.
    """
    timeout_us = request.parameters.get("timeout", 0)
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or timeout_us < 0:
        raise RequestRefused(
            f"the parameter 'timeout' is a whole number of microseconds, not {timeout_us!r:.40}"
        )
    if not timeout_us and call_s is None:
        return math.inf
    own_s = now_s + min(timeout_us or _MOST_US, _MOST_US) / 1e6
    return own_s if call_s is None else min(own_s, call_s)


def _check_input(tensor: TensorSpec, array: Array) -> None:
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


def _check_names(what: str, given: Iterable[str], expected: list[str]) -> None:
    if (names := list(given)) == expected:
        return
    unknown = [name for name in names if name not in expected]
    missing = [name for name in expected if name not in names]
    if unknown or missing:
        problem = f"unknown {what} {unknown[0]!r}" if unknown else f"missing {what} {missing[0]!r}"
        raise RequestRefused(f"{problem}: expected {expected}, got {names}")


def _wanted(asked: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
    for name in asked:
        if name not in known:
            raise RequestRefused(f"unknown output {name!r}: expected some of {known}")
    if len(set(asked)) < len(asked):
        raise RequestRefused(f"an output is asked for twice: got {list(asked)}")
    return asked or tuple(known)


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
    """Room for the inputs of one request.

    Args:
        memory: the predictors'.
        layouts: dtype and shape of each input.

    Attributes:
        arrays: the inputs, to be filled.
        refs: where they lie in `memory`.

    Raises:
        OSError: there is no memory.
    """

    def __init__(self, memory: Arena, layouts: Layouts) -> None:
        self._memory = memory
        self._record = memory.allocate(layouts)
        self._is_taken_care_of = False
        self.refs = self._record.arrays
        self.arrays: list[Array] = [memory.get(ref) for ref in self.refs]

    def submitted(self, labels: Future[Any]) -> None:
        """A predictor may read them until `labels` are there, whether or not anybody waits."""
        self._is_taken_care_of = True
        labels.add_done_callback(self._free)

    def close(self) -> None:
        """The request is over. Idempotent; by the thread that calls `submitted`."""
        if not self._is_taken_care_of:
            self._is_taken_care_of = True
            self._free()

    def _free(self, _: object = None) -> None:
        self._memory.free(self._record.offset)
