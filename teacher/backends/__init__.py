"""One protocol, a small file for each framework: how a model is opened and run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ...proto.arena import Array
from ..model import ModelSpec


class Backend(Protocol):
    """A model that is loaded; one thread uses it."""

    @property
    def spec(self) -> ModelSpec:
        """What the model takes, gives and is."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one micro-batch.

        Args:
            inputs: every input of `spec`, validated against it, the batch along axis 0.

        Returns:
            Every output of `spec`, in arrays that no later run touches; there may be others.

        Raises:
            RequestRefused: the model cannot take these values.
            RetryableError: it failed for want of a resource.
        """
