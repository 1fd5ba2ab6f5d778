"""`edl profile`: what becomes of times, and one real job with an emulated teacher."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edl.cli import command_line
from edl.mesh.files import read
from edl.mesh.plan.job_file import Profile
from edl.mesh.profile.cli import label_bytes, source_rate, student_rate, teacher_rate
from edl.mesh.profile.step_timings import StepTimings
from edl.tests.cli_output import output_of, refusal_of

pytestmark = pytest.mark.system
JOB = """
import numpy as np
import paddle
from edl.student import Distill

def model():
    return paddle.nn.Linear(64, 10)

def loss(outputs, labels):
    return paddle.nn.functional.cross_entropy(outputs, labels)

def optimizer(parameters):
    return paddle.optimizer.SGD(0.1, parameters=parameters)

def feed(split):
    image = np.ones((8, 64), "float32")
    return [(image, np.arange(8))] * 3

def distill():
    return Distill(service="x", fetches=["logits"], loss="{loss}", {more})
"""


def steps(whole_s: tuple[float, ...], half_s: tuple[float, ...]) -> StepTimings:
    return StepTimings(10, whole_s, half_s, (0.02,), 100, 64.0, (), "cpu")


def test_what_is_fixed_per_batch_is_told_from_what_a_sample_adds() -> None:
    rate = student_rate(steps((0.11, 0.12, 5.0), (0.07, 0.07, 0.07)))
    assert rate.batch_s(10) == pytest.approx(0.12)
    assert rate.batch_overhead_s == pytest.approx(0.02)
    assert rate.sample_s == pytest.approx(0.01)
    assert student_rate(steps((0.1,), ())).sample_s == pytest.approx(0.01)
    # Half a batch that takes longer than a whole one is noise: nothing becomes negative.
    for half_s in (0.01, 0.05, 0.1, 0.3):
        odd = student_rate(steps((0.1,), (half_s,)))
        assert odd.batch_s(10) == pytest.approx(0.1)
        assert odd.sample_s > 0 <= odd.batch_overhead_s
    assert source_rate(steps((0.1,), ())) == pytest.approx(500)


def test_the_best_micro_batch_that_a_batch_has_room_for() -> None:
    rows = [
        {"batch": size, "p50_s": p50_s, "p99_s": 1.1 * p50_s, "samples_per_s": size / p50_s}
        for size, p50_s in ((1, 0.01), (8, 0.04), (32, 0.1))
    ]
    assert teacher_rate(rows, 64).micro_batch == 32
    rate = teacher_rate(rows, 16)
    assert rate.micro_batch == 8
    assert rate.sample_s == pytest.approx(0.005)
    assert 0 < rate.jitter < 0.05
    assert label_bytes(["logits:FP32:-1,10", "depth:UINT8:-1,2,3"]) == 46
    assert label_bytes(["logits:FP32:-1,-1"]) is None


def test_a_real_step_and_an_emulated_teacher(tmp_path: Path) -> None:
    job, out = tmp_path / "job.py", tmp_path / "profile.yaml"
    more = "label_form='topk:3', teacher_temperature=2.0, temperature=2.0"
    job.write_text(JOB.format(loss="topk", more=more))
    student = ("--job", job, "--out", out, "--measure", "6,seconds=0.5")
    teacher = ("--model", "edl.benchmarks.teachers.models:cheap", "--backend", "paced,rate=1000")
    pace = ("--teacher-on", "p4")
    text = output_of(command_line("profile"), "profile", *student, *teacher, *pace)
    assert re.search(r"of the student, batch 8: the rate of 'here', measured here on (c|g)pu", text)
    assert re.search(r"of the teacher, .*: the rate of 'p4', measured here on .*emulated", text)
    found = read(out, Profile)
    assert (found.batch, found.samples, found.sample_bytes) == (8, 24, 256)
    assert found.teacher["p4"].sample_s > 0.9e-3  # a busy machine may be slower
    assert 1e-6 < found.student["here"].batch_s(8) < 1


STEP = """
import numpy as np
import torch

def training():
    model = torch.nn.Linear(16, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = [(np.ones((8, 16), "float32"), np.zeros(8, "int64"))] * 3

    def step(batch):
        image, label = map(torch.as_tensor, batch)
        loss = torch.nn.functional.cross_entropy(model(image), label)
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        return loss.item()

    return rows, step

class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(np.ones(16, "float32"), 0)] * 24)

def stream():
    return torch.utils.data.DataLoader(Rows(), 8), training()[1]

def nothing():
    return None
"""


def test_any_training_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "profile.yaml"
    for name, samples in (("training", 24), ("stream", None)):
        step = ("--step", f"mine:{name}", "--out", out, "--measure", 6)
        text = output_of(command_line("profile"), "profile", *step)
        assert f"measured here on the device that mine:{name}() uses" in text
        found = read(out, Profile)
        assert (found.batch, found.samples, found.sample_bytes) == (8, samples, 64 + 8)
        assert 1e-6 < found.student["here"].batch_s(8) < 1
    for words, error in (
        (("--step", "mine:nothing"), "mine:nothing() must return a pair"),
        (("--step", "mine:none"), "mine:none"),
        (("--step", "mine:training", "--job", "job.py"), "omit --job"),
    ):
        assert error in refusal_of(command_line("profile"), "profile", *words, "--out", out)


def test_what_cannot_be_timed_is_refused(tmp_path: Path) -> None:
    job, nowhere = tmp_path / "job.py", tmp_path / "none" / "p.yaml"
    job.write_text("def loss(outputs, labels):\n    return outputs\n")
    for words, error in (
        (("--job", job, "--out", tmp_path / "p.yaml"), "job.py has no function model"),
        ((), "nothing to time"),
        (("--model", "x", "--out", nowhere), "there is no folder"),
    ):
        assert error in refusal_of(command_line("profile"), "profile", *words)
    assert not (tmp_path / "p.yaml").exists()
