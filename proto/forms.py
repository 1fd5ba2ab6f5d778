"""In which form an output travels: how a request names it, and how its answer says so.

A requested output names its form by two parameters of its `InferRequestedOutputTensor`; a request
that has them among its own parameters means every output that names none.

```
form          "float32" | "bfloat16" | "float16" | "topk:K"; absent: as the model gives it
temperature   T > 0: send softmax(logits / T), over the last axis, instead; of an output that is
              probabilities p, log p are the logits
```

An answer's output in a form bears both parameters again. Of `float32`, `bfloat16` and `float16` the
output has its own name and another datatype. Of `topk:K`, for an output [N, ..., C], three outputs
stand in its place, and bear the parameter `classes` (C) besides:

```
NAME.values    [N, ..., K]  FP16, or FP32 where one is beyond it: the K greatest, the greatest first
NAME.indices   [N, ..., K]  UINT8, UINT16 or UINT32, the smallest that holds C - 1: their classes
NAME.tail      [N, ...]     FP32: the mass of the other C - K classes
```

Of equal values the one of the lower class comes first. With a temperature, `tail` is the sum of the
probabilities that are left out; without one it is the logarithm of the sum of the exponentials of
the logits that are left out, so that `softmax([values, tail])` is exact at temperature 1. Of
probabilities p without a temperature log p travel, which are logits.

A server that knows nothing of this ignores the parameters and answers in its own datatype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from ..errors import UsageError

Plain = Literal["float32", "bfloat16", "float16"]
#: What the numbers of an output are, along its last axis. Sigmoid outputs are "other".
OutputKind = Literal["logits", "probabilities", "log-probabilities", "other"]
Parameter = bool | int | float | str

OUTPUT_KINDS: Final[tuple[OutputKind, ...]] = get_args(OutputKind)
#: Kinds that a user may declare with `soft_label_is`.
SoftLabelIs = Literal["logits", "probabilities"]
#: Published kinds that fit each of them; log-probabilities are valid logits.
FITTING_KINDS: Final[Mapping[SoftLabelIs, tuple[OutputKind, ...]]] = {
    "logits": ("logits", "log-probabilities"),
    "probabilities": ("probabilities",),
}
FORM: Final = "form"
TEMPERATURE: Final = "temperature"
CLASSES: Final = "classes"

_PLAIN: Final[tuple[Plain, ...]] = get_args(Plain)
_TOP_K: Final = "topk:"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of one output.

    Attributes:
        dtype: of a form that has all classes; None: of `topk`.
        k: classes that `topk` keeps; 0 for the other forms.
        temperature: of the softmax that is applied first; None: none is.
    """

    dtype: Plain | None = "float32"
    k: int = 0
    temperature: float | None = None

    @classmethod
    def parse(cls, text: str | None, temperature: float | None = None) -> Self | None:
        """The form that these name; None where they name none. A softmax alone is float32.

        Raises:
            UsageError: there is no such form or temperature.
        """
        if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
            raise UsageError(f"a temperature is a finite number above 0, not {temperature}")
        if text is None:
            return None if temperature is None else cls(temperature=temperature)
        for dtype in _PLAIN:
            if text == dtype:
                return cls(dtype, temperature=temperature)
        k = text.removeprefix(_TOP_K)
        if k == text or not (k.isascii() and k.isdecimal() and len(k) < 10 and int(k)):
            shown = text if len(text) <= 40 else text[:40] + "…"
            raise UsageError(
                f"there is no form {shown!r}: name one of {', '.join(_PLAIN)}, or topk:K with K the"
                " number of classes to keep"
            )
        return cls(None, int(k), temperature)

    @classmethod
    def named_by(
        cls, parameters: Mapping[str, Parameter], defaults: Mapping[str, Parameter] = {}
    ) -> Self | None:
        """The form that parameters of an output name, `defaults` where they name none.

        Raises:
            UsageError: a parameter is of the wrong kind or has an impossible value.
        """
        own = parameters if FORM in parameters or TEMPERATURE in parameters else defaults
        text, temperature = own.get(FORM), own.get(TEMPERATURE)
        if text is not None and not isinstance(text, str):
            raise UsageError(f"the parameter {FORM!r} is text, as 'topk:20', not {text!r}")
        if isinstance(temperature, (bool, str)):
            raise UsageError(f"the parameter {TEMPERATURE!r} is a number, not {temperature!r}")
        return cls.parse(text, None if temperature is None else float(temperature))

    def parameters(self, classes: int | None = None) -> dict[str, Parameter]:
        """What names this form; `classes`, in an answer, where `topk` has left some out."""
        named: dict[str, Parameter] = {FORM: str(self)}
        if self.temperature is not None:
            named[TEMPERATURE] = self.temperature
        if classes is not None and self.k:
            named[CLASSES] = classes
        return named

    def parts(self, name: str) -> tuple[str, ...]:
        """What the outputs are called that stand for the output `name`."""
        if not self.k:
            return (name,)
        return f"{name}.values", f"{name}.indices", f"{name}.tail"

    def __str__(self) -> str:
        return self.dtype or f"{_TOP_K}{self.k}"
