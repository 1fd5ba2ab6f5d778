"""What a model takes, gives and is: the values that its metadata and its identity are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ..proto.datatypes import FREE, TensorSpec

__all__ = ["FREE", "ModelSpec", "TensorSpec"]

#: How the word of `numerics` begins that says of how many samples a run is.
_MICRO_BATCH = "micro-batch="


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
        return _id_of(self.numerics)

    def rows_per_run(self, micro_batch: int) -> int:
        """Samples of one run: `micro_batch`, unless the model was exported for a fixed number."""
        fixed = {tensor.shape[0] for tensor in self.inputs} - {FREE}
        return min(fixed, default=micro_batch)

    def in_micro_batches(self, size: int) -> ModelSpec:
        """The same model run in micro-batches of `size` samples: other numerics."""
        others = (word for word in self.numerics if not word.startswith(_MICRO_BATCH))
        return replace(self, numerics=(*others, f"{_MICRO_BATCH}{size}"))

    def merging(self, most: int) -> ModelSpec:
        """The same model where requests go with others', up to `most` samples: bits depend on them.

        So the first word says that even equal numerics promise no equal bits.
        """
        return replace(self, numerics=("merged", *self.numerics, f"up-to={most}"))

    def with_kinds(self, kinds: Mapping[str, str]) -> ModelSpec:
        """The same model with these kinds of its outputs, by name."""
        outputs = (replace(one, kind=kinds.get(one.name, one.kind)) for one in self.outputs)
        return replace(self, outputs=tuple(outputs))


@lru_cache(maxsize=64)
def _id_of(numerics: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\n".join(numerics).encode()).hexdigest()[:12]
    return "-".join([*numerics[:2], digest])
