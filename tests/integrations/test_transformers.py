"""The mixin for a Trainer of transformers: its loss, and checkpoints that it cannot resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from edl.distill_reader import DistilReader
from edl.integrations.ranks import TrainerLoader
from edl.integrations.transformers import STATE_FILE, DistilTrainerMixin, ReaderStateCallback
from edl.runtime.errors import UsageError
from edl.student import DistillLoss
from edl.tests.distill_reader.readers import NOBODY, Batches, reader_of
from edl.tests.scripted_teacher import CLASSES as CLASSES_OF_TEACHER
from edl.tests.scripted_teacher import ScriptedTeacher

pytestmark = pytest.mark.system

ROWS, CLASSES = 4, 5
HARD = 3.0


class Student(torch.nn.Module):  # type: ignore[misc]
    """Gives logits that are its input, and a loss if it is given labels."""

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        outputs = {"logits": x}
        if labels is not None:
            outputs["loss"] = torch.tensor(HARD)
        return outputs


class Trainer(DistilTrainerMixin, transformers.Trainer):  # type: ignore[misc]
    pass


def trainer_of(folder: Path, distill_loss: DistillLoss, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(str(folder), use_cpu=True, report_to=[])

    def make_reader(loader: Any, **_: int) -> Any:
        raise AssertionError("nothing is trained here")

    options = {"make_reader": make_reader, "distill_loss": distill_loss, **options}
    return Trainer(Student(), arguments, **options)


def test_the_loss_is_alpha_hard_plus_beta_soft(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, DistillLoss(0.25, 0.75, 2.0, soft_label_is="logits"))
    assert trainer.args.ignore_data_skip
    x, soft = torch.randn(2, ROWS, CLASSES)
    batch = {"x": x, "labels": torch.zeros(ROWS, dtype=torch.long), "logits": soft}
    log_student = (x / 2).log_softmax(-1)
    log_teacher = (soft / 2).log_softmax(-1)
    divergence = (log_teacher.exp() * (log_teacher - log_student)).sum(-1).mean()
    loss, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    torch.testing.assert_close(loss, 0.25 * HARD + 0.75 * 4 * divergence)
    assert outputs["logits"] is x
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


def test_a_training_without_soft_labels_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, DistillLoss(0.25, 0.75))
    batch = {"x": torch.zeros(ROWS, CLASSES), "scores": torch.zeros(ROWS, CLASSES)}
    with pytest.raises(UsageError, match=r"no 'logits', they have x, scores: name .* soft_label="):
        trainer.compute_loss(trainer.model, batch)


def test_a_hard_loss_needs_labels(tmp_path: Path) -> None:
    batch = {"x": torch.zeros(ROWS, CLASSES), "logits": torch.zeros(ROWS, CLASSES)}
    trainer = trainer_of(tmp_path, DistillLoss(0.5, 0.5))
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
        trainer_of(tmp_path, DistillLoss(0.5, 0.5)).train(resume_from_checkpoint=True)


def test_a_loss_without_a_soft_term_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="beta is 0"):
        trainer_of(tmp_path, DistillLoss(1.0, 0.0))


def test_a_loss_without_a_hard_term_is_refused_if_soft_labels_may_be_missing(
    tmp_path: Path,
) -> None:
    trainer = trainer_of(
        tmp_path,
        DistillLoss(0.0, 1.0),
        train_dataset=[{"x": torch.zeros(CLASSES)}] * ROWS,
        make_reader=lambda loader, **ranks: reader_of(
            loader, NOBODY, no_teacher="hard_only", **ranks
        ),
    )
    with pytest.raises(UsageError, match="alpha is 0: choose 'wait' or 'fail'"):
        trainer.train()


def test_a_hard_loss_of_the_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="label_smoothing_factor would have no effect"):
        trainer_of(tmp_path, DistillLoss(0.5, 0.5), compute_loss_func=lambda *_, **__: 0.0)


class Hungry(Student):
    """Has memory for three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.rows: list[int] = []

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        self.rows.append(len(x))
        if len(x) > 3:
            raise RuntimeError("CUDA out of memory.")
        logits = torch.nn.functional.pad(self.weight * x, (0, CLASSES_OF_TEACHER - 3))
        return {"logits": logits, "loss": logits.mean()}


def test_the_trainer_finds_a_batch_that_fits(tmp_path: Path) -> None:
    teacher = ScriptedTeacher()
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        num_train_epochs=1,
        per_device_train_batch_size=4,
        auto_find_batch_size=True,
    )
    try:
        trainer = Trainer(
            Hungry(),
            arguments,
            train_dataset=[{"x": torch.full((3,), float(number))} for number in range(9)],
            make_reader=lambda loader, **ranks: DistilReader(
                loader, service="s", teachers=[teacher.address], **ranks
            ),
            distill_loss=DistillLoss(0.5, 0.5),
        )
        trainer.train()
        assert trainer.model.rows == [4, 3, 3, 3]
    finally:
        teacher.stop()
