"""Holds a request against what the model takes; a refusal names what was expected and given."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import RequestRefused, UsageError
from ..proto.form_arrays import check_form
from ..proto.forms import Form
from ..proto.tensors import InferRequest, datatype_of
from .model import ModelSpec, TensorSpec
from .wanted import Wanted

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


def check_request(request: InferRequest, spec: ModelSpec) -> tuple[Wanted, ...]:
    """Hold inputs and wanted outputs against `spec`.

    Returns:
        The outputs to answer with, in the order asked for; all where none is named.

    Raises:
        RequestRefused: a name, dtype or shape is not the model's, the batch is empty, or an output
            cannot have the form that is asked for.
    """
    _check_names("input", request.inputs, [tensor.name for tensor in spec.inputs])
    for tensor in spec.inputs:
        _check_input(tensor, datatype_of(request.inputs[tensor.name].dtype), request)
    rows = {name: len(array) for name, array in request.inputs.items()}
    if len(set(rows.values())) > 1:
        raise RequestRefused(f"the inputs differ in their first dimension, the batch: {rows}")
    if 0 in rows.values():
        raise RequestRefused("the batch is empty: expected at least 1 sample, got 0")
    names = _wanted(request.outputs, [tensor.name for tensor in spec.outputs])
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    return tuple(Wanted(name, _form(request, outputs[name]), outputs[name].kind) for name in names)


def deadline_of(request: InferRequest, call_s: float | None, now_s: float) -> float | None:
    """Until when the answer is wanted, on the monotonic clock; None: at any time.

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
        return None
    own_s = now_s + min(timeout_us or _MOST_US, _MOST_US) / 1e6
    return own_s if call_s is None else min(own_s, call_s)


def _check_input(tensor: TensorSpec, datatype: str, request: InferRequest) -> None:
    shape = request.inputs[tensor.name].shape
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
    names = list(given)
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


def _form(request: InferRequest, output: TensorSpec) -> Form | None:
    own = request.output_parameters.get(output.name, {})
    try:
        form = Form.named_by(own, request.parameters)
    except UsageError as error:
        raise RequestRefused(f"output {output.name!r}: {error}") from None
    if form is not None:
        check_form(output.name, output.datatype, output.shape, form, output.kind)
    return form
