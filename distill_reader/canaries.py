"""What the user says of canaries: how much two teachers label, and what counts as equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import UsageError
from ..scheduler.canaries import OTHER_NUMERICS, SAME_NUMERICS, CanaryConfig


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """How answers of teachers are compared with those of others.

    Attributes:
        share: part of the requests that two teachers label, besides the first one of each teacher
            that joins; 0: only that one.
        same_numerics: how far labels of two teachers of one numerics_id may lie apart, as a part of
            the greatest one.
        other_numerics: the same of others, and where the numerics_id is not known.

    Raises:
        UsageError: a number that makes no sense.
    """

    share: float = 0.002
    same_numerics: float = SAME_NUMERICS
    other_numerics: float = OTHER_NUMERICS

    def __post_init__(self) -> None:
        try:
            self.rule()
        except ValueError:
            raise UsageError(
                "canaries need 0 <= share <= 1 and 0 <= same_numerics <= other_numerics, not"
                f" {self}"
            ) from None

    def rule(self) -> CanaryConfig:
        """The scheduler's view of it."""
        return CanaryConfig(self.share, self.same_numerics, self.other_numerics)


DEFAULT_CANARIES: Final = CanaryPolicy()
