"""A plain training loop: one optimizer step per batch."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.errors import UsageError
from .frameworks import framework_of

#: Steps between reads of losses from the device, as each read stalls it.
_READ_LOSSES_EVERY = 32


@dataclass(frozen=True, slots=True)
class StepReport:
    """The latest step, for callbacks.

    Attributes:
        step: number of the step within this fit, from 1.
        epoch: number of the epoch, from 0.
        samples: rows seen so far.
        loss: a scalar tensor; `float(loss)` waits for the device.
    """

    step: int
    epoch: int
    samples: int
    loss: Any


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a training.

    Attributes:
        steps: optimizer steps taken.
        samples: rows seen.
        seconds: wall time of the loop, waiting for the loader included.
        losses: the loss of each step, in order.
    """

    steps: int
    samples: int
    seconds: float
    losses: tuple[float, ...]

    @property
    def samples_per_s(self) -> float:
        """Throughput; 0 when nothing was trained."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


OnStep = Callable[[StepReport], None]
#: From (model, loss, batch) to the scalar loss of the batch.
LossOfBatch = Callable[[Any, Any, Any], Any]


def loss_of_batch(model: Any, loss: Any, batch: Sequence[Any]) -> Any:
    """Return `loss(model(image), label[, soft_label])` of a batch.

    Raises:
        UsageError: the batch is not a tuple or list (image, label[, soft_label]).
    """
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise UsageError(
            "a batch is (image, label) or (image, label, soft_label); for others give the trainer"
            " a loss_of_batch of your own"
        )
    tensor = framework_of(model).tensor
    image, *labels = (tensor(field, model) for field in batch)
    return loss(model(image), *labels)


class Trainer:
    """Trains a model on the batches of a loader.

    Args:
        model: a `paddle.nn.Layer` or `torch.nn.Module`, which `fit` puts into training mode.
        loss: from (logits, label[, soft label]) to a scalar, such as `DistillLoss`.
        optimizer: of the same framework, over the parameters of the model. A callback of `on_step`
            may advance a schedule of its learning rate.
        loss_of_batch: computes the loss of a batch that is not (image, label[, soft_label]).
        on_step: callbacks; each step calls them at its end, in this order.
        clock: returns seconds; used only for `TrainResult`.

    Raises:
        UsageError: the optimizer does not belong to the model's framework.
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        *,
        loss_of_batch: LossOfBatch = loss_of_batch,
        on_step: Sequence[OnStep] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self._loss = loss
        framework = framework_of(model)
        self._optimizer = framework.optimizer(optimizer)
        if self._optimizer is None:
            wanted = framework.kinds["optimizer"]
            raise UsageError(f"the optimizer must be {wanted}, not a {type(optimizer).__name__}")
        self._loss_of_batch = loss_of_batch
        self._on_step = tuple(on_step)
        self._clock = clock

    def fit(
        self, loader: Iterable[Any], *, epochs: int | None = None, steps: int | None = None
    ) -> TrainResult:
        """Train for `epochs` passes over `loader` or for `steps` steps, whichever ends first.

        With `steps` alone, the loader is iterated as often as needed. If `loader` is an iterator,
        there is one pass; `fit` takes only the batches that it trains on and leaves the iterator
        open for the next `fit`. After an exception, including Ctrl-C, the gradients are cleared,
        and an iterator that `fit` made is closed if it has a `close`.

        Raises:
            UsageError: neither epochs nor steps are given, a loader that is not an iterator yields
                nothing, or `loss_of_batch` refuses a batch.
        """
        from .job.batches import rows_of

        if epochs is None and steps is None:
            raise UsageError("a training needs an end: give epochs=..., steps=... or both")
        losses: list[float] = []
        pending: list[Any] = []
        step = samples = 0
        self.model.train()
        began = self._clock()
        try:
            with contextlib.closing(_batches(loader, epochs, steps)) as batches:
                for epoch, batch in batches:
                    loss = self._step(batch)
                    step, samples = step + 1, samples + rows_of(batch)
                    pending.append(loss)
                    if len(pending) == _READ_LOSSES_EVERY:
                        losses.extend(float(one) for one in pending)
                        pending.clear()
                    for callback in self._on_step:
                        callback(StepReport(step, epoch, samples, loss))
        finally:
            self._optimizer.clear_grad()
        losses.extend(float(one) for one in pending)
        return TrainResult(step, samples, self._clock() - began, tuple(losses))

    def _step(self, batch: Any) -> Any:
        loss = self._loss_of_batch(self.model, self._loss, batch)
        loss.backward()
        self._optimizer.step()
        self._optimizer.clear_grad()
        return loss.detach()


def accuracy(model: Any, image: Any, label: Any, *, batch_size: int = 256) -> float:
    """Return the part of the rows with the highest logit at their label, from 0 to 1.

    The model is evaluated in inference mode; the modes of all its layers are restored afterwards.

    Args:
        model: a layer of Paddle or PyTorch from `image` to logits [N, C].
        image: array or tensor [N, ...].
        label: int array or tensor [N].
        batch_size: rows per forward pass.

    Raises:
        UsageError: there are no rows, or not as many labels as images.
    """
    if len(image) == 0 or len(image) != len(label):
        raise UsageError(f"accuracy of {len(image)} images with {len(label)} labels")
    framework, correct = framework_of(model), 0
    with framework.evaluating(model):
        for start in range(0, len(image), batch_size):
            rows = slice(start, start + batch_size)
            logits = model(framework.tensor(image[rows], model))
            correct += int((logits.argmax(-1) == framework.tensor(label[rows], model)).sum())
    return correct / len(image)


def _batches(
    loader: Iterable[Any], epochs: int | None, steps: int | None
) -> Generator[tuple[int, Any]]:
    """Yield (number of the epoch, batch), at most `steps` times."""
    left = steps
    for epoch in itertools.count() if epochs is None else range(epochs):
        iterator: Any = iter(loader)
        made_here = iterator is not loader
        must_close = made_here and hasattr(iterator, "close")
        with contextlib.closing(iterator) if must_close else contextlib.nullcontext():
            taken = 0
            for batch in itertools.islice(iterator, left):
                taken += 1
                yield epoch, batch
        left = None if left is None else left - taken
        if left == 0 or not made_here:
            return
        if not taken:
            raise UsageError("the loader yields no batches")
