"""Trains with one of the trainers that people use, on labels of a scripted teacher.

    python -m edl.tests.integrations.trainings TRAINER FOLDER TEACHER SAVE_EVERY [KILL_AT]

A line of JSON in FOLDER/log-RANK.jsonl says which samples a step trained. Checkpoints
are saved in FOLDER; a run begins at the last one. In step KILL_AT the process kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from edl.distill_reader import DistilReader
from edl.runtime.supervise import end_with_parent
from edl.student import DistillLoss
from edl.tests.scripted_teacher import CLASSES, logits_of

SAMPLES, BATCH, EPOCHS = 87, 4, 3
BATCHES_PER_EPOCH = 22
LOSS = DistillLoss(alpha=0.5, beta=0.5, temperature=2.0)


class Rows(torch.utils.data.Dataset[dict[str, Any]]):  # type: ignore[misc]
    """Sample i has the features i, i, i, the label i mod 10, and the id i."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        features = torch.full((3,), float(index))
        return {"x": features, "labels": torch.tensor(index % CLASSES), "ids": torch.tensor(index)}


@dataclass(frozen=True)
class Run:
    """The arguments of the command line."""

    folder: Path
    teacher: str
    save_every: int
    kill_at: int = -1

    def log(self, step: int, ids: Any) -> None:
        """Note the samples of a step; die if it is the one."""
        if step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        rank = int(os.environ.get("RANK", "0"))
        with (self.folder / f"log-{rank}.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "ids": ids.tolist()}) + "\n")

    def reader(self, source: Any, *, rank: int, world_size: int) -> DistilReader:
        return DistilReader(
            source, service="s", teachers=[self.teacher], rank=rank, world_size=world_size
        )


def check_labels(batch: dict[str, Any]) -> None:
    """Raise AssertionError if the soft labels are not those of these samples."""
    expected = torch.from_numpy(logits_of(batch["x"].cpu().numpy()))
    assert torch.equal(batch["logits"].cpu(), expected)


def batches() -> Any:
    return torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=True)


def by_lightning(run: Run) -> None:
    import pytorch_lightning as lightning

    from edl.integrations.lightning import DistilDataModule

    class Student(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, CLASSES)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

        def training_step(self, batch: Any, _: int) -> Any:
            check_labels(batch)
            run.log(self.global_step, batch["ids"])
            return LOSS(self.layer(batch["x"]), batch["labels"], batch["logits"])

    data = DistilDataModule(lambda **ranks: run.reader(batches(), **ranks))
    off: Any = dict.fromkeys(("enable_version_counter", "save_on_train_epoch_end"), False)
    saves = lightning.callbacks.ModelCheckpoint(
        run.folder, "saved", every_n_train_steps=run.save_every, **off
    )
    names = ("logger", "enable_progress_bar", "enable_model_summary")
    options: Any = {"accelerator": "cpu", "callbacks": [saves], **dict.fromkeys(names, False)}
    trainer = lightning.Trainer(max_epochs=EPOCHS, default_root_dir=run.folder, **options)
    saved = run.folder / "saved.ckpt"
    path = str(saved) if saved.exists() else None
    trainer.fit(Student(), datamodule=data, ckpt_path=path, weights_only=False)
    assert data.reader is None, "closed at the end"


def by_transformers(run: Run) -> None:
    import transformers

    from edl.integrations.transformers import DistilTrainerMixin

    class Student(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, CLASSES)
            self.step = 0

        def forward(self, x: Any, ids: Any, labels: Any = None) -> Any:
            if self.training:
                run.log(trainer.state.global_step, ids)
            logits = self.layer(x)
            return {"loss": functional.cross_entropy(logits, labels), "logits": logits}

    class Trainer(DistilTrainerMixin, transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            if model.training:
                check_labels(inputs)
            return super().compute_loss(model, inputs, *args, **options)

    options = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "learning_rate": 1e-6}
    options |= {"per_device_train_batch_size": BATCH, "save_steps": run.save_every}
    trainer = Trainer(
        Student(),
        transformers.TrainingArguments(str(run.folder), num_train_epochs=EPOCHS, **options),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        make_reader=run.reader,
        distill_loss=LOSS,
    )
    trainer.train(resume_from_checkpoint=any(run.folder.glob("checkpoint-*")))
    assert trainer.evaluate()["eval_loss"] > 0, "without teachers"


def train(
    run: Run, loader: Any, student: Any, optimizer: Any, accelerator: Any, step: int, save: Any
) -> None:
    """Train as in a loop of one's own; `save(step)` saves a checkpoint."""
    while loader.reader.state_dict()["epoch"] < EPOCHS:
        for batch in loader:
            check_labels(batch)
            run.log(step, batch["ids"])
            with accelerator.accumulate(student):
                loss = LOSS(student(batch["x"]), batch["labels"], batch["logits"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % run.save_every == 0:
                save(step)
        assert accelerator.sync_gradients, "the last batches of the epoch are not trained"
    loader.reader.close()


def by_accelerate(run: Run) -> None:
    import accelerate

    from edl.integrations.accelerate import AcceleratedLoader

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    layer = torch.nn.Linear(3, CLASSES)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    loader = AcceleratedLoader(accelerator, lambda **ranks: run.reader(batches(), **ranks))
    student, optimizer = accelerator.prepare(layer, optimizer)
    step, saved = 0, run.folder / "saved"
    if saved.exists():
        accelerator.load_state(str(saved))
        step = int((saved / "step").read_text())

    def save(step: int) -> None:
        accelerator.save_state(str(saved))
        (saved / "step").write_text(str(step))

    train(run, loader, student, optimizer, accelerator, step, save)


def by_ddp(run: Run) -> None:
    """A loop of one's own on the ranks that RANK and WORLD_SIZE state."""
    from torch import distributed

    from edl.integrations.ranks import RankedLoader

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meet = f"file://{run.folder}/{os.environ['MEET']}"
    distributed.init_process_group("gloo", meet, rank=rank, world_size=ranks)
    student = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, CLASSES))
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-6)
    loader = RankedLoader(run.reader(batches(), rank=rank, world_size=ranks))
    step, saved = 0, run.folder / "saved.pt"
    if saved.exists():
        state = torch.load(saved)
        step = state["step"]
        student.load_state_dict(state["student"])
        loader.load_state_dict(state["reader"])

    def save(step: int) -> None:
        readers = loader.state_dict()  # each rank takes part
        if rank == 0:
            state = {"step": step, "student": student.state_dict(), "reader": readers}
            torch.save(state, saved)

    plain = SimpleNamespace(
        accumulate=nullcontext, backward=torch.Tensor.backward, sync_gradients=True
    )
    train(run, loader, student, optimizer, plain, step, save)
    distributed.destroy_process_group()


TRAINERS: dict[str, Callable[[Run], None]] = {
    "lightning": by_lightning,
    "transformers": by_transformers,
    "accelerate": by_accelerate,
    "ddp": by_ddp,
}


def main(trainer: str, folder: str, teacher: str, *numbers: str) -> None:
    """Train as the command line says."""
    end_with_parent(grace_s=0.5)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    TRAINERS[trainer](Run(Path(folder), teacher, *map(int, numbers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
