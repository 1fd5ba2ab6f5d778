"""Hugging Face transformers: a mixin for `Trainer` that distils from teachers."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from ..distill_reader.reader import DistilReader
from ..distill_reader.saved_state import State
from ..runtime.errors import UsageError
from ..student.job.distill import check_hard_term
from ..student.losses.distill_loss import DistillLoss
from .ranks import TrainerLoader, of_all_ranks

#: The file in each checkpoint with the states of the readers of all ranks.
STATE_FILE: Final = "reader_state.json"


class MakeReaderOf(Protocol):
    """A function that creates the reader of this process over the Trainer's training data."""

    def __call__(
        self, loader: torch.utils.data.DataLoader[Any], /, *, rank: int, world_size: int
    ) -> DistilReader: ...


class DistilTrainerMixin:
    """Adds teachers to a Trainer: `class MyTrainer(DistilTrainerMixin, Trainer): pass`.

    The loss of a training batch is `alpha` times the model's own loss plus the soft term of
    `distill_loss`. A batch that the reader delivers without soft labels (`no_teacher="hard_only"`)
    has only the model's loss. Evaluation has no soft labels and is unchanged. Checkpoints contain
    the states of the readers of all ranks; a run that continues from a checkpoint trains each
    remaining sample of the epoch once. `ignore_data_skip` is set, because the reader continues at
    its position by itself.

    Args:
        *args: arguments of the Trainer.
        make_reader: creates the reader, as in `lambda loader, **ranks: DistilReader(loader,
            service=..., coordinator=..., uneven="drop", **ranks)`. The loader has the Trainer's
            training data, sampler, batch size and collator; the reader divides it among ranks, and
            seeds the sampler by its own `seed`, not by `seed` and `data_seed` of the Trainer. If
            the Trainer removes unused columns, it keeps the fields in `feeds` for teachers.
        distill_loss: weights and temperature.
        soft_label: name of the teacher's output with the soft labels [N, ..., C].
        logits: name of the model's output with the student's logits, of the same shape.
        **kwargs: arguments of the Trainer.

    Raises:
        UsageError: `beta` is 0, the Trainer has a hard loss of its own, or its sampler is
            "batch_rebalance", which divides samples among ranks. `train` also raises it if there is
            no checkpoint to resume from, if the checkpoint has no state of the readers, if the
            batches have no `soft_label`, if `alpha` is above 0 and the model returns no loss, if
            `alpha` is 0 and the reader has `no_teacher="hard_only"`, or if it has several ranks and
            `uneven="keep"`.
    """

    def __init__(
        self,
        *args: Any,
        make_reader: MakeReaderOf,
        distill_loss: DistillLoss,
        soft_label: str = "logits",
        logits: str = "logits",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.args: Any
        self.args.ignore_data_skip = True
        #: The loss is a mean, so the Trainer has to divide it by the number of accumulated batches.
        self.model_accepts_loss_kwargs = False
        if not distill_loss.beta:
            raise UsageError(
                "beta is 0, so soft labels would have no effect: use the Trainer alone"
            )
        if self.compute_loss_func is not None or self.args.label_smoothing_factor:  # type: ignore[attr-defined]
            raise UsageError(
                "the hard loss is the model's own, so compute_loss_func and label_smoothing_factor"
                " would have no effect: leave them out"
            )
        if getattr(self.args, "train_sampling_strategy", "") == "batch_rebalance":
            raise UsageError(
                "train_sampling_strategy='batch_rebalance' divides samples among ranks, which the"
                " reader does: choose another"
            )
        self._make_reader = make_reader
        self._alpha = distill_loss.alpha
        self._soft_loss = copy.copy(distill_loss)
        self._soft_loss.alpha = 0.0
        self._soft_label, self._logits = soft_label, logits
        self._teacher_fields: Set[Any] = frozenset()  # only teachers get them
        self._checkpoint: Path | None = None
        self._callback = ReaderStateCallback()
        self.add_callback(self._callback)  # type: ignore[attr-defined]

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train as the Trainer does, and close the reader at the end."""
        checkpoint = resume_from_checkpoint
        if checkpoint is True and (checkpoint := get_last_checkpoint(self.args.output_dir)) is None:
            raise UsageError(f"there is no checkpoint in {self.args.output_dir} to resume from")
        self._checkpoint = Path(checkpoint) if checkpoint else None
        try:
            return super().train(resume_from_checkpoint=checkpoint, **kwargs)  # type: ignore[misc]
        finally:
            self._callback.close()

    def get_train_dataloader(self) -> TrainerLoader:
        """Create the reader of this process, at the position of the checkpoint if there is one."""
        dataset, args = self.train_dataset, self.args  # type: ignore[attr-defined]
        is_map = not isinstance(dataset, torch.utils.data.IterableDataset)
        collator = self._get_collator_with_removed_columns(self.data_collator)  # type: ignore[attr-defined]
        loader = torch.utils.data.DataLoader(
            dataset,
            # Not the batch size of `args`: `auto_find_batch_size` reduces `_train_batch_size` only.
            batch_size=self._train_batch_size,  # type: ignore[attr-defined]
            sampler=self._get_train_sampler() if is_map else None,  # type: ignore[attr-defined]
            collate_fn=collator,
            num_workers=args.dataloader_num_workers,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            drop_last=args.dataloader_drop_last,
        )
        reader = self._make_reader(loader, rank=args.process_index, world_size=args.world_size)
        if args.remove_unused_columns and (feeds := reader.config.feeds):
            columns = collator.signature_columns
            self._teacher_fields = {field for _, field in feeds}.difference(columns)
            collator.signature_columns = [*columns, *self._teacher_fields]
        ranked = TrainerLoader(reader)
        self._callback.follow(ranked, self._checkpoint)
        check_hard_term(reader.config.no_teacher, self._alpha)
        return ranked

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Not in `on_save`: a checkpoint of `enable_jit_checkpoint` has no such event.
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        folder = self._get_output_dir(trial)  # type: ignore[attr-defined]
        self._callback.save(Path(folder), self.args, self.state)  # type: ignore[attr-defined]

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a batch; with `return_outputs` also the model's outputs."""
        mask = inputs.get("attention_mask")
        if "decoder_input_ids" in inputs:  # the attention mask is that of the encoder
            mask = inputs["labels"] != -100 if "labels" in inputs else None
        if self._soft_label not in inputs:
            # The model may ignore unknown inputs, so it would train without the soft labels.
            if model.training:
                raise UsageError(
                    f"the batches have no {self._soft_label!r}, they have {', '.join(inputs)}: name"
                    " the teachers' output with the soft labels as soft_label="
                )
            return super().compute_loss(  # type: ignore[misc]
                model, inputs, return_outputs, num_items_in_batch=num_items_in_batch
            )
        soft_label = inputs[self._soft_label]
        unused = {self._soft_label, *self._teacher_fields}
        inputs = {name: value for name, value in inputs.items() if name not in unused}
        outputs = model(**inputs)
        loss: Any = 0.0
        if soft_label is not None:  # None: there was no teacher
            logits = outputs[self._logits]
            has_mask = mask is not None and mask.shape == logits.shape[:-1]
            loss = self._soft_loss(logits, None, soft_label, mask if has_mask else None)
        if self._alpha:
            if (model_loss := outputs.get("loss")) is None:
                raise UsageError(
                    f"alpha is {self._alpha:g}, and the model returns no loss: the batches need "
                    "`labels`"
                )
            loss = self._alpha * model_loss + loss
        return (loss, outputs) if return_outputs else loss


class ReaderStateCallback(TrainerCallback):  # type: ignore[misc]
    """Writes the states of the readers of all ranks into the checkpoints of a Trainer.

    A checkpoint in the middle of a step gets the state before the step: the Trainer has taken the
    batches of the step, but has not trained them.
    """

    def __init__(self) -> None:
        self._loader: TrainerLoader | None = None
        self._step = -1
        self._state: State = {}  # after this step

    def follow(self, loader: TrainerLoader, checkpoint: Path | None) -> None:
        """Move a loader to the position of a checkpoint, if any; from now on save its state."""
        self.close()
        self._loader = loader
        if checkpoint is None:
            return
        try:
            state = json.loads((checkpoint / STATE_FILE).read_text())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{checkpoint} has no valid {STATE_FILE} ({reason}), so it is not known which "
                "samples were trained: the save was interrupted, or was not made by a "
                "DistilTrainerMixin; resume from an earlier checkpoint"
            ) from None
        loader.load_state_dict(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._loader is not None:
            self._step, self._state = state.global_step, self._loader.reader.state_dict()

    on_train_begin = on_step_end

    def save(self, folder: Path, args: Any, state: Any) -> None:
        """Write the states into the checkpoint of this step, in a folder. Collective."""
        if self._loader is None:
            return
        if self._step != state.global_step:  # saved by an earlier callback of this event
            self.on_step_end(args, state, None)
        states = of_all_ranks(self._state)
        if args.should_save:
            folder /= f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            (folder / STATE_FILE).write_text(json.dumps(states))

    def close(self) -> None:
        if self._loader is not None:
            self._loader.reader.close()
        self._loader = None
