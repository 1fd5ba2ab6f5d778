"""`edl teacher fingerprint` and `edl teacher bench`: what they print, write and refuse."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner, Result

from edl.runtime.errors import EdlError, ModelError, ProcessFailed, RequestRefused, UsageError
from edl.teacher.backends.selection import open_backend
from edl.teacher.cli import app
from edl.teacher.config import PredictorConfig
from edl.teacher.predictor import load
from edl.teacher.self_test import Canary
from edl.tests.teacher.linear import CLASSES, weights

pytestmark = pytest.mark.system

MODELS = "edl.tests.teacher.linear"
runner = CliRunner()


def ran(*arguments: str) -> Result:
    result = runner.invoke(app, arguments, env={"COLUMNS": "200"})
    if isinstance(result.exception, EdlError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def fingerprint(model: str, *arguments: object) -> str:
    return ran("fingerprint", f"{MODELS}:{model}", *map(str, arguments)).stdout


def test_a_fingerprint() -> None:
    spec = open_backend(f"{MODELS}:good").spec
    said = fingerprint("good")
    for fact in (spec.content_id, spec.in_micro_batches(8).numerics_id, "x:FP32:-1,4"):
        assert fact in said
    facts = json.loads(fingerprint("good", "--json", "--micro-batch", "4"))
    assert facts["content_id"] == spec.content_id
    assert facts["outputs"] == [f"logits:FP32:-1,{CLASSES}"]
    assert facts["micro_batch"] == 4
    assert facts["output_kinds"] == {"logits": "logits"}
    assert 0 < facts["t_t_s"] < 1


def test_the_kind_of_an_output_is_found_and_can_be_stated() -> None:
    said = fingerprint("softmax")
    assert "output_kind  logits=probabilities\n" in said
    said = fingerprint("softmax", "--output", "logits=other")
    assert "output_kind  logits=other\n" in said
    with pytest.raises(UsageError, match=r"NAME=KIND.*log-probabilities"):
        fingerprint("softmax", "--output", "logits=probs")
    with pytest.raises(EdlError, match=r"label=other: the model's outputs are \['logits'\]"):
        fingerprint("softmax", "--output", "label=other")


@pytest.mark.parametrize("model", ["good", "fixed_batch"])
def test_a_model_agrees_with_its_canary(tmp_path: Path, model: str) -> None:
    file = tmp_path / "canary"
    fingerprint(model, "--canary", f"{file},tolerance=0.01")
    canary = Canary.load(file)
    assert canary.tolerance == 0.01
    np.testing.assert_allclose(canary.outputs["logits"], canary.inputs["x"] @ weights(), rtol=1e-5)
    told: list[str] = []
    load(PredictorConfig(f"{MODELS}:{model}", canary=str(file)), told.append)
    assert told[-1].endswith("agrees with its canary within 0.01")


def test_a_canary_of_given_samples(tmp_path: Path) -> None:
    samples, file = tmp_path / "samples.npz", tmp_path / "canary"
    x = np.random.default_rng(1).random((7, 4), np.float32)
    np.savez(samples, x=x)
    said = fingerprint("good", "--canary", f"{file},samples={samples}")
    assert "output_kind  logits=logits\n" in said
    np.testing.assert_array_equal(Canary.load(file).inputs["x"], x)
    np.savez(samples, x=x.astype(np.float64))
    with pytest.raises(RequestRefused, match="has datatype FP64, expected FP32"):
        fingerprint("good", "--canary", f"{file},samples={samples}")
    with pytest.raises(UsageError, match="name its file, as in --canary FILE"):
        fingerprint("good", "--canary", f"samples={samples}")


@pytest.mark.parametrize(
    ("model", "words"), [("not_loaded", "is constant"), ("restless", "differs from the canary")]
)
def test_no_canary_is_written_of_a_broken_model(tmp_path: Path, model: str, words: str) -> None:
    file = tmp_path / "canary"
    with pytest.raises(ModelError, match=words):
        fingerprint(model, "--canary", file)
    assert not file.exists()


def test_a_canary_that_cannot_be_read_or_written_is_refused_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ModelError, match=r"cannot read .*missing"):
        load(PredictorConfig(f"{MODELS}:good", canary=str(tmp_path / "missing")), told.append)
    assert not told
    with pytest.raises(UsageError, match=r"cannot write .*canary: there is no folder .*nope"):
        fingerprint("ends", "--canary", tmp_path / "nope" / "canary")


def test_bench_writes_json_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "rates.svg"
    sizes = ("--batch-sizes", "4,1,2", "--runs", "5")
    result = ran("bench", "--model", f"{MODELS}:good", *sizes, "--json", "--plot", str(picture))
    found = json.loads(result.stdout)
    assert [row["batch"] for row in found["rows"]] == [1, 2, 4]
    for row in found["rows"]:
        assert 0 < row["p50_s"] <= row["p99_s"]
        assert row["samples_per_s"] == pytest.approx(row["batch"] / row["p50_s"])
    assert sum(row["best"] for row in found["rows"]) == 1
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_full_disk_costs_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    def full(_: Figure, path: Path, **__: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Figure, "savefig", full)
    picture = tmp_path / "rates.png"
    picture.write_bytes(b"the last one")
    model = ("--model", f"{MODELS}:good", "--batch-sizes", "4", "--runs", "3")
    result = runner.invoke(app, ("bench", *model, *form, "--plot", str(picture)))
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"cannot write {picture}: No space left on device"
    assert "samples_per_s" in result.stdout if form else "samples/s" in result.stdout
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"the last one"]


def test_an_emulated_device_is_named_and_a_fixed_batch_is_timed_whatever_the_sizes() -> None:
    emulated = ("--backend", "paced,rate=500")
    where = "emulated (500 samples/s)"
    model = ("--model", f"{MODELS}:fixed_batch")
    found = json.loads(ran("bench", *model, *emulated, "--runs", "3", "--json").stdout)
    assert (found["device"], [row["batch"] for row in found["rows"]]) == (where, [6])
    said = fingerprint("good", *emulated)
    assert f"at micro-batch 8 on {where}\n" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--backend", "rate=5"), "say --backend paced,rate=5"),
        (("--batch-sizes", "1,x"), "--batch-sizes is a list of sizes, as 1,2,4, not 'x'"),
        (("--batch-sizes", ""), "--batch-sizes is a list of sizes"),
        (("--batch-sizes", "1", "--plot", "/nope/p.png"), "there is no folder /nope"),
        (
            ("--batch-sizes", "1", "--runs", "3", "--plot", "/dev/null.what"),
            "must end in .png, .svg or .pdf",
        ),
    ],
)
def test_wrong_options_of_bench_are_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ran("bench", "--model", f"{MODELS}:good", *arguments)


def test_the_model_runs_in_a_predictors_environment() -> None:
    two = sorted(os.sched_getaffinity(0))[:2]
    fingerprint("of_two_threads", "--device", f"cpu:{'+'.join(map(str, two))}")
    with pytest.raises(ModelError, match="not two threads"):
        fingerprint("of_two_threads")


def test_a_model_that_ends_its_process_is_an_error() -> None:
    with pytest.raises(ProcessFailed, match="fingerprint ended without a result"):
        fingerprint("ends")
