"""A job file: its functions work alone, and each mistake in it has one message that finds it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edl.runtime.errors import JobError, UsageError
from edl.student import JobSpec, load_job
from edl.student.dry_run import Rehearsal, rehearse
from edl.student.evaluate import Scores
from edl.student.job.assembly import assemble
from edl.student.job.spec import as_job_error, trace_of

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("paddle")]

GOOD = """\
import paddle
import numpy as np


def model():
    return paddle.nn.Linear(4, 3)


def loss(outputs, labels):
    return paddle.nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters):
    return paddle.optimizer.SGD(0.1, parameters=parameters)


def feed(split):
    rows = 6 if split == "train" else 2
    return [(np.ones((rows, 4), "float32"), np.zeros(rows, "int64"))]
"""

METRICS = """

def metrics():
    return {"error": lambda outputs, labels: (outputs.argmax(-1) != labels).mean(dtype="float32"),
            "right": Right(),
            "mean": lambda outputs, labels: outputs.mean(),
            "top": Right(topk=(1, 2))}


class Right(paddle.metric.Accuracy):
    def compute(self, outputs, labels):
        return super().compute(outputs, labels.reshape([-1, 1]))


def distill():
    from edl.student import Distill

    return Distill("teachers", alpha=0.3, beta=0.7, temperature=4)
"""

Write = Callable[..., Path]


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def replaced(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def message(run: Callable[[], Any]) -> str:
    """What is found of it, in one line."""
    with pytest.raises(JobError) as caught:
        run()
    found = str(caught.value)
    assert "\n" not in found
    return found


def test_optional_functions_have_defaults_or_are_called(write_job: Write) -> None:
    path = write_job(GOOD)
    spec = load_job(path)
    assert (spec.path, spec.name) == (str(path), "job")
    assert (spec.metrics(), spec.distill()) == ({}, None)
    assert not spec.has("on_scale")
    spec.on_scale(2, 3)
    text = GOOD + METRICS + "\nseen = []\ndef on_scale(old, new): seen.append((old, new))\n"
    spec = load_job(write_job(text))
    assert list(spec.metrics()) == ["error", "right", "mean", "top"]
    distill = spec.distill()
    assert distill is not None
    assert (distill.service, distill.beta) == ("teachers", 0.7)
    spec.on_scale(2, 3)
    assert sys.modules["edl_job_job"].seen == [(2, 3)]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for place in (tmp_path / "none.py", tmp_path):
        assert f"there is no job file '{place}'" in message(partial(load_job, place))
    (tmp_path / "job.txt").write_text(GOOD)
    assert ".py" in message(lambda: load_job(tmp_path / "job.txt"))


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("def model():\n    return (\n", 2, "syntax"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("\nWIDTH = int('seven')\n", 2, "ValueError: "),
    ],
)
def test_unloadable_file_is_named(write_job: Write, text: str, line: int, expected: str) -> None:
    path = write_job(text)
    found = message(lambda: load_job(path))
    assert found.startswith(f"{path}, line {line}: ")
    assert expected in found
    assert "edl_job_job" not in sys.modules


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("model", "width"), ("loss", "outputs"), ("optimizer", ""), ("feed", "split, rows")],
)
def test_functions_that_are_missing_are_none_or_take_other_arguments(
    write_job: Write, name: str, wrong: str
) -> None:
    path = write_job(replaced(f"def {name}(", f"def my_{name}("))
    assert f"{path} has no function {name}(" in message(lambda: load_job(path))
    write_job(GOOD + f"{name} = 1\n")
    assert f"{name} has to be a function" in message(lambda: load_job(path))
    write_job(replaced(f"def {name}(", f"def {name}({wrong}): pass\ndef former("))
    found = message(lambda: load_job(path))
    assert found.startswith(f"{path}, line {line_of(GOOD, f'def {name}')}, in {name}(): ")
    assert "it is called as" in found


CALLS: dict[str, Callable[[JobSpec, Any], Any]] = {
    "model": lambda spec, paddle: spec.model(),
    "loss": lambda spec, paddle: spec.loss(paddle.zeros([2, 3]), paddle.to_tensor([0, 1])),
    "optimizer": lambda spec, paddle: spec.optimizer(paddle.nn.Linear(1, 1).parameters()),
    "feed": lambda spec, paddle: spec.feed("train"),
    "metrics": lambda spec, paddle: spec.metrics(),
    "distill": lambda spec, paddle: spec.distill(),
    "on_scale": lambda spec, paddle: spec.on_scale(1, 2),
}
OPTIONAL = """
def metrics():
    return {}
def distill():
    return None
def on_scale(old, new):
    return None
"""


def with_body(name: str, *body: str) -> tuple[str, int]:
    """The good file, in which a function begins with these lines; the number of the last one."""
    lines = (GOOD + OPTIONAL).splitlines()
    at = next(n for n, line in enumerate(lines, 1) if line.startswith(f"def {name}("))
    lines[at:at] = body
    return "\n".join(lines), at + len(body)


@pytest.mark.parametrize("name", list(CALLS))
def test_exception_names_its_line(write_job: Write, paddle: Any, name: str) -> None:
    text, line = with_body(name, "    wrong = {}", "    wrong['key\\nof two lines']")
    spec = load_job(write_job(text))
    found = message(lambda: CALLS[name](spec, paddle))
    assert found.startswith(f"{spec.path}, line {line}, in {name}(): KeyError: ")


def test_errors_in_a_library_or_an_imported_module(write_job: Write, paddle: Any) -> None:
    spec = load_job(write_job(GOOD))
    found = message(lambda: spec.loss(paddle.zeros([2, 3]), paddle.to_tensor([0, 9, 1])))
    line = line_of(GOOD, "return paddle.nn.functional")
    assert found.startswith(f"{spec.path}, line {line}, in loss()")
    assert len(found) < 700
    broken = write_job("x = 1\ny = = 2\n", "broken_module_of_mine.py")
    path = write_job("import broken_module_of_mine\n")
    assert message(lambda: load_job(path)).startswith(f"{broken}, line 2: ")
    losses = "\n\ndef loss(outputs, labels):\n    return 1 / 0\n"
    other = write_job(losses, "losses_of_mine.py")
    text = replaced("def loss(", "def unused(") + "from losses_of_mine import loss\n"
    spec = load_job(write_job(text))
    found = message(lambda: CALLS["loss"](spec, paddle))
    assert found.startswith(f"{other}, line 4, in loss(): ZeroDivisionError: ")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model", "'linear'", "a paddle.nn.Layer"),
        ("model", "None", "does it lack a return"),
        ("loss", "0.5", "a scalar float tensor"),
        ("loss", "outputs", "shape [2, 3]"),
        ("loss", "labels.sum()", "a scalar float tensor"),
        ("optimizer", "parameters", "a paddle.optimizer"),
        ("feed", "3", "a DataLoader"),
        ("feed", "None", "does it lack a return"),
        ("feed", "'train.csv'", "a DataLoader"),
        ("feed", "(x for x in [1, 2])", "read only once"),
        ("metrics", "['accuracy']", "a dict from names"),
        ("distill", "{'alpha': 1}", "a Distill"),
    ],
)
def test_return_type(write_job: Write, paddle: Any, name: str, value: str, expected: str) -> None:
    text, line = with_body(name, f"    return {value}")
    spec = load_job(write_job(text))
    found = message(lambda: CALLS[name](spec, paddle))
    assert found.startswith(f"{spec.path}, line {line - 1}, in {name}(): ")
    assert expected in found


def test_a_loss_of_one_element_becomes_a_scalar(write_job: Write, paddle: Any) -> None:
    text = replaced("(outputs, labels)\n\n", "(outputs, labels).reshape([1])\n\n")
    spec = load_job(write_job(text))
    assert CALLS["loss"](spec, paddle).ndim == 0


def test_an_exception_raised_in_the_file_is_attributed_to_it(write_job: Write, paddle: Any) -> None:
    broken = "class Broken(paddle.nn.Layer):\n    def forward(self, x): return x + missing\n"
    text = replaced("paddle.nn.Linear(4, 3)", "Broken()") + broken
    path = write_job(text)
    spec = load_job(path)
    with pytest.raises(NameError) as caught:
        spec.model()(paddle.zeros([1]))
    error = as_job_error(caught.value, str(path))
    line = line_of(text, "return x + missing")
    expected = f"{path}, line {line}, in forward(): NameError: name 'missing' is not defined"
    assert (type(error), str(error)) == (JobError, expected)
    shown = trace_of(error, str(path)).splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    assert shown[1] == f'  File "{path}", line {line}, in forward'
    assert shown[-1] == "NameError: name 'missing' is not defined"


def test_an_exception_raised_elsewhere_is_not_attributed_to_the_file(write_job: Write) -> None:
    path = str(write_job(GOOD))
    for error in (ValueError("elsewhere"), KeyboardInterrupt(), UsageError("a setting")):
        with pytest.raises(type(error)) as caught:
            raise error
        assert as_job_error(caught.value, path) is error
        assert "test_spec.py" in trace_of(error, path)


NO_NUMBER = "def metrics(): return {'all': lambda outputs, labels: 'many'}\n"


def rehearsed(write_job: Write, text: str) -> Rehearsal:
    return rehearse(assemble(load_job(write_job(text))))


def test_a_rehearsal_has_loss_and_metrics_of_the_first_batches(write_job: Write) -> None:
    found = rehearsed(write_job, GOOD + METRICS)
    assert found.rows == 6
    assert found.loss is not None
    assert found.loss > 0
    assert found.metrics["error"] == pytest.approx(1 - found.metrics["right"])
    assert f"loss {found.loss:.6g} in the first batch, of 6 rows; error " in found.line()
    only_trains = rehearsed(write_job, GOOD)
    assert dict(only_trains.metrics) == {}
    assert "; " not in only_trains.line()
    only_distils = rehearsed(write_job, GOOD.replace(', np.zeros(rows, "int64"))', ",)"))
    assert "no labels" in only_distils.line()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Linear(4, 3)", "Linear(5, 3)", r"in model\(\): ValueError"),
        ("Linear(4, 3)", "Linear(4, 3).double", r"in model\(\): must return"),
        ("cross_entropy(outputs, labels)", "cross_entropy(outputs, labels.T[:2])", r"in loss\(\)"),
        ("parameters=parameters", "parameters=[1]", r"in optimizer\(\)"),
        ('"float32"', '"float64"', r"in model\(\)"),
        ("    return [(", "    return [] and [(", "has no batches"),
        ("import paddle\n", f"import paddle\n{NO_NUMBER}", r"in metrics\(\): 'all' must return a"),
    ],
)
def test_mismatches_of_a_job_are_found(write_job: Write, old: str, new: str, message: str) -> None:
    assert old in GOOD
    spec = load_job(write_job(GOOD.replace(old, new)))
    with pytest.raises(UsageError, match=message) as caught:
        rehearse(assemble(spec))
    assert "\n" not in str(caught.value)


def test_scores_are_means_over_rows_and_can_be_reset(write_job: Write, paddle: Any) -> None:
    scores = Scores(load_job(write_job(GOOD + METRICS)))
    assert scores
    assert scores.values() == {}
    for value, rows in ((1.0, 3), (5.0, 1)):
        outputs = paddle.full([rows, 3], value)
        scores.add(outputs, paddle.zeros([rows], "int64"), rows)
    assert scores.values() == {"error": 0.0, "right": 1.0, "mean": 2.0, "top_0": 1.0, "top_1": 1.0}
    scores.clear()
    assert scores.values() == {}
