"""Paddle's objects to contents and back: training goes on bit for bit as if it had not stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edl.runtime.errors import CheckpointMismatch
from edl.student.checkpoint import Contents
from edl.student.checkpoint.capture import TrainingObjects, capture, restore
from edl.tests.student.checkpoint.samples import (
    check_changed_rate,
    check_names_of_live_arrays,
    check_training_continues,
    same,
    train,
)

pytestmark = pytest.mark.system


def network(paddle: Any) -> Any:
    return paddle.nn.Sequential(
        paddle.nn.Linear(4, 8),
        paddle.nn.BatchNorm1D(8),
        paddle.nn.Dropout(0.5),
        paddle.nn.Linear(8, 3),
    )


def warm(paddle: Any) -> Any:
    cosine = paddle.optimizer.lr.CosineAnnealingDecay(0.1, 20)
    return paddle.optimizer.lr.LinearWarmup(cosine, 3, 0, 0.1)


def made(
    paddle: Any, optimizer: str, scheduled: bool = False, model: Any = None
) -> TrainingObjects:
    """Each call makes other names of parameters: those of Paddle count up."""
    model = network(paddle) if model is None else model
    rate = warm(paddle) if scheduled else 0.05
    return TrainingObjects(
        model, getattr(paddle.optimizer, optimizer)(rate, parameters=model.parameters())
    )


@pytest.mark.parametrize(
    ("optimizer", "scheduled"),
    [("SGD", False), ("Momentum", True), ("Adam", False), ("AdamW", True), ("Lamb", True)],
)
def test_training_continues(paddle: Any, tmp_path: Path, optimizer: str, scheduled: bool) -> None:

    def change(trained: TrainingObjects) -> None:
        if not scheduled:
            trained.optimizer.set_lr(0.03)  # as on a change of the world

    check_training_continues(lambda: made(paddle, optimizer, scheduled), tmp_path, change)


@pytest.mark.parametrize("growth", [1, 2])
def test_a_schedule_with_restarts_continues_within_its_period(paddle: Any, growth: int) -> None:
    def made_new() -> tuple[TrainingObjects, Any]:
        schedule = paddle.optimizer.lr.CosineAnnealingWarmRestarts(0.1, T_0=3, T_mult=growth)
        model = network(paddle)
        momentum = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
        return TrainingObjects(model, momentum), schedule

    def rates(schedule: Any, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            schedule.step()
            found.append(schedule())
        return found

    for steps in range(12):
        first, schedule = made_new()
        rates(schedule, steps)
        contents = capture(first, step=steps, world=1, state={}).copied()
        other, restored = made_new()
        restore(other, contents)
        assert rates(restored, 12) == rates(schedule, 12), f"after {steps} steps"


def test_a_changed_rate_is_as_if_it_had_been_so_from_the_start(paddle: Any) -> None:
    first = made(paddle, "Momentum")
    check_changed_rate(lambda: made(paddle, "Momentum", scheduled=True), first, "learning_rate")


def test_a_checkpoint_of_another_kind_of_schedule_is_refused(paddle: Any) -> None:
    model = network(paddle)
    step = paddle.optimizer.lr.StepDecay(0.1, 20)
    adam = paddle.optimizer.Adam(step, parameters=model.parameters())
    contents = capture(TrainingObjects(model, adam), step=1, world=1, state={}).copied()
    with pytest.raises(CheckpointMismatch, match="does not fit the job's: 'LinearWarmup_LR'"):
        restore(made(paddle, "Adam", scheduled=True), contents)


def test_names_are_those_of_the_network_and_arrays_are_live_until_they_are_copied(
    paddle: Any,
) -> None:
    names = {"model/0.weight", "model/1._mean", "optimizer/3.bias:velocity"}
    check_names_of_live_arrays(made(paddle, "Momentum"), names, 8 + 6)


def test_master_weights_have_names_of_the_network(paddle: Any) -> None:
    """What mixed precision of level O2 keeps in float32, beside parameters in 16 bits."""
    trained, other = made(paddle, "Adam"), made(paddle, "Adam")
    train(trained, 1)
    weight = trained.model[0].weight
    copy = paddle.to_tensor(weight.numpy() + 1)
    # Private, as Paddle makes them only on a GPU.
    trained.optimizer._master_weights = {weight.name: copy}  # noqa: SLF001
    contents = capture(trained, step=1, world=1, state={}).copied()
    restore(other, contents)
    (found,) = other.optimizer.state_dict()["master_weights"].items()
    assert found[0] == other.model[0].weight.name
    np.testing.assert_array_equal(found[1].numpy(), contents.tensors["optimizer/0.weight:master"])


def test_a_scaler(paddle: Any) -> None:
    """Paddle's GradScaler is off on a CPU."""
    state = {"scale": np.array([1024.0], np.float32), "incr_ratio": 2.0, "incr_count": 3}
    model, scaler = network(paddle), Mock(**{"state_dict.return_value": state})
    contents = capture(TrainingObjects(model, scaler=scaler), step=0, world=1, state={})
    again = Contents(0, 1, contents.copied().tensors, json.loads(json.dumps(contents.state)))
    restore(TrainingObjects(model, scaler=scaler), again)
    ((restored,), _) = scaler.load_state_dict.call_args
    assert restored == state
    assert np.asarray(restored["scale"]).dtype == np.float32


def wider(paddle: Any) -> Any:
    model = network(paddle)
    model[0] = paddle.nn.Linear(4, 9)
    return model


OTHER_SHAPE = r"0\.weight is float32\[4, 8\] in the checkpoint and float32\[4, 9\] in the job"
OTHER_NAMES = r"not in the checkpoint: bias, weight; not in the job: 0\.bias, .*"


@pytest.mark.parametrize(
    ("model", "optimizer", "scheduled", "match"),
    [
        (wider, "Adam", False, OTHER_SHAPE),
        (lambda paddle: paddle.nn.Linear(3, 4), "Adam", False, OTHER_NAMES),
        (network, "SGD", False, r"optimizer Adam, the\s+job has SGD"),
        (network, "Adam", True, "fixed learning rate, the job's has a schedule"),
    ],
)
def test_a_mismatch_changes_nothing(
    paddle: Any, model: Callable[[Any], Any], optimizer: str, scheduled: bool, match: str
) -> None:
    trained, mine = made(paddle, "Adam"), made(paddle, optimizer, scheduled, model(paddle))
    train(trained, 1)
    contents = capture(trained, step=1, world=1, state={}).copied()
    before = capture(mine, step=0, world=1, state={}).copied()
    with pytest.raises(CheckpointMismatch, match=match) as told:
        restore(mine, contents)
    assert told.value.exit_code == 2
    assert "\n" not in str(told.value)
    after = capture(mine, step=0, world=1, state={})
    assert same(before, after)
    assert before.state == after.state
