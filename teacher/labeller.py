"""What labels batches, as the methods of the protocol and the heartbeat see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from ..proto.arena import Arena, Array, ArrayRef
from .predictor_session import Answer, Ready
from .request import Wanted


class Labeller(Protocol):
    """What labels batches; `Batcher` is the one."""

    @property
    def ready(self) -> bool:
        """Whether it takes batches now."""
        ...

    @property
    def memory(self) -> Arena:
        """Where the inputs of a request may lie, so that they need not be copied."""
        ...

    @property
    def lanes(self) -> int:
        """Batches that are labelled side by side."""
        ...

    @property
    def t_t_s(self) -> float:
        """Device time in seconds per sample of one lane; asked once the model is known."""
        ...

    def require_loaded(self) -> Ready:
        """The model; raises RetryableError while it is not known."""
        ...

    def submit(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[Wanted],
        deadline_s: float | None = None,
        refs: tuple[ArrayRef, ...] | None = None,
    ) -> Future[Answer]:
        """Have one batch labelled before `deadline_s`; does not wait.

        Where `refs` says that the inputs lie in `memory`, that must not be freed before the end.

        Returns:
            Its labels, which whoever takes them has to release, or an error of `TeacherError`'s
            family. Cancelled before it is at a device, it is not computed.

        Raises:
            EdlError: it is not taken in.
        """
        ...
