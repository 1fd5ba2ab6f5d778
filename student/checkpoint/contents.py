"""The contents of a checkpoint: arrays by name, and everything else as JSON.

A name is `GROUP/NAME`. Each group becomes a file of its own, so that `model.safetensors` has the
parameters under their names in the network, for use by other programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np

from ...runtime.errors import UsageError

Array = np.ndarray[Any, np.dtype[Any]]

#: The groups of `capture`; other groups are possible.
MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"

#: Names of dtypes in safetensors. The bfloat16 type comes from ml_dtypes.
DTYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}


@dataclass(frozen=True, slots=True)
class Contents:
    """The state of a training after `step` steps.

    Attributes:
        step: number of optimizer steps taken.
        world: number of ranks that trained it.
        tensors: arrays by `GROUP/NAME`. They may be views of live parameters or of shared memory;
            the function that creates the contents says for how long they are valid.
        state: JSON values. `rank/reporting.py` adds the epoch, the state of the feed (the trained
            positions, or the position of each rank's source), metrics and more; `capture` adds the
            learning-rate schedule, the scaler and the random generators.

    Raises:
        UsageError: a name is not `GROUP/NAME`, a dtype is not in `DTYPES` or not in native byte
            order, or step or world is out of range.
    """

    step: int
    world: int
    tensors: Mapping[str, Array] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step < 0 or self.world < 1:
            raise UsageError(
                f"a checkpoint needs a step of at least 0 and at least one rank, not step "
                f"{self.step} and {self.world} ranks"
            )
        for name, array in self.tensors.items():
            group, _, rest = name.partition("/")
            if not (group.isidentifier() and group.isascii() and rest):
                raise UsageError(f"an array of a checkpoint is named GROUP/NAME, not {name!r}")
            if array.dtype.name not in DTYPES or not array.dtype.isnative:
                raise UsageError(
                    f"a checkpoint cannot hold {name}, which is of {array.dtype}; "
                    f"it can hold {', '.join(DTYPES)}"
                )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.tensors.values())

    def group(self, name: str) -> dict[str, Array]:
        """Return the arrays of a group; names lack the group: `fc.weight` for `model/fc.weight`."""
        prefix = f"{name}/"
        return {
            key.removeprefix(prefix): array
            for key, array in self.tensors.items()
            if key.startswith(prefix)
        }

    def groups(self) -> list[str]:
        """Return the names of the groups, sorted."""
        return sorted({name.partition("/")[0] for name in self.tensors})

    def copied(self) -> Self:
        """Return a deep copy, which stays valid when the memory of these arrays changes."""
        return type(self)(
            self.step,
            self.world,
            {name: np.array(array, order="C", copy=True) for name, array in self.tensors.items()},
            json.loads(json.dumps(self.state)),
        )
