"""One request as it goes through a teacher: what is to be labelled, what is wanted, until when."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..proto.arena import Array, ArrayRef
from .wanted import Wanted


@dataclass(frozen=True, slots=True)
class Request:
    """A batch of one caller.

    Attributes:
        inputs: by name, equally long along axis 0, at least 1.
        outputs: what to answer with.
        deadline_s: on the monotonic clock, which all processes of a machine share: from then on
            nobody wants the answer.
        refs: where the inputs lie in the predictors' memory, in their order; None: elsewhere.
    """

    inputs: Mapping[str, Array]
    outputs: Sequence[Wanted]
    deadline_s: float = math.inf
    refs: tuple[ArrayRef, ...] | None = None

    @property
    def samples(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def shape(self) -> Hashable:
        """Equal for requests that may be labelled in one go: names, dtypes, trailing dimensions."""
        return frozenset(
            (name, array.dtype.str, array.dtype.name, array.shape[1:])
            for name, array in self.inputs.items()
        )
