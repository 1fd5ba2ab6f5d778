"""PyTorch behind the interface of frameworks: state, learning rates, kinds, gradients."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from edl.runtime.addresses import join_address
from edl.runtime.errors import CheckpointMismatch, JobError, UsageError
from edl.student import load_job
from edl.student.checkpoint.capture import TrainingObjects, capture, restore
from edl.student.frameworks import (
    Framework,
    FrameworkName,
    framework_named,
    framework_of,
    framework_of_job,
)
from edl.student.frameworks.groups import Group
from edl.tests.student.checkpoint.samples import (
    check_changed_rate,
    check_names_of_live_arrays,
    check_training_continues,
    train,
)
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

TORCH: Framework
torch: Any
schedulers: Any


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Import PyTorch only where these tests run."""
    global TORCH, torch, schedulers
    torch = pytest.importorskip("torch")
    TORCH = framework_named("torch")
    schedulers = torch.optim.lr_scheduler


#: Schedules of a rate, by the optimizer.
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda optimizer: None,
    "cosine": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 30),
    "steps": lambda optimizer: schedulers.MultiStepLR(optimizer, [3, 7], 0.5),
    "one cycle": lambda optimizer: schedulers.OneCycleLR(optimizer, 0.1, total_steps=40),
    "lambda": lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: 0.9**step),
    "plateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=1, factor=0.5),
    "in turn": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.LinearLR(optimizer, 0.1, 1.0, 4), schedulers.ExponentialLR(optimizer, 0.9)],
        [4],
    ),
    "warm, then steps": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.LinearLR(optimizer, 0.1, 1.0, 4), schedulers.MultiStepLR(optimizer, [2])],
        [7],
    ),
}


def network() -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def made(name: str, schedule: str = "none", lr: float = 0.05, **options: Any) -> TrainingObjects:
    model = network()
    rate = torch.tensor(lr) if options.get("fused") else lr
    groups = [
        {"params": model[0].parameters(), "lr": rate / 5},
        {"params": [*model[1].parameters(), *model[3].parameters()]},
    ]
    plain = getattr(torch.optim, name)(groups, lr=rate, **options)
    return TrainingObjects(model, with_schedule(plain, schedule))


def with_schedule(optimizer: Any, schedule: str) -> Any:
    made_schedule = SCHEDULES[schedule](optimizer)
    return optimizer if made_schedule is None else (optimizer, made_schedule)


@pytest.mark.parametrize(
    ("optimizer", "schedule", "options"),
    [
        ("SGD", "none", {}),
        ("SGD", "cosine", {"momentum": 0.9}),
        ("Adam", "steps", {}),
        ("AdamW", "one cycle", {}),
        ("AdamW", "in turn", {"amsgrad": True}),
        ("AdamW", "in turn", {"fused": True}),
        ("Adam", "warm, then steps", {}),
        ("RMSprop", "lambda", {}),
        ("Adagrad", "plateau", {}),
    ],
)
def test_training_continues(
    tmp_path: Path, optimizer: str, schedule: str, options: dict[str, Any]
) -> None:
    check_training_continues(lambda: made(optimizer, schedule, **options), tmp_path)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES.keys() - {"plateau"}))
def test_a_changed_rate_is_as_if_it_had_been_so_from_the_start(schedule: str) -> None:
    check_changed_rate(lambda: made("Adam", schedule, lr=0.5), made("Adam", "cosine"), "lr")


def test_settings_that_have_not_changed_continue() -> None:
    first, job = made("AdamW", "plateau"), made("AdamW", "plateau", weight_decay=0.5)
    schedule = job.optimizer.schedule
    schedule.patience = 7
    train(first, 9)
    contents = capture(first, step=9, world=1, state={}).copied()
    restore(job, contents, changed=("weight_decay", "schedule.patience"))
    assert job.optimizer.get_lr() == first.optimizer.get_lr() == 0.005
    assert (schedule.patience, schedule.num_bad_epochs) == (7, 1)
    assert job.optimizer.optimizer.param_groups[0]["weight_decay"] == 0.5


def test_names_are_those_of_the_network_and_arrays_are_live() -> None:
    names = {"model/0.weight", "model/1.running_mean", "optimizer/3.bias:exp_avg"}
    check_names_of_live_arrays(made("Adam"), names, 9 + 3 * 6)


@pytest.mark.parametrize("name", ["paddle", "torch"])
def test_bfloat16_is_kept_bit_for_bit(name: FrameworkName) -> None:
    framework = framework_named(name)
    module = framework.module
    one, other = (module.nn.Linear(3, 4).to(dtype=module.bfloat16) for _ in range(2))
    contents = capture(TrainingObjects(one), step=0, world=1, state={}).copied()
    assert contents.tensors["model/weight"].dtype.name == "bfloat16"
    restore(TrainingObjects(other), contents)
    assert framework.array(one.weight).tobytes() == framework.array(other.weight).tobytes()


def test_extra_states_of_layers_are_restored() -> None:
    class Layer(torch.nn.Linear):  # type: ignore[misc]  # PyTorch has no types here
        extra: Any = None

        def get_extra_state(self) -> Any:
            return self.extra

        def set_extra_state(self, state: Any) -> None:
            self.extra = state

    first, other = Layer(1, 1), Layer(1, 1)
    first.extra = {"scales": (torch.tensor(0.5), 2), "more": torch.tensor([7, 8])}
    other.extra = {"scales": (torch.tensor(0.0), 0), "more": torch.tensor([])}
    trained = TrainingObjects(torch.nn.Sequential(first))
    contents = capture(trained, step=0, world=1, state={}).copied()
    restore(TrainingObjects(torch.nn.Sequential(other)), contents)
    assert other.extra["scales"] == first.extra["scales"]
    assert other.extra["more"].tolist() == [7.0, 8.0]
    first.extra = object()
    with pytest.raises(UsageError, match=r"cannot hold 0\._extra_state"):
        capture(trained, step=0, world=1, state={})


def one_group() -> TrainingObjects:
    model = network()
    adamw = torch.optim.AdamW(model.parameters())
    return TrainingObjects(model, TORCH.optimizer(with_schedule(adamw, "cosine")))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (lambda: made("Adam"), "has the optimizer AdamW, the job has Adam"),
        (lambda: made("AdamW"), "with a schedule of the learning rate, the job's has a fixed"),
        (one_group, "has 2 groups of parameters, the job's has 1"),
        (lambda: TrainingObjects(torch.nn.Linear(4, 8)), "not in the checkpoint: bias, weight"),
    ],
)
def test_another_job_is_refused(job: Callable[[], TrainingObjects], message: str) -> None:
    trained = made("AdamW", "cosine")
    train(trained, 2)
    contents = capture(trained, step=2, world=1, state={}).copied()
    with pytest.raises(CheckpointMismatch, match=message):
        restore(job(), contents)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_factor_multiplies_what_the_schedule_computes(schedule: str) -> None:
    plain, scaled = made("SGD", schedule), made("SGD", schedule)
    rates = [TORCH.learning_rate(one.optimizer) for one in (plain, scaled)]
    rates[1].scale(1.0)
    rates[1].scale(4.0)
    rates[1].scale(0.5)
    assert rates[1].factor == 2.0
    for step in range(10):
        for one, rate in zip((plain, scaled), rates, strict=True):
            one.optimizer.step()
            rate.step()
            if step % 3 == 0:
                rate.evaluated(1.0)
        assert scaled.optimizer.get_lr() == pytest.approx(2 * plain.optimizer.get_lr())


def test_an_optimizer_is_one_or_a_pair_with_its_schedule() -> None:
    model = network()
    one, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    schedule = schedulers.ConstantLR(one)
    assert TORCH.optimizer(one).schedule is None
    assert TORCH.optimizer((one, schedule)).schedule is schedule
    for wrong in (None, model, schedule, (other, schedule), (one, None), (one,), "sgd"):
        assert TORCH.optimizer(wrong) is None


def test_a_loss_is_a_scalar() -> None:
    for value in (torch.tensor(1.5), torch.tensor([1.5]), torch.tensor([[1.5]])):
        found = TORCH.scalar(value)
        assert (found.ndim, float(found)) == (0, 1.5)
    for value in (torch.tensor(1), torch.tensor([1.5, 2.0]), 1.5, np.float32(1.5)):
        assert TORCH.scalar(value) is None


def test_mixed_precision() -> None:
    with TORCH.precision("bfloat16", "cpu").forward():
        assert network()(torch.ones(2, 4)).dtype is torch.bfloat16
    with TORCH.precision("off", "cpu").forward():
        assert network()(torch.ones(2, 4)).dtype is torch.float32
    with pytest.raises(UsageError, match="float16 needs a GPU"):
        TORCH.precision("float16", "cpu")


def test_a_rank_without_rows_in_its_first_step_takes_it_with_a_scaler() -> None:
    """It runs no backward pass; the sum over all ranks gives it gradients."""
    layer = torch.nn.Linear(3, 2)
    optimizer = TORCH.optimizer(torch.optim.SGD(layer.parameters(), lr=1.0))
    precision = TORCH.mixed_precision("float16", "cpu")
    before = layer.bias.detach().clone()
    for parameter in layer.parameters():
        parameter.grad = precision.scaler.get_scale() * torch.ones_like(parameter)
    precision.step(optimizer)
    assert torch.equal(layer.bias.detach(), before - 1)


def test_arrays_become_tensors_and_all_else_stays() -> None:
    import ml_dtypes

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    frozen = x.copy()
    frozen.flags.writeable = False
    for array in (x, frozen, x[::-1], x.T):
        np.testing.assert_array_equal(TORCH.tensor(array).numpy(), array)
    assert TORCH.tensor(x.astype(ml_dtypes.bfloat16)).dtype is torch.bfloat16
    tensor = torch.ones(2)
    assert TORCH.tensor(tensor) is tensor
    assert TORCH.tensor("name") == "name"


class TwoRanks:
    """Stands in for a process group with a rank of the same gradients, or of none."""

    def __init__(self, same_as_ours: bool) -> None:
        self._factor = 1.0 + same_as_ours

    def add(self, name: str, more: int) -> int:
        return 2

    def all_reduce(self, tensor: Any, async_op: bool) -> TwoRanks:
        tensor.mul_(self._factor)
        return self

    def wait(self) -> None: ...


def join(
    ranks: TwoRanks, monkeypatch: pytest.MonkeyPatch, rank: int = 0, host: str = "127.0.0.1"
) -> Group:
    monkeypatch.setattr("torch.distributed.TCPStore", lambda *_, **__: ranks)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: None)
    monkeypatch.setattr("torch.distributed.all_reduce", ranks.all_reduce)
    return TORCH.join(rank, [join_address(host, 1), join_address(host, 2)], "cpu")


def test_gloo_takes_the_interface_of_the_ranks_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "chosen")
    join(TwoRanks(same_as_ours=True), monkeypatch)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "chosen", "by the user"
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                monkeypatch.delenv("GLOO_SOCKET_IFNAME")
                join(TwoRanks(same_as_ours=True), monkeypatch, host=entry.address)
                assert os.environ["GLOO_SOCKET_IFNAME"] == name


def test_buffers_that_are_equal_on_all_ranks_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    group = join(TwoRanks(same_as_ours=True), monkeypatch)
    limits = torch.finfo(torch.float32)
    buffers = [
        torch.tensor([limits.min, limits.max, 0.1]),
        torch.tensor([0.1, 1e300], dtype=torch.float64),
        torch.tensor([65504.0, 0.1], dtype=torch.float16),
        torch.tensor([0.1]).expand(4),
    ]
    before = [one.clone() for one in buffers]
    group.average(buffers)
    assert all(map(torch.equal, buffers, before))
    with torch.inference_mode():
        fixed = torch.ones(2)
    with pytest.raises(RuntimeError, match="inference tensor"):  # no peer is lost
        group.average([fixed])


def test_buffers_of_any_layout_and_dtype_become_those_of_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []

    def broadcast(tensor: Any, src: int) -> None:
        """As gloo, which takes memory from the first element on, whatever the strides."""
        assert tensor.dtype is not torch.int16, "gloo cannot send it"
        memory = tensor.as_strided((tensor.numel(),), (1,))
        if group.rank == src:
            sent.append(memory.clone())
        else:
            memory.copy_(sent.pop(0))

    def buffers(first: int) -> list[Any]:
        table = torch.arange(first, first + 12, dtype=torch.int16).reshape(3, 4)
        expanded = torch.tensor([float(first)]).expand(2, 4)
        return [table[:, ::2], table.t(), expanded, torch.tensor(first), torch.zeros(0)]

    monkeypatch.setattr("torch.distributed.broadcast", broadcast)
    for rank in (0, 1):
        group, ours = join(TwoRanks(True), monkeypatch, rank), buffers(100 * rank)
        group.share(ours)
        assert all(map(torch.equal, ours, buffers(0)))


@pytest.mark.parametrize("same_as_ours", [True, False])
def test_gradients_are_summed_and_sparse_ones_stay_sparse(
    same_as_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = join(TwoRanks(same_as_ours), monkeypatch)
    dense, unused = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)
    signs = torch.nn.Embedding(5, 3, sparse=True)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    dense(signs(torch.tensor([1, 1, 4]))).sum().backward()
    parameters = [*dense.parameters(), *unused.parameters(), *signs.parameters(), frozen]
    before = [one.grad.clone() for one in dense.parameters()]
    rows = signs.weight.grad.to_dense()
    group.sum_gradients(parameters)
    factor = 1 + same_as_ours
    for one, old in zip(parameters[:2], before, strict=True):
        assert torch.equal(one.grad, factor * old)
    assert all(one.grad is None for one in (*unused.parameters(), frozen))
    assert signs.weight.grad.is_sparse
    assert torch.equal(signs.weight.grad.to_dense(), factor * rows)


def test_gradients_of_parameters_that_a_job_unfreezes_are_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = join(TwoRanks(same_as_ours=True), monkeypatch)
    head, body = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False)
    parameters = [*head.parameters(), *body.parameters()]
    for _ in range(3):
        for one in parameters:
            one.grad = None
        head(body(torch.ones(1, 2))).sum().backward()
        before = [None if one.grad is None else one.grad.clone() for one in parameters]
        group.sum_gradients(parameters)
        for one, old in zip(parameters, before, strict=True):
            if old is None:
                assert one.grad is None
            else:
                assert torch.equal(one.grad, 2 * old)
        body.requires_grad_(True)


@pytest.mark.parametrize("name", ["paddle", "torch"])
def test_random_sequences_continue_and_those_of_other_ranks_differ(name: FrameworkName) -> None:
    framework = framework_named(name)
    trained = TrainingObjects(framework.module.nn.Linear(1, 1))
    contents = capture(trained, step=0, world=2, state={}).copied()

    def drawn(rank: int | None) -> list[float]:
        if rank is not None:
            restore(trained, contents, rank=rank)
        return [random.random(), float(np.random.rand()), framework.module.rand([1]).item()]

    assert drawn(None) == drawn(0)
    assert drawn(1) == drawn(1)
    assert len({*drawn(0), *drawn(1), *drawn(2)}) == 9
    if name == "torch":
        contents.state["training"]["random"]["torch"] = {"cpu": "AAAA"}  # as of another version
        with pytest.raises(CheckpointMismatch, match="generators cannot be set"):
            drawn(0)


# --- whose job it is

LOADS = """
import sys
from edl.student import load_job
from edl.student.dry_run import rehearse
from edl.student.job.assembly import assemble
rehearse(assemble(load_job(sys.argv[1])))
print(*sorted({"paddle", "torch"} & set(sys.modules)))
"""


@pytest.mark.parametrize(("job", "name"), [("torch_job", "torch"), ("small_job", "paddle")])
def test_a_job_loads_its_own_framework_alone(job: str, name: str) -> None:
    file = Path(__file__).parents[1] / "rank" / f"{job}.py"
    command = [sys.executable, "-P", "-c", LOADS, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert done.stdout.split() == [name]


def test_the_framework_of_a_job_is_the_one_that_it_imports() -> None:
    import paddle

    for values, name in (
        ({"torch": torch}, "torch"),
        ({"nn": torch.nn}, "torch"),
        ({"Linear": torch.nn.Linear}, "torch"),
        ({"paddle": paddle, "x": 1}, "paddle"),
        ({"paddle": paddle, "torch": torch}, "paddle"),
        ({"paddle": paddle, "torch": torch, "FRAMEWORK": "torch"}, "torch"),
    ):
        assert framework_of_job(Mock(spec=[*values], **values)).name == name
    with pytest.raises(UsageError, match="FRAMEWORK is 'paddle' or 'torch', not 'jax'"):
        framework_of_job(Mock(FRAMEWORK="jax"))


def test_a_model_of_the_other_framework_says_what_to_write(write_job: Callable[..., Path]) -> None:
    text = """
import paddle
def model():
    import torch
    return torch.nn.Linear(2, 2)
def loss(outputs, labels): pass
def optimizer(parameters): pass
def feed(split): return []
"""
    with pytest.raises(JobError, match=r"imports paddle; .* of torch: write FRAMEWORK = 'torch'"):
        load_job(write_job(text)).model()
    assert framework_of(load_job(write_job("FRAMEWORK = 'torch'" + text)).model()) is TORCH
    with pytest.raises(UsageError, match="a model of Paddle or PyTorch is needed, not a dict"):
        framework_of({})
