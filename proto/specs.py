"""What a model takes and gives, tensor by tensor, as a server describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from ..errors import UsageError, WireError
from .datatypes import dtype_of

#: A dimension that the model leaves free, as the Open Inference Protocol spells it.
FREE: Final = -1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, datatype and shape of one input or output.

    Attributes:
        name: as the model calls it.
        datatype: as the Open Inference Protocol calls it ("FP32", "UINT8", ...).
        shape: dimensions, the batch first; -1 where one is free.
        kind: of an output, an `OutputKind` of `forms`; empty where nobody has classified it.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    kind: str = ""

    def admits(self, shape: Sequence[int]) -> bool:
        """Whether an array of `shape` is one of those that this spec describes."""
        return len(shape) == len(self.shape) and all(
            want in (FREE, have) for want, have in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.name}:{self.datatype}:{','.join(map(str, self.shape))}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "NAME:DATATYPE:DIMS" ("image:FP32:-1,3,224,224"); raises UsageError."""
        try:
            name, datatype, dims = text.rsplit(":", 2)
            shape = tuple(int(size) for size in dims.split(","))
            dtype_of(datatype.upper())
        except WireError as error:
            raise UsageError(f"{text!r}: {error}") from None
        except ValueError:
            raise UsageError(
                f"{text!r} does not describe an input: write NAME:DATATYPE:DIMS, "
                "for example image:FP32:-1,3,224,224"
            ) from None
        if not name or min(shape) < FREE or 0 in shape:
            raise UsageError(
                f"{text!r} has no name, or a dimension that is neither -1 nor positive"
            )
        return cls(name, datatype.upper(), shape)

    def to_json(self) -> list[Any]:
        kind = [self.kind] if self.kind else []
        return [self.name, self.datatype, list(self.shape), *kind]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        return cls(str(value[0]), str(value[1]), tuple(int(size) for size in value[2]), *value[3:])
