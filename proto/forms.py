"""Forms of labels in messages: how a request names a form, and how the answer describes it.

A request names the form of an output by two parameters of its `InferRequestedOutputTensor`. The
same parameters of the request itself apply to every output that has neither.

```
form          "float32" | "bfloat16" | "float16" | "topk:K"; missing: as the model returns it
temperature   T > 0: send softmax(logits / T) over the last axis; if the output is probabilities p,
              the logits are log p
```

The answer repeats both parameters. With `float32`, `bfloat16` and `float16`, the output keeps its
name and has another datatype. With `topk:K`, an output [N, ..., C] becomes three outputs, which
also have the parameter `classes` (C):

```
NAME.values    [N, ..., K]  FP16, or FP32 if a value exceeds FP16: the K largest, descending
NAME.indices   [N, ..., K]  UINT8, UINT16 or UINT32, the smallest that holds C - 1: their classes
NAME.tail      [N, ...]     FP32: the mass of the other C - K classes
```

Of equal values, the lower class comes first. With a temperature, `tail` is the sum of the omitted
probabilities. Without one, it is the logarithm of the sum of the exponentials of the omitted
logits, so `softmax([values, tail])` is exact at temperature 1, apart from rounding. If the output
is probabilities p, `topk:K` without a temperature sends the logits log p.

A server that does not know these parameters ignores them and answers in its own datatype.

Encoding and decoding are vectorized: numpy without loops over rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

import ml_dtypes
import numpy as np

from ..runtime.errors import RequestRefused, UsageError, WireError
from .arena import Array
from .datatypes import MAX_MESSAGE_BYTES, Parameter, datatype_of

#: The dtype of a form with all classes.
DenseDtype = Literal["float32", "bfloat16", "float16"]
#: The meaning of an output's numbers along its last axis. Sigmoid outputs are "other".
OutputKind = Literal["logits", "probabilities", "log-probabilities", "other"]

OUTPUT_KINDS: Final[tuple[OutputKind, ...]] = get_args(OutputKind)
#: Values of the reader's setting `soft_label_is`.
SoftLabelIs = Literal["logits", "probabilities"]
#: Published kinds that fit each value of `soft_label_is`; log-probabilities are valid logits.
FITTING_KINDS: Final[Mapping[SoftLabelIs, tuple[OutputKind, ...]]] = {
    "logits": ("logits", "log-probabilities"),
    "probabilities": ("probabilities",),
}
FORM: Final = "form"
TEMPERATURE: Final = "temperature"
CLASSES: Final = "classes"

_DENSE_DTYPES: Final[tuple[DenseDtype, ...]] = get_args(DenseDtype)
_TOP_K: Final = "topk:"


@dataclass(frozen=True, slots=True)
class LabelForm:
    """The form of one output.

    Attributes:
        dtype: dtype of a form with all classes; None for `topk`.
        k: number of classes that `topk` keeps; 0 for the other forms.
        temperature: temperature of the softmax that is applied first; None: no softmax.
    """

    dtype: DenseDtype | None = "float32"
    k: int = 0
    temperature: float | None = None

    @classmethod
    def parse(cls, text: str | None, temperature: float | None = None) -> Self | None:
        """Parse a form; return None if both are None. A temperature alone means float32.

        Raises:
            UsageError: the form or the temperature is invalid.
        """
        if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
            raise UsageError(f"a temperature is a finite number above 0, not {temperature}")
        if text is None:
            return None if temperature is None else cls(temperature=temperature)
        for dtype in _DENSE_DTYPES:
            if text == dtype:
                return cls(dtype, temperature=temperature)
        k = text.removeprefix(_TOP_K)
        if k == text or not (k.isascii() and k.isdecimal() and len(k) < 10 and int(k)):
            shortened = text if len(text) <= 40 else text[:40] + "…"
            raise UsageError(
                f"there is no form {shortened!r}: name one of {', '.join(_DENSE_DTYPES)}, or topk:K"
                " with K the number of classes to keep"
            )
        return cls(None, int(k), temperature)

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, Parameter], defaults: Mapping[str, Parameter] = {}
    ) -> Self | None:
        """Read the form from an output's parameters, or from `defaults` if they have neither key.

        Raises:
            UsageError: a parameter has the wrong type or an impossible value.
        """
        source = parameters if FORM in parameters or TEMPERATURE in parameters else defaults
        text, temperature = source.get(FORM), source.get(TEMPERATURE)
        if text is not None and not isinstance(text, str):
            raise UsageError(f"the parameter {FORM!r} is text, as 'topk:20', not {text!r}")
        if isinstance(temperature, (bool, str)):
            raise UsageError(f"the parameter {TEMPERATURE!r} is a number, not {temperature!r}")
        try:
            return cls.parse(text, None if temperature is None else float(temperature))
        except OverflowError:  # JSON has integers of any size
            raise UsageError(
                f"a temperature is a finite number above 0, not {temperature!r:.20}..."
            ) from None

    def parameters(self, classes: int | None = None) -> dict[str, Parameter]:
        """Return the parameters of this form; an answer in `topk` also states its `classes`."""
        named: dict[str, Parameter] = {FORM: str(self)}
        if self.temperature is not None:
            named[TEMPERATURE] = self.temperature
        if classes is not None and self.k:
            named[CLASSES] = classes
        return named

    def parts(self, name: str) -> tuple[str, ...]:
        """Return the names of the outputs that represent the output `name`."""
        if not self.k:
            return (name,)
        return f"{name}.values", f"{name}.indices", f"{name}.tail"

    def __str__(self) -> str:
        return self.dtype or f"{_TOP_K}{self.k}"


_DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
FLOATS = ("FP16", "FP32", "FP64", "BF16")
_HALF_MAX = float(np.finfo(np.float16).max)
#: How far the sum of probabilities may be from 1 after rounding to 16 bits.
SUM_TOLERANCE = 2e-2
#: Replaces a probability of 0, which has no logarithm.
_TINY = np.finfo(np.float32).tiny


def check_form(
    name: str, datatype: str, shape: Sequence[int], form: LabelForm, kind: str = ""
) -> None:
    """Raise RequestRefused if an output of `datatype` and `shape` cannot be sent in `form`.

    Args:
        name: name of the output.
        datatype: name in the Open Inference Protocol.
        shape: dimensions, the batch first; -1 for an unknown one.
        form: the requested form.
        kind: an `OutputKind`; empty if unknown.
    """
    if datatype not in FLOATS:
        requested = f"the form {form}" if form.temperature is None else "a temperature"
        raise RequestRefused(
            f"output {name!r} is {datatype}, and {requested} is for floats: request it only for"
            " other outputs, by their names"
        )
    if not form.k and form.temperature is None:
        return
    what = f"topk:{form.k}" if form.k else "a softmax"
    if kind == "other" and form.temperature is not None:
        raise RequestRefused(
            f"output {name!r} is neither logits nor probabilities over classes, so a temperature"
            f" has no meaning: request it without a temperature, or, if the output is logits, start"
            f" its teacher with --output {name}=logits"
        )
    if len(shape) < 2 or shape[-1] == 0:
        raise RequestRefused(f"output {name!r} has shape {list(shape)}, no classes for {what}")
    if form.k and shape[-1] < 0:
        raise RequestRefused(
            f"output {name!r} leaves the number of its classes open, so there is no {what} of it:"
            " request float16, or export the model with that dimension fixed"
        )
    if form.k >= shape[-1] > 0:
        raise RequestRefused(
            f"output {name!r} has {shape[-1]} classes, so {what} leaves none out: K must be smaller"
        )


def kind_of(arrays: Sequence[Array]) -> OutputKind:
    """Classify the numbers of an output.

    Args:
        arrays: finite outputs for different batches, [N, ..., C].

    Returns:
        "probabilities" if all numbers are from 0 to 1 and each row sums to 1; "log-probabilities"
        if this is true of the exponentials; "other" for integers, without rows, for fewer than two
        classes, if C differs, and if all numbers are from 0 to 1 but rows do not sum to 1 (as of a
        sigmoid); else "logits".
    """
    has_rows = all(a.ndim > 1 and a.shape[-1] > 1 and a.dtype.kind in "fV" for a in arrays)
    if not has_rows or len({a.shape[-1] for a in arrays}) > 1:
        return "other"
    rows = np.concatenate([a.reshape(-1, a.shape[-1]).astype(np.float64) for a in arrays])
    if not len(rows):
        return "other"
    if rows.min() >= 0 and rows.max() <= 1 + SUM_TOLERANCE:
        return "probabilities" if _sum_to_1(rows) else "other"
    if rows.max() <= SUM_TOLERANCE and _sum_to_1(np.exp(rows)):
        return "log-probabilities"
    return "logits"


def _sum_to_1(rows: Array) -> bool:
    return bool(np.all(np.abs(rows.sum(axis=-1) - 1) <= SUM_TOLERANCE))


def encode(name: str, array: Array, form: LabelForm, kind: str = "") -> dict[str, Array]:
    """Encode one output in a form.

    Args:
        name: name of the output.
        array: finite floats [N, ..., C].
        form: the requested form.
        kind: an `OutputKind`; empty: it is derived from the values.

    Returns:
        The arrays to send, by the names of `LabelForm.parts`.

    Raises:
        RequestRefused: the output cannot be encoded in this form, or has values beyond its range.
    """
    check_form(name, datatype_of(array.dtype), array.shape, form, kind)
    needs_logits = form.k or form.temperature is not None
    if needs_logits and (kind or kind_of([array])) == "probabilities":
        array = np.log(np.maximum(_cast(name, array, "float32"), _TINY))
    if form.temperature is not None:
        array = softmax(_cast(name, array, "float32"), form.temperature)
    return encode_after_softmax(name, array, form)


def encode_after_softmax(name: str, rows: Array, form: LabelForm) -> dict[str, Array]:
    """Encode one output; the softmax of the form, if there is one, has already been applied.

    Args:
        name: name of the output.
        rows: finite floats [N, ..., C]; probabilities if the form has a temperature.
        form: the requested form.

    Returns:
        The arrays to send, by the names of `LabelForm.parts`.

    Raises:
        RequestRefused: the output cannot be encoded in this form, or has values beyond its range.
    """
    check_form(name, datatype_of(rows.dtype), rows.shape, form)
    if form.dtype is not None:
        return {name: _cast(name, rows, form.dtype)}
    flat = _cast(name, rows, "float32").reshape(-1, rows.shape[-1])
    values, indices = top_k(flat, form.k)
    rest = flat.copy()
    np.put_along_axis(rest, indices, 0.0 if form.temperature else -np.inf, axis=-1)
    tail = rest.sum(axis=-1) if form.temperature else _log_sum_exp(rest)
    dtype = np.float16 if np.abs(values).max(initial=0.0) <= _HALF_MAX else np.float32
    arrays = (values.astype(dtype), indices.astype(np.min_scalar_type(flat.shape[-1] - 1)), tail)
    outer = rows.shape[:-1]
    shapes = ((*outer, form.k), (*outer, form.k), outer)
    parts = zip(form.parts(name), arrays, shapes, strict=True)
    return {part: encoded.reshape(shape) for part, encoded, shape in parts}


def decode(
    name: str, outputs: Mapping[str, Array], form: LabelForm, parameters: Mapping[str, Parameter]
) -> Array:
    """Decode one output to a dense float32 array.

    The classes that `topk` omitted share the tail evenly: each of the C - K classes gets the
    probability `tail / (C - K)` or the logit `tail - log(C - K)`. The largest class stays the
    largest. Apart from rounding, the probabilities, or the softmax of the logits at temperature 1,
    are exact for each kept class, and for the omitted classes together.

    Args:
        name: name of the output.
        outputs: arrays of an answer by name, including the parts of this output.
        form: the form that the answer states.
        parameters: parameters of the output in the answer.

    Returns:
        float32 [N, ..., C].

    Raises:
        WireError: the parts contradict each other.
    """
    if form.dtype is not None:
        array = outputs[name]
        if array.dtype != _DTYPES[form.dtype]:
            raise WireError(f"output {name!r} is {array.dtype}, but its parameters state {form}")
        return array.astype(np.float32, copy=False)
    values, indices, tail = check_parts(name, outputs, form, parameters)
    classes = int(parameters[CLASSES])
    omitted = classes - form.k
    fill = tail / omitted if form.temperature else tail - np.log(np.float32(omitted))
    # The fill must not exceed a kept value, although values may be rounded to float16, and must be
    # below the largest one, even if all kept values are equal.
    below = np.nextafter(values.max(axis=-1), np.float32(-np.inf))
    fill = np.minimum(np.minimum(fill, values.min(axis=-1)), below)
    dense = np.empty((*tail.shape, classes), np.float32)
    dense[...] = fill[..., np.newaxis]
    np.put_along_axis(dense, indices, values, axis=-1)
    return dense


def check_parts(
    name: str, outputs: Mapping[str, Array], form: LabelForm, parameters: Mapping[str, Parameter]
) -> tuple[Array, Array, Array]:
    """Check the parts of a `topk` output against each other.

    Returns:
        values float32 [N, ..., K], indices int64 [N, ..., K], tail float32 [N, ...].

    Raises:
        WireError: `encode` cannot have produced them.
    """
    values, indices, tail = (outputs[part] for part in form.parts(name))
    classes = parameters.get(CLASSES)
    shape = values.shape
    if values.dtype not in _DTYPES.values() or tail.dtype.kind != "f" or tail.dtype.itemsize > 4:
        raise _contradiction(name, f"values of {values.dtype}, a tail of {tail.dtype}")
    if indices.dtype.kind != "u":
        raise _contradiction(name, f"indices of {indices.dtype}")
    if len(shape) < 2 or shape[-1] != form.k or indices.shape != shape or tail.shape != shape[:-1]:
        raise _contradiction(name, f"shapes {shape}, {indices.shape} and {tail.shape} for {form}")
    if isinstance(classes, bool) or not isinstance(classes, int) or classes <= form.k:
        raise _contradiction(name, f"{classes!r} classes for {form}")
    if classes > np.iinfo(indices.dtype).max + 1 or tail.size * classes * 4 > MAX_MESSAGE_BYTES:
        raise _contradiction(
            name, f"{classes} classes, more than the indices or a message can hold"
        )
    ordered = np.sort(indices.astype(np.int64), axis=-1)
    if ordered[..., -1:].max(initial=0) >= classes or (ordered[..., 1:] == ordered[..., :-1]).any():
        raise _contradiction(name, f"an index occurs twice, or is {classes} or more")
    if form.temperature and tail.min(initial=0.0) < 0:
        raise _contradiction(name, "a negative tail")
    return values.astype(np.float32), indices.astype(np.int64), tail.astype(np.float32)


def softmax(logits: Array, temperature: float) -> Array:
    """Return the probabilities of float32 logits [..., C] after division by `temperature`."""
    with np.errstate(over="ignore"):  # an overflow gives -inf, and the class gets probability 0
        rows = logits - logits.max(axis=-1, keepdims=True)
        rows /= max(np.float32(temperature), _TINY)  # a tiny temperature is 0 in float32
    np.exp(rows, out=rows)
    rows /= rows.sum(axis=-1, keepdims=True)
    probabilities: Array = rows
    return probabilities


def top_k(rows: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` largest values of each row in descending order; ties by ascending index.

    Args:
        rows: float32 [R, C], without NaN.
        k: at least 1, below C.

    Returns:
        values float32 [R, k], indices int64 [R, k].
    """
    chosen = np.argpartition(rows, -k, axis=-1)[:, -k:]
    values = np.take_along_axis(rows, chosen, axis=-1)
    least = values.min(axis=-1, keepdims=True)
    # If more than k values of a row are at least the smallest chosen one, argpartition chose
    # arbitrarily among equal values: sort these rows.
    tied = np.count_nonzero(rows >= least, axis=-1) > k
    if tied.any():
        chosen[tied] = np.argsort(-rows[tied], axis=-1, kind="stable")[:, :k]
    chosen.sort(axis=-1)
    values = np.take_along_axis(rows, chosen, axis=-1)
    order = np.argsort(-values, axis=-1, kind="stable")
    return np.take_along_axis(values, order, -1), np.take_along_axis(chosen, order, -1)


def _log_sum_exp(rows: Array) -> Array:
    greatest = rows.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        total: Array = np.log(np.exp(rows - greatest).sum(axis=-1))
    total += greatest[..., 0]
    return total


def _cast(name: str, array: Array, dtype: str) -> Array:
    if array.dtype == _DTYPES[dtype]:
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(_DTYPES[dtype])
    if not np.isfinite(cast).all():
        raise RequestRefused(
            f"output {name!r} holds values beyond the range of {dtype}: request another form"
        )
    return cast


def _contradiction(name: str, what: str) -> WireError:
    return WireError(f"output {name!r} has parts that do not go together: {what}")
