"""Lightning, transformers, Accelerate, plain DDP: killed and resumed, each sample once."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl.integrations.ranks import TrainerLoader
from edl.runtime.errors import UsageError
from edl.runtime.supervise import python_command, start
from edl.tests.distill_reader.readers import NOBODY, reader_of
from edl.tests.integrations.trainings import BATCHES_PER_EPOCH, EPOCHS, SAMPLES
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

MODULE = "edl.tests.integrations.trainings"


def trained(folder: Path, trainer: str, teacher: str, *numbers: int, ranks: int = 1) -> list[int]:
    """Train in a process for each rank; returns their exit codes."""
    with ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            ddp = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MEET": f"meet{len(numbers)}"}
            command = python_command(trainer, MODULE, trainer, folder, teacher, *numbers)
            processes.append(
                start(replace(command, env={**command.env, **(ddp if ranks > 1 else {})}))
            )
            stack.callback(processes[-1].stop)
        codes = []
        for process in processes:
            code = process.wait(DEADLINE_S)
            assert code is not None, process.tail()
            assert code <= 0 or len(numbers) > 1, process.tail()
            codes.append(code)
        return codes


def steps_of(folder: Path, rank: int = 0) -> dict[int, list[int]]:
    """Return the samples of each step of the last run."""
    log = folder / f"log-{rank}.jsonl"
    steps = {line["step"]: line["ids"] for line in map(json.loads, log.read_text().splitlines())}
    log.unlink()
    return steps


@pytest.mark.parametrize(
    ("trainer", "ranks", "between_epochs"),
    [
        ("lightning", 1, False),
        pytest.param("lightning", 1, True, marks=pytest.mark.nightly),
        ("transformers", 1, False),
        pytest.param("transformers", 1, True, marks=pytest.mark.nightly),
        ("accelerate", 1, False),
        ("ddp", 2, False),
    ],
)
def test_a_killed_run_goes_on_and_trains_each_sample_once(
    trainer: str, ranks: int, between_epochs: bool, teacher_address: str, tmp_path: Path
) -> None:
    in_epoch = BATCHES_PER_EPOCH // ranks
    save_every, kill_at = (in_epoch, in_epoch + 1) if between_epochs else (4, in_epoch + 7)
    assert -9 in trained(tmp_path, trainer, teacher_address, save_every, kill_at, ranks=ranks)
    before = [steps_of(tmp_path, rank) for rank in range(ranks)]
    assert max(map(max, before)) == kill_at - 1
    assert trained(tmp_path, trainer, teacher_address, save_every, ranks=ranks) == [0] * ranks
    after = [steps_of(tmp_path, rank) for rank in range(ranks)]
    assert {min(steps) for steps in after} == {kill_at // save_every * save_every}
    runs = [{**first, **second} for first, second in zip(before, after, strict=True)]
    for epoch in range(EPOCHS):
        of_epoch = range(epoch * in_epoch, (epoch + 1) * in_epoch)
        ids = [sample for steps in runs for step in of_epoch for sample in steps[step]]
        assert sorted(ids) == list(range(SAMPLES)), epoch


def test_a_trainer_that_logs_nothing_logs_no_statistics() -> None:
    from edl.integrations.lightning import ReaderStatsLogger

    trainer = SimpleNamespace(global_step=3, log_every_n_steps=0, datamodule=None, loggers=[])
    ReaderStatsLogger().on_train_batch_end(trainer, None)


def test_ranks_of_different_lengths_are_refused() -> None:
    from edl.integrations.accelerate import AcceleratedLoader

    cpu = SimpleNamespace(type="cpu")
    accelerator = SimpleNamespace(process_index=0, num_processes=2, device=cpu)
    reader = reader_of([], NOBODY, world_size=2)
    for make in (TrainerLoader, lambda reader: AcceleratedLoader(accelerator, lambda **_: reader)):
        with pytest.raises(UsageError, match="uneven='drop' or uneven='pad'"):
            make(reader)
