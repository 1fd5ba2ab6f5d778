"""The training loop: what it takes from a loader, what it reports, how it is left."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.runtime.errors import UsageError
from edl.student import DistillLoss, StepReport, Trainer, accuracy

pytestmark = pytest.mark.system

ROWS = 6


class Loader:
    """Re-iterable; remembers what was taken from it and whether its epochs were closed."""

    def __init__(self, batches: int, soft: bool = False) -> None:
        self.batches, self.soft = batches, soft
        self.taken = self.closed = 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        try:
            for index in range(self.batches):
                rng = np.random.default_rng(index)
                self.taken += 1
                image = rng.normal(size=(ROWS, 4)).astype("float32")
                label = rng.integers(0, 3, ROWS)
                extra = (rng.normal(size=(ROWS, 3)).astype("float32"),) if self.soft else ()
                yield (image, label, *extra)
        finally:
            self.closed += 1


def model_and_optimizer(paddle: Any) -> tuple[Any, Any]:
    paddle.seed(3)
    model = paddle.nn.Linear(4, 3)
    return model, paddle.optimizer.SGD(0.1, parameters=model.parameters())


def make(paddle: Any, loss: Any = None, **options: Any) -> Trainer:
    model, optimizer = model_and_optimizer(paddle)
    return Trainer(model, loss or DistillLoss(1, 0), optimizer, **options)


def test_fit_trains_the_epochs_and_reports_steps_and_totals(paddle: Any) -> None:
    ticks = itertools.count(step=2.0)
    loader, seen = Loader(5), list[StepReport]()
    result = make(paddle, clock=lambda: next(ticks), on_step=[seen.append]).fit(loader, epochs=8)
    assert [(r.step, r.epoch, r.samples) for r in seen] == [
        (step + 1, step // 5, (step + 1) * ROWS) for step in range(40)
    ]
    assert [float(r.loss) for r in seen] == list(result.losses)
    assert (result.steps, result.samples, len(result.losses)) == (40, 40 * ROWS, 40)
    assert result.seconds == 2.0
    assert result.samples_per_s == 120.0
    assert np.mean(result.losses[-5:]) < np.mean(result.losses[:5])
    assert loader.closed == 8


def test_steps_restart_the_loader_and_take_no_extra_batch(paddle: Any) -> None:
    loader = Loader(5)
    result = make(paddle).fit(loader, steps=7)
    assert (result.steps, loader.taken, loader.closed) == (7, 7, 2)
    assert make(paddle).fit(Loader(5), epochs=1, steps=7).steps == 5
    assert make(paddle).fit(Loader(5), epochs=9, steps=7).steps == 7
    loader = Loader(5)
    stream = iter(loader)  # which several fits share
    assert make(paddle).fit(stream, steps=2).steps == 2
    assert (loader.taken, loader.closed) == (2, 0)
    assert make(paddle).fit(stream, steps=9).steps == 3
    assert make(paddle).fit(stream, steps=9).steps == 0


def test_the_training_is_the_one_that_a_hand_written_loop_does(paddle: Any) -> None:
    loss = DistillLoss(0.3, 0.7, 4)
    trainer = make(paddle, loss)
    trainer.fit(Loader(5, soft=True), epochs=2)
    model, optimizer = model_and_optimizer(paddle)
    for _ in range(2):
        for batch in Loader(5, soft=True):
            image, label, soft = map(paddle.to_tensor, batch)
            loss(model(image), label, soft).backward()
            optimizer.step()
            optimizer.clear_grad()
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def test_a_loss_of_ones_own_takes_batches_of_any_form(paddle: Any) -> None:
    def by_name(model: Any, loss: Any, batch: Any) -> Any:
        image, label = (paddle.to_tensor(batch[key]) for key in ("image", "label"))
        return loss(model(image), label)

    named = [{"image": image, "label": label} for image, label in Loader(4)]
    result = make(paddle, loss_of_batch=by_name).fit(named, epochs=1)
    assert (result.steps, result.samples) == (4, 4 * ROWS)


def test_ctrl_c_leaves_no_gradient_and_closes_the_epoch(paddle: Any) -> None:
    def interrupt(report: StepReport) -> None:
        if report.step == 2:
            (trainer.model.weight * 1.0).sum().backward()  # as if it came between two lines
            raise KeyboardInterrupt

    loader = Loader(5)
    trainer = make(paddle, on_step=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(loader, epochs=1)
    assert (loader.taken, loader.closed) == (2, 1)
    assert all(p.grad is None or not p.grad.any() for p in trainer.model.parameters())


def test_trainings_that_cannot_be_are_refused(paddle: Any) -> None:
    with pytest.raises(UsageError, match="loss_of_batch"):
        make(paddle).fit([(1, 2, 3, 4)], epochs=1)
    with pytest.raises(UsageError, match="a training needs an end"):
        make(paddle).fit(Loader(1))
    with pytest.raises(UsageError, match="no batches"):
        make(paddle).fit(Loader(0), steps=3)


def test_accuracy_counts_rows_over_uneven_batches_and_keeps_the_mode(paddle: Any) -> None:
    identity = paddle.nn.Sequential(paddle.nn.Identity(), paddle.nn.Identity())
    identity[1].eval()
    image = np.eye(5, dtype="float32")
    label = np.array([0, 1, 2, 0, 0])
    assert accuracy(identity, image, label, batch_size=2) == 0.6
    assert [one.training for one in identity.sublayers(True)] == [True, True, False]
    with pytest.raises(UsageError):
        accuracy(identity, image[:0], label[:0])


def test_a_model_of_pytorch_is_trained_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the model's device, although there is a GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 3)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    result = Trainer(model, DistillLoss(0.5, 0.5), sgd).fit(Loader(5, soft=True), epochs=8)
    assert result.losses[-1] < result.losses[0]
    image, label, _ = next(iter(Loader(1, soft=True)))
    right = (model(torch.as_tensor(image)).argmax(-1).numpy() == label).mean()
    frozen = torch.nn.Sequential(model, torch.nn.Dropout())
    frozen[1].eval()
    assert accuracy(frozen, image, label) == pytest.approx(right)
    assert [one.training for one in frozen.modules()] == [True, True, False]
    with pytest.raises(UsageError, match=r"must be a torch\.optim\.Optimizer"):
        Trainer(model, DistillLoss(1, 0), object())
