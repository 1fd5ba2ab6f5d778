"""The mixin for a Trainer of transformers: its loss, its data, and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

from edl.integrations.ranks import TrainerLoader
from edl.integrations.transformers import STATE_FILE, DistilTrainerMixin, ReaderStateCallback
from edl.runtime.errors import UsageError
from edl.student import DistillLoss
from edl.tests.distill_reader.readers import NOBODY, Batches, reader_of
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher

pytestmark = pytest.mark.system

ROWS = 3
HARD = 3.0
HALF = DistillLoss(0.5, 0.5)
QUIET: Any = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "num_train_epochs": 1}
ROW_BY_ROW: Any = {"train_sampling_strategy": "sequential", "per_device_train_batch_size": 1}


class Student(torch.nn.Module):  # type: ignore[misc]
    """Gives a loss if it is given labels; keeps the rows that it gets, and has memory for three."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.seen: list[list[int]] = []

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        self.seen.append(x[:, 0].int().tolist())
        if len(x) > ROWS:
            raise RuntimeError("CUDA out of memory.")
        logits = torch.nn.functional.pad(self.weight * x, (0, CLASSES - 3))
        return {"logits": logits, "loss": None if labels is None else torch.tensor(HARD)}


class Trainer(DistilTrainerMixin, transformers.Trainer):  # type: ignore[misc]
    def _get_output_dir(self, trial: object) -> str:
        """The folder of checkpoints, as for the first run of a hyperparameter search."""
        return f"{self.args.output_dir}/run-0"


def trainer_of(
    folder: Path,
    distill_loss: DistillLoss = HALF,
    *,
    teacher: str = NOBODY,
    rows: int = ROWS,
    feeds: Any = None,
    no_teacher: Any = "wait",
    compute_loss_func: Any = None,
    **arguments: Any,
) -> Any:
    fields = [torch.full((3,), float(number)) for number in range(rows)]
    return Trainer(
        Student(),
        transformers.TrainingArguments(str(folder), **QUIET, **arguments),
        train_dataset=[{"x": field, "z": field, "labels": 0} for field in fields],
        make_reader=lambda loader, **ranks: reader_of(
            loader, teacher, feeds=feeds, no_teacher=no_teacher, **ranks
        ),
        distill_loss=distill_loss,
        compute_loss_func=compute_loss_func,
    )


def test_the_loss_is_alpha_hard_plus_beta_soft(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, DistillLoss(0.25, 0.75, 2.0, soft_label_is="logits"))
    assert trainer.args.ignore_data_skip
    x, soft = torch.randn(ROWS, 3), torch.randn(ROWS, CLASSES)
    batch = {"x": x, "labels": torch.zeros(ROWS, dtype=torch.long), "logits": soft}
    loss, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    log_student = (outputs["logits"] / 2).log_softmax(-1)
    log_teacher = (soft / 2).log_softmax(-1)
    divergence = (log_teacher.exp() * (log_teacher - log_student)).sum(-1).mean()
    torch.testing.assert_close(loss, 0.25 * HARD + 0.75 * 4 * divergence)
    assert torch.equal(outputs["logits"][:, :3], x)
    assert set(batch) == {"x", "labels", "logits"}, "the caller's batch is not changed"
    assert trainer.compute_loss(trainer.model, {**batch, "logits": None}) == 0.25 * HARD
    del batch["logits"]
    assert trainer.compute_loss(trainer.model.eval(), batch) == HARD, "as in evaluation"


def test_padding_has_no_part_in_the_soft_loss(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, DistillLoss(0.0, 1.0))
    x, soft = torch.randn(2, 2, 3, CLASSES)
    is_text = torch.tensor([[True, True, False], [True, False, False]])
    labels = torch.where(is_text, 1, -100)
    for masks in (
        {"attention_mask": is_text.long()},
        {"attention_mask": torch.ones(2, 3), "decoder_input_ids": labels, "labels": labels},
    ):
        batch = {"logits": soft, **masks}
        loss = trainer.compute_loss(lambda **_: {"logits": x}, batch)
        torch.testing.assert_close(loss, DistillLoss(0, 1)(x[is_text], None, soft[is_text]))


def test_batches_without_soft_labels_or_labels_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    x, soft = torch.ones(ROWS, 3), torch.nn.functional.pad(torch.ones(ROWS, 3), (0, CLASSES - 3))
    with pytest.raises(UsageError, match=r"no 'logits', they have x, scores: name .* soft_label="):
        trainer.compute_loss(trainer.model, {"x": x, "scores": soft})
    batch = {"x": x, "logits": soft}
    with pytest.raises(UsageError, match="the batches need `labels`"):
        trainer.compute_loss(trainer.model, batch)
    trainer = trainer_of(tmp_path, DistillLoss(0.0, 1.0))
    assert trainer.compute_loss(trainer.model, batch) == 0


def test_a_checkpoint_without_the_reader_is_refused(tmp_path: Path) -> None:
    callback = ReaderStateCallback()
    loader = TrainerLoader(reader_of(Batches(3), NOBODY))
    try:
        with pytest.raises(UsageError, match=r"has no valid reader_state.json \(No such file"):
            callback.follow(loader, tmp_path)
        (tmp_path / STATE_FILE).write_text('{"ranks": [{"epo')  # the Trainer was killed meanwhile
        with pytest.raises(UsageError, match=r"has no valid reader_state.json \(Unterminated"):
            callback.follow(loader, tmp_path)
        with pytest.raises(UsageError, match="not the state of a loader of all ranks"):
            loader.load_state_dict(loader.reader.state_dict())
    finally:
        callback.close()
    with pytest.raises(UsageError, match="there is no checkpoint in"):
        trainer_of(tmp_path).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"distill_loss": DistillLoss(1.0, 0.0)}, "beta is 0"),
        ({"compute_loss_func": max}, "label_smoothing_factor would have no effect"),
        ({"train_sampling_strategy": "batch_rebalance"}, "divides samples among ranks, which the"),
        ({"distill_loss": DistillLoss(0.0, 1.0), "no_teacher": "hard_only"}, "alpha is 0: choose"),
    ],
)
def test_a_training_that_cannot_be_is_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        trainer_of(tmp_path, **options).train()


def test_a_training_has_a_batch_size_that_fits_an_order_and_more_fields_for_the_teacher(
    teacher: ScriptedTeacher, tmp_path: Path
) -> None:
    teacher.inputs = ("x", "z")
    options: Any = {**ROW_BY_ROW, "per_device_train_batch_size": 4, "auto_find_batch_size": True}
    feeds = {"x": "x", "z": "z"}
    trainer = trainer_of(tmp_path, teacher=teacher.address, rows=9, feeds=feeds, **options)
    trainer.train()
    assert trainer.model.seen == [[0, 1, 2, 3], [0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(("event", "saved"), [("on_step_begin", 1), ("on_optimizer_step", 2)])
def test_a_checkpoint_of_a_preempted_trainer_has_the_readers(
    event: str, saved: int, teacher: ScriptedTeacher, tmp_path: Path
) -> None:
    """The Trainer saves it at its next event: before the optimizer's step, or after it."""
    options: Any = {"teacher": teacher.address, "enable_jit_checkpoint": True, **ROW_BY_ROW}
    trainer = trainer_of(tmp_path, **options)
    callbacks = trainer.callback_handler.callbacks
    (saving,) = (one for one in callbacks if isinstance(one, JITCheckpointCallback))

    def preempt(_: Any, __: Any, state: Any, *___: Any, **____: Any) -> None:
        saving.jit_manager.is_checkpoint_requested = state.global_step == 1

    trainer.add_callback(type("Preempting", (transformers.TrainerCallback,), {event: preempt}))
    trainer.train()
    assert trainer.model.seen == [[0], [1]]
    trainer = trainer_of(tmp_path, **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "run-0" / f"checkpoint-{saved}"))
    assert trainer.model.seen == [[row] for row in range(saved, ROWS)]
