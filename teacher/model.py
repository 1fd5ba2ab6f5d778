"""What a model takes, gives and is: the values that its metadata and its identity are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ..errors import UsageError, WireError
from ..proto.datatypes import dtype_of

#: A dimension that the model leaves free, as the Open Inference Protocol spells it.
FREE = -1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, datatype and shape of one input or output.

    Attributes:
        name: as the model calls it.
        datatype: as the Open Inference Protocol calls it ("FP32", "UINT8", ...).
        shape: dimensions, the batch first; -1 where one is free.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

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
        return [self.name, self.datatype, list(self.shape)]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        return cls(str(value[0]), str(value[1]), tuple(int(size) for size in value[2]))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as its backend runs it.

    Attributes:
        platform: framework and format, as "paddle_inference".
        inputs: in the model's order.
        outputs: in the model's order.
        content_id: hash of what the model is: equal within a service.
        numerics: what must be equal for bits to be equal, in words ("fp32", "threads=1", ...).
    """

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    content_id: str
    numerics: tuple[str, ...]

    @property
    def numerics_id(self) -> str:
        """The first words of `numerics`, readable, and a hash of them all."""
        digest = hashlib.sha256("\n".join(self.numerics).encode()).hexdigest()[:12]
        return "-".join([*self.numerics[:2], digest])

    def rows_per_run(self, micro_batch: int) -> int:
        """Samples of one run: `micro_batch`, unless the model was exported for a fixed number."""
        fixed = {tensor.shape[0] for tensor in self.inputs} - {FREE}
        return min(fixed, default=micro_batch)

    def in_micro_batches(self, size: int) -> ModelSpec:
        """The same model run in micro-batches of `size` samples: other numerics."""
        return replace(self, numerics=(*self.numerics, f"micro-batch={size}"))

    def to_json(self) -> dict[str, Any]:
        return {
            "platform": self.platform,
            "inputs": [tensor.to_json() for tensor in self.inputs],
            "outputs": [tensor.to_json() for tensor in self.outputs],
            "content_id": self.content_id,
            "numerics": list(self.numerics),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            platform=value["platform"],
            inputs=tuple(TensorSpec.from_json(tensor) for tensor in value["inputs"]),
            outputs=tuple(TensorSpec.from_json(tensor) for tensor in value["outputs"]),
            content_id=value["content_id"],
            numerics=tuple(value["numerics"]),
        )
