"""Mixed precision: in what the forward pass computes, and how small gradients survive it."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from ...errors import UsageError
from ..settings import Amp


class Precision:
    """Paddle's automatic mixed precision (level O1); "off" leaves everything as it is, to the bit.

    In float16 gradients can vanish, so the loss is scaled up before the backward pass and gradients
    down again, by a factor that follows from what overflows (`GradScaler`). All ranks see the same
    summed gradients, so their factors stay equal.

    Args:
        amp: "off", "bfloat16" or "float16".
        device: of this rank.

    Attributes:
        scaler: Paddle's, of which a checkpoint holds the state; None: there is none.

    Raises:
        UsageError: float16 on a CPU.
    """

    def __init__(self, amp: Amp, device: str) -> None:
        if amp == "float16" and device == "cpu":
            raise UsageError("--amp float16 needs a GPU; on a CPU take bfloat16, or off")
        self._amp = amp
        self.scaler: Any = None
        if amp == "float16":
            import paddle

            self.scaler = paddle.amp.GradScaler()

    def forward(self) -> AbstractContextManager[Any]:
        """What the forward pass and the loss run under."""
        if self._amp == "off":
            return contextlib.nullcontext()
        import paddle

        managed: AbstractContextManager[Any] = paddle.amp.auto_cast(dtype=self._amp, level="O1")
        return managed

    def backward(self, loss: Any) -> None:
        """Add the gradients of `loss` to those that are there."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: Any) -> None:
        """The step of the optimizer; left out where gradients overflowed, with a smaller factor."""
        if self.scaler is None:
            optimizer.step()
            return
        self.scaler.step(optimizer)
        self.scaler.update()
