"""What a member tells its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import EdlError
from .outcomes import Done, Outcome

if TYPE_CHECKING:
    from .member import Member


@dataclass(frozen=True, slots=True)
class Says:
    """Calls in the engine's own thread.

    Attributes:
        labelled: the labels of a batch are whole; it is its turn.
        recall: a batch that was said to be labelled is to be handed back, by `take_back`.
        poisoned: a batch will never be labelled, for these reasons.
        came: the link to a teacher has posted something.
        answered: a teacher has sent labels.
        failed: the stream cannot go on; in this epoch, or (True) for good.
    """

    labelled: Callable[[Member, int], None]
    recall: Callable[[Member, int], None]
    poisoned: Callable[[int, tuple[str, ...]], None]
    came: Callable[[str, Outcome, float], None]
    answered: Callable[[Member, str, Done], None]
    failed: Callable[[EdlError, bool], None]
