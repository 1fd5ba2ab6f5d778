"""A checkpoint is evaluated as by hand, and what is exported answers as the student does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.runtime.errors import CheckpointMismatch, JobError, ModelError, UsageError
from edl.student import JobSpec, load_job
from edl.student.checkpoint import Repository
from edl.student.checkpoint.capture import TrainingObjects, capture
from edl.student.dry_run import rehearse
from edl.student.evaluate import evaluate
from edl.student.export import export
from edl.student.job.assembly import assemble
from edl.teacher.backends.selection import open_backend

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("write_job")]

JOB = """\
import numpy as np
import paddle

from edl.student import Distill, Hint

rng = np.random.default_rng(1)
X = rng.normal(0, 1, (23, 4)).astype("float32")
Y = rng.integers(0, 3, 23)


class Student(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = paddle.nn.Linear(4, 6)
        self.drop = paddle.nn.Dropout(0.5)
        self.last = paddle.nn.Linear(6, 3)

    def forward(self, rows):
        hidden = self.drop(paddle.nn.functional.relu(self.first(rows)))
        return {"logits": self.last(hidden), "hidden": hidden}


def model():
    return Student()


def loss(outputs, labels):
    return paddle.nn.functional.cross_entropy(outputs["logits"], labels)


def optimizer(parameters):
    return paddle.optimizer.Adam(parameters=parameters)


def feed(split):
    return [(X[at : at + 10], Y[at : at + 10]) for at in range(0, 23, 10)]


def distill():
    hint = Hint("map", "hidden", projector=lambda: paddle.nn.Linear(6, 9))
    return Distill("teachers", fetches=["logits", "map"], hints=[hint])
"""

METRICS = """
class Accuracy(paddle.metric.Accuracy):
    def compute(self, outputs, labels):
        return super().compute(outputs["logits"], labels.reshape([-1, 1]))


def metrics():
    return {
        "largest": lambda outputs, labels: outputs["logits"].max(axis=-1).mean(),
        "accuracy": Accuracy(),
    }
"""

LAZY = """\
class Accuracy(paddle.metric.Accuracy):
    def accumulate(self):
        raise ValueError("too lazy")
"""


BATCHES = "    return [(X[at : at + 10], Y[at : at + 10]) for at in range(0, 23, 10)]"
BROKEN = """\
    return Broken()

class Broken:
    def __iter__(self):
        yield X, Y
        raise RuntimeError("gone")
"""


#: What the job replaces to be one of PyTorch.
OF_TORCH = {
    "import paddle\n": "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n",
    "paddle.nn.Layer": "torch.nn.Module",
    "paddle.optimizer.Adam(parameters=parameters)": "torch.optim.Adam(parameters)",
    BATCHES: "    return DataLoader(TensorDataset(*map(torch.as_tensor, (X, Y))), batch_size=10)",
    METRICS: """
def metrics():
    hits = lambda outputs, labels: outputs["logits"].argmax(-1) == labels
    return {"accuracy": lambda outputs, labels: hits(outputs, labels).float().mean()}
""",
    "paddle": "torch",
}
TORCH = sum(OF_TORCH.items(), ())


def job(folder: Path, *replaced: str) -> JobSpec:
    """The job, with each text of a pair replaced by the next one."""
    text = JOB + METRICS
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    path = folder / f"job{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    return load_job(path)


@pytest.fixture
def model(paddle: Any, tmp_path: Path) -> Any:
    """A model of the job, whose parameters are in the checkpoint."""
    paddle.seed(8)
    parts = assemble(job(tmp_path))
    contents = capture(TrainingObjects(parts.model, parts.optimizer), step=12, world=1, state={})
    Repository(str(tmp_path / "checkpoints")).save(contents)
    parts.model.eval()
    return parts.model


@pytest.fixture
def place(model: Any, tmp_path: Path) -> str:
    return str(tmp_path / "checkpoints")


def test_an_evaluation_equals_one_by_hand(
    paddle: Any, tmp_path: Path, model: Any, place: str
) -> None:
    spec = job(tmp_path)
    x, y = (np.concatenate(parts) for parts in zip(*spec.feed("eval"), strict=True))
    logits = model(paddle.to_tensor(x))["logits"].numpy()
    found = evaluate(spec, place)
    assert (found.step, found.rows) == (12, 23)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss, largest = -log_p[np.arange(23), y].mean(), logits.max(-1).mean()
    expected = {"loss": loss, "largest": largest, "accuracy": (logits.argmax(-1) == y).mean()}
    assert dict(found.metrics) == pytest.approx(expected, rel=1e-5)
    assert found.line().startswith("step 12  23 rows  loss ")
    unlabelled = job(tmp_path, ", Y[at : at + 10])", ",)", '"accuracy": Accuracy(),', "")
    assert list(evaluate(unlabelled, place).metrics) == ["largest"]


def test_a_data_set_needs_a_batch_size(tmp_path: Path, place: str) -> None:
    data_set = "    return paddle.io.TensorDataset([paddle.to_tensor(X), paddle.to_tensor(Y)])"
    spec = job(tmp_path, BATCHES, data_set)
    with pytest.raises(UsageError, match=r"rows of a batch .* else --batch-size"):
        evaluate(spec, place)
    by_batches = evaluate(job(tmp_path), place).metrics
    assert evaluate(spec, place, batch_size=7).metrics == pytest.approx(by_batches, rel=1e-5)


def test_errors_of_an_evaluation_name_what_is_wrong(tmp_path: Path, place: str) -> None:
    spec = job(tmp_path)
    with pytest.raises(UsageError, match="there is no checkpoint"):
        evaluate(spec, str(tmp_path / "nothing"))
    with pytest.raises(CheckpointMismatch, match=r"last\.weight"):
        evaluate(job(tmp_path, "(6, 3)", "(6, 5)"), place)
    for old, new, message in (
        ('outputs["logits"].max(axis=-1).mean(),', 'outputs["logits"],', r"in metrics\(\): "),
        ("relu(self.first(rows))", "relu(rows.nothing)", r"line \d+, in model\(\): Attribute"),
        ("class Accuracy(paddle.metric.Accuracy):", LAZY, r"line \d+, in metrics\(\): .* too lazy"),
        (BATCHES, "    return []", "has no rows"),
        (BATCHES, BROKEN, r"line \d+, in feed\(\): RuntimeError: gone"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            evaluate(job(tmp_path, old, new), place)
        assert isinstance(caught.value, JobError) == (message != "has no rows")


def test_an_exported_model_answers_as_the_student(
    paddle: Any, tmp_path: Path, model: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYGRAPHY_AUTOINSTALL_DEPS", raising=False)
    onnx = sys.version_info < (3, 12)
    found = export(job(tmp_path), place, tmp_path / "out", onnx=onnx)
    assert found.step == 12
    assert "POLYGRAPHY_AUTOINSTALL_DEPS" not in os.environ, "it would install packages"
    names = sorted(Path(file).name for file in found.files)
    assert names == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert {"model.json", "model.pdiparams"} <= set(names)
    assert all(worst is not None and worst < 1e-4 for worst in found.max_difference.values())
    x = np.random.default_rng(9).normal(0, 1, (5, 4)).astype("float32")
    expected = model(paddle.to_tensor(x))["logits"].numpy()
    for name in ("paddle", "onnx") if onnx else ("paddle",):
        file = tmp_path / "out" / ("model.onnx" if name == "onnx" else "model.json")
        opened = open_backend(str(file), backend=name)
        assert [tensor.name for tensor in opened.spec.inputs] == ["rows"]
        (logits,) = [one for one in opened.run({"rows": x}).values() if one.shape == expected.shape]
        assert np.allclose(logits, expected, atol=1e-4)
    parameters = (tmp_path / "out" / "model.pdiparams").stat().st_size
    assert parameters < 4 * (4 * 6 + 6 + 6 * 3 + 3 + 6 * 9), "the projector is in it"


def test_an_export_that_cannot_work_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        export(job(tmp_path), place, tmp_path / "file")
    random = job(tmp_path, "self.drop(paddle", "(1 + paddle.rand([1])) * self.drop(paddle")
    with pytest.raises(ModelError, match="give different outputs"):
        export(random, place, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_a_batch_of_one_row_and_an_output_of_booleans_are_exported(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pair = '{"logits": self.last(hidden), "hidden": hidden}', "self.last(hidden), hidden > 0"
    spec = job(tmp_path, *TORCH, *pair, "batch_size=10", "batch_size=1")
    model, place = assemble(spec).model, str(tmp_path / "checkpoints")
    Repository(place).save(capture(TrainingObjects(model), step=1, world=1, state={}))
    found = export(spec, place, tmp_path / "out", onnx=True)
    assert all(worst is not None and worst < 1e-4 for worst in found.max_difference.values())
    for file in found.files:
        opened = open_backend(file, backend="onnx" if file.endswith("onnx") else "torch")
        answers = opened.run({"rows": np.ones((5, 4), np.float32)})
        kinds = {(one.shape, one.dtype.name) for one in answers.values()}
        assert kinds == {((5, 3), "float32"), ((5, 6), "bool")}


def test_a_job_of_pytorch_is_rehearsed_evaluated_and_exported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    spec, place = job(tmp_path, *TORCH), str(tmp_path / "checkpoints")
    rehearsed = rehearse(assemble(spec))
    assert rehearsed.rows == 10
    assert rehearsed.metrics.keys() == {"accuracy"}
    parts = assemble(spec)
    contents = capture(TrainingObjects(parts.model, parts.optimizer), step=12, world=1, state={})
    Repository(place).save(contents)
    parts.model.eval()
    x, y = (torch.cat(every) for every in zip(*spec.feed("eval"), strict=True))
    with torch.no_grad():
        logits = parts.model(x)["logits"]
        wanted = {
            "loss": float(torch.nn.functional.cross_entropy(logits, y)),
            "accuracy": float((logits.argmax(-1) == y).float().mean()),
        }
    assert dict(evaluate(spec, place).metrics) == pytest.approx(wanted, rel=1e-5)
    found = export(spec, place, tmp_path / "out", onnx=True)
    assert [Path(file).name for file in found.files] == ["model.onnx", "model.pt2"]
    assert all(worst is not None and worst < 1e-4 for worst in found.max_difference.values())
    for file in found.files:
        opened = open_backend(file, backend="onnx" if file.endswith("onnx") else "torch")
        (answer,) = [
            one for one in opened.run({"rows": x.numpy()}).values() if one.shape == logits.shape
        ]
        np.testing.assert_allclose(answer, logits.numpy(), atol=1e-4)
