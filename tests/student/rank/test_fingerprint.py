"""Fingerprints of job files: what they tell apart."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl.runtime.errors import JobError
from edl.scheduler.students.fingerprint import FIELDS, differences
from edl.student.rank.fingerprint import fingerprint_of
from edl.student.settings import TrainSettings

pytestmark = pytest.mark.system

JOB = """
import paddle
from edl.student import Distill
from rates import RATE

class Points(paddle.io.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index

def model():
    return paddle.nn.Linear(2, 1)

def loss(outputs, labels):
    return outputs.mean()

def optimizer(parameters):
    rate = paddle.optimizer.lr.StepDecay(RATE, step_size=30)
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    return paddle.optimizer.Momentum(rate, parameters=parameters, weight_decay=1e-4, grad_clip=clip)

def feed(split):
    return paddle.io.DataLoader(Points(), batch_size=4, shuffle=True)

def distill():
    return Distill(service="resnet101", feeds=["image"], temperature=2.0)
"""


@pytest.fixture
def fingerprint(write_job: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """Takes the fingerprint of the job with text replaced, and with other settings."""
    write_job("RATE = 0.1\n", "rates.py")

    def taken(before: str = "", after: str = "", **given: Any) -> dict[str, Any]:
        path = write_job(JOB.replace(before, after) if before else JOB)
        return fingerprint_of(TrainSettings(str(path), "job", **{"epochs": 1, **given}))

    return taken


def test_what_a_job_says(fingerprint: Callable[..., dict[str, Any]]) -> None:
    told = fingerprint()
    assert tuple(told) == FIELDS
    assert told == fingerprint(micro_batch=2, ranks_per_node=2, hang_s=1.0, save_every_s=1.0)
    assert (told["rows"], told["total_batch"], told["service"]) == (24, 4, "resnet101")
    assert list(told["modules"]) == ["rates.py"]
    optimizer = told["optimizer"]
    assert (optimizer["type"], optimizer["momentum"]) == ("Momentum", 0.9)
    assert optimizer["regularization_coeff"] == 1e-4
    assert optimizer["learning_rate"]["gamma"] == 0.1
    assert optimizer["grad_clip"]["clip_norm"] == 1.0
    assert told["loss"]["temperature"] == 2.0


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("return outputs.mean()", "return outputs.sum()", None),
        ("return 24", "return 25", "rows"),
        ("batch_size=4", "batch_size=6", "total_batch"),
        ("shuffle=True", "shuffle=False", "sampler"),
        ("Momentum(rate", "Momentum(0.1", "optimizer"),
        ("step_size=30", "step_size=40", "optimizer"),
        ("GlobalNorm(1.0)", "GlobalNorm(2.0)", "optimizer"),
        ("temperature=2.0", "temperature=3.0", "loss"),
        ('"resnet101"', '"resnet50"', "service"),
        ('["image"]', '["picture"]', "feeds"),
    ],
)
def test_each_change_of_the_job_file_is_named(
    fingerprint: Callable[..., dict[str, Any]], before: str, after: str, field: str | None
) -> None:
    found = differences(fingerprint(), fingerprint(before, after))
    assert [one.field for one in found] == ["job_file", *([field] if field else [])]


@pytest.mark.parametrize(
    ("returned", "message"), [("1 / 0", "ZeroDivisionError"), ("['top5']", "must return a dict")]
)
def test_metrics_that_fail_are_refused(
    fingerprint: Callable[..., dict[str, Any]], returned: str, message: str
) -> None:
    with pytest.raises(JobError, match=rf"in metrics\(\): {message}"):
        fingerprint("def model():", f"def metrics():\n    return {returned}\n\ndef model():")


def test_each_changed_setting_is_named(fingerprint: Callable[..., dict[str, Any]]) -> None:
    before = fingerprint()
    for field, given in (
        ("seed", {"seed": 7}),
        ("total_batch", {"total_batch": 12}),
        ("sharding", {"deal": "static"}),
        ("shard_rows", {"shard_rows": 8}),
        ("precision", {"amp": "bfloat16"}),
        ("lr_policy", {"lr_policy": "linear"}),
        ("epochs", {"epochs": 2}),
        ("steps", {"steps": 5}),
    ):
        assert [one.field for one in differences(before, fingerprint(**given))] == [field]
    static = fingerprint(deal="static")
    assert static == fingerprint(deal="static", shard_rows=8), "there are no shards"


def test_the_feed_tells_a_schedule_of_weights_the_length_of_the_training(
    fingerprint: Callable[..., dict[str, Any]],
) -> None:
    schedule = 'temperature=2.0, beta=__import__("edl.student").student.Linear(1.0, 0.1)'
    assert fingerprint("temperature=2.0", schedule, epochs=3)["loss"]["beta"]["last"] == 0.1


def test_a_change_of_an_imported_module_is_named(
    fingerprint: Callable[..., dict[str, Any]],
    write_job: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = fingerprint()
    write_job("RATE = 0.1  # for now\n", "rates.py")
    assert [one.field for one in differences(before, fingerprint())] == ["modules"]
    # It may lie below the interpreter, as /usr/src/app under the /usr of a system's own Python.
    monkeypatch.setattr(sys, "prefix", str(tmp_path.parent))
    assert list(fingerprint()["modules"]) == ["rates.py"]


def test_what_a_group_of_parameters_has_of_its_own_is_named(
    fingerprint: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not stand in the job file."""
    groups = '[{"params": parameters, "weight_decay": float(os.environ["DECAY"])}]'
    before, after = ("import paddle\n", "import os\nimport paddle\n")
    taken = []
    for decay in ("0.1", "0.2"):
        monkeypatch.setenv("DECAY", decay)
        job = JOB.replace(before, after).replace("parameters=parameters", f"parameters={groups}")
        taken.append(fingerprint(JOB, job))
    assert [one.field for one in differences(*taken)] == ["parameter_groups"]
