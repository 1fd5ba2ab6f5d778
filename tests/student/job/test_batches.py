"""How a batch is split into inputs, labels, positions and soft labels, and into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.proto import tensors
from edl.proto.arena import Array
from edl.runtime.errors import UsageError
from edl.student import Distill, Hint
from edl.student.frameworks import framework_named
from edl.student.job.batches import POSITIONS, split_batch, with_positions
from edl.student.losses.step import StepLoss
from edl.student.losses.terms import kl_divergence, logits_mse, top_k_divergence
from edl.student.rank.prefetcher import END_OF_EPOCH, BatchPrefetcher
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher
from edl.tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("paddle")]

ROWS = 5
X, Y = np.arange(ROWS * 2, dtype="float32").reshape(ROWS, 2), np.arange(ROWS)
AT = np.arange(ROWS) * 10
SOFT, MORE = np.full((ROWS, 3), 0.5, "float32"), np.ones((ROWS, 4), "float32")

split = partial(split_batch, tensor=lambda value: framework_named("paddle").tensor(value))


def same(tensor: Any, array: Any) -> bool:
    return bool((tensor.numpy() == array).all()) and list(tensor.shape) == list(array.shape)


@pytest.mark.parametrize("kind", [tuple, list])
def test_fields_in_order(kind: Any) -> None:
    batch = kind([X, SOFT, Y, AT, MORE, SOFT])
    parts: Any = split(batch, ["map", "logits"], positions=True)
    x, soft = parts.inputs
    assert same(x, X)
    assert same(soft, SOFT)
    assert same(parts.labels, Y)
    assert same(parts.soft["map"], MORE)
    assert same(parts.soft["logits"], SOFT)
    assert parts.positions.tolist() == AT.tolist()
    assert parts.rows == ROWS


@pytest.mark.parametrize("label", ["label", "labels"])
def test_fields_by_name(label: str) -> None:
    batch = {"image": X, label: Y, POSITIONS: AT, "logits": SOFT}
    parts: Any = split(batch, ["logits"], positions=True)
    assert list(parts.inputs) == ["image"]
    assert same(parts.inputs["image"], X)
    assert same(parts.labels, Y)
    assert same(parts.soft["logits"], SOFT)
    assert parts.positions.tolist() == AT.tolist()
    assert list(batch) == ["image", label, POSITIONS, "logits"]  # it is the reader's


def test_an_only_output_needs_no_name() -> None:
    by_name = {"x": X, "label": Y, "logits": SOFT}
    for batch in ((X, Y, SOFT), by_name, [by_name]):
        assert same(split(batch, [""]).soft[""], SOFT)


def test_a_batch_may_have_no_labels() -> None:
    assert split((X, Y, None), [""]).soft == {"": None}, "those that did not come"
    assert split((X,)).labels is None
    assert same(split(X).forward(lambda x: x), X)
    parts = split((X, AT, SOFT), [""], positions=True)
    assert parts.labels is None
    assert same(parts.soft[""], SOFT)


def test_bfloat16_becomes_the_type_of_paddle(paddle: Any) -> None:
    label = split((X, Y, SOFT.astype(ml_dtypes.bfloat16)), [""]).soft[""]
    assert label.dtype == paddle.bfloat16
    assert float(label.sum()) == SOFT.sum()


def test_the_model_is_called_as_the_batch_is(paddle: Any) -> None:
    assert same(split((X, X, Y)).forward(lambda a, b: a + b), 2 * X)
    assert same(split({"b": X, "a": 3 * X, "label": Y}).forward(lambda a, b: a - b), 2 * X)


def test_a_micro_batch_has_its_rows_of_everything() -> None:
    names = [f"row {n}" for n in range(ROWS)]
    inputs = {"x": X, "deep": [X, {"y": Y}], "name": names, "scale": np.float32(3) * np.ones(())}
    batch = inputs | {"label": Y, POSITIONS: AT, "logits": SOFT}
    parts: Any = split(batch, ["logits"], positions=True).part(1, 4)
    assert parts.rows == 3
    assert same(parts.inputs["x"], X[1:4])
    assert same(parts.inputs["deep"][1]["y"], Y[1:4])
    assert parts.inputs["name"] == names[1:4]
    assert float(parts.inputs["scale"]) == 3
    assert same(parts.labels, Y[1:4])
    assert same(parts.soft["logits"], SOFT[1:4])
    assert parts.positions.tolist() == [10, 20, 30]
    sentences = [np.arange(length) for length in (2, ROWS, 1, ROWS, 3)]
    parts = split((X, sentences, Y)).part(1, 4)
    assert [one.tolist() for one in parts.inputs[1]] == [one.tolist() for one in sentences[1:4]]
    whole = split((X, Y))
    assert whole.part(3, 99).rows == 2
    assert whole.part(0, ROWS) is whole


def test_missing_fields_are_named() -> None:
    with pytest.raises(UsageError, match="lacks the soft label 'logits'"):
        split({"x": X, "label": Y}, ["logits"])
    with pytest.raises(UsageError, match="2 fields, too few for inputs and 2 soft labels"):
        split((X, Y), ["a", "b"])
    with pytest.raises(UsageError, match=POSITIONS):
        split({"x": X, "label": Y}, positions=True)
    with pytest.raises(UsageError, match="only labels"):
        split({"label": Y})
    with pytest.raises(UsageError, match="fetches="):  # more outputs than were named
        split((X, Y, AT, MORE, SOFT), [""], positions=True)
    # An output of the teachers is not taken for a field of the data.
    batch = {"x": X, "labels": Y, POSITIONS: AT, "label": Y, "logits": SOFT}
    with pytest.raises(UsageError, match=r"outputs, \['label', 'logits'\].*fetches="):
        split(batch, [""], positions=True)


READER_ROWS, BATCHES = 4, 3


def logits_of(x: Array) -> Array:
    waves = np.sin(x.sum(axis=1, keepdims=True) * np.arange(1, CLASSES + 1))
    return np.asarray(waves, np.float32)


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    """Its answers are logits, and a map of twice its inputs."""

    def label(request: tensors.InferRequest) -> dict[str, Array]:
        x = request.inputs["x"]
        return {"logits": logits_of(x), "map": (x[:, :2] * 2).astype("float32")}

    server = ScriptedTeacher(label)
    yield server
    server.stop()


def batches(kind: str) -> list[Any]:
    """Batches of an epoch, each row of which has its position."""
    rng = np.random.default_rng(3)
    made: list[Any] = []
    for number in range(BATCHES):
        x = rng.normal(0, 1, (READER_ROWS, 3)).astype("float32")
        y = rng.integers(0, CLASSES, READER_ROWS)
        batch: Any = {"x": x, "label": y} if kind == "dict" else (x, y)
        made.append(with_positions(batch, np.arange(READER_ROWS) + READER_ROWS * number))
    return made


def labelled(distill: Distill, teacher: ScriptedTeacher, kind: str) -> Iterator[Any]:
    """The parts of each batch that a reader has labelled as `distill` says."""
    teachers: Any = [teacher.address]
    if not isinstance(distill.service, str):
        teachers = dict.fromkeys(distill.service, teachers)
    options = distill.reader_options()
    with DistilReader(batches(kind), teachers=teachers, **options) as reader:
        for batch in reader:
            yield split(batch, distill.label_names, positions=True)


FETCHES = ["logits", "map"]
HINT = Hint("map", "hidden", weight=0.5)
TOP_2 = {"loss": "topk", "label_form": "topk:2"}


def test_a_rank_hears_what_teachers_publish_of_their_outputs(teacher: ScriptedTeacher) -> None:
    teacher.output_kind = "other"
    loss = StepLoss(lambda outputs, labels: None, Distill("teachers"), None)
    options = Distill("teachers").reader_options()
    source = batches("tuple") * 100
    reader = DistilReader(source, teachers=[teacher.address], **options)
    with closing(BatchPrefetcher(reader, Mock(), loss.on_label_kinds, (), Mock())) as prefetcher:
        prefetcher.begin()
        taken = iter(partial(prefetcher.take, DEADLINE_S), END_OF_EPOCH)
        with pytest.raises(UsageError, match=r"output 'logits' is neither"):
            list(taken)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("tuple", {"temperature": 2.0}),
        ("tuple", {"temperature": 2.0, "teacher_temperature": 2.0}),
        ("dict", {"fetches": FETCHES, "hints": [HINT], "label_form": "float32"}),
        ("tuple", {"fetches": ["map", "logits"], "output": "logits", "loss": "mse"}),
        ("tuple", {"fetches": FETCHES, "hints": [HINT], **TOP_2}),
        ("dict", {"output": "logits", **TOP_2, "temperature": 2.0, "teacher_temperature": 2.0}),
        ("tuple", {"service": {"a": 0.5, "b": 0.5}, "output": "logits"}),
    ],
    ids=["kl", "probabilities", "hints", "mse", "top-k", "top-k at T", "ensemble"],
)
def test_labels_of_a_reader_make_the_loss(
    paddle: Any, teacher: ScriptedTeacher, arguments: dict[str, Any], kind: str
) -> None:
    if "map" in arguments.get("fetches", ()):
        teacher.outputs["map"] = 2
    distill = Distill(**{"service": "teachers", "alpha": 0.25, "beta": 0.75, **arguments})
    cross_entropy = paddle.nn.functional.cross_entropy
    loss = StepLoss(lambda outputs, labels: cross_entropy(outputs["logits"], labels), distill, None)
    positions: list[int] = []
    for parts in labelled(distill, teacher, kind):
        x = parts.forward(lambda x: x)
        student = paddle.concat([x, -x, x, x[:, :1]], axis=1)
        t, scores = distill.temperature, paddle.to_tensor(logits_of(x.numpy()))
        if distill.loss == "topk":
            values, indices = (scores / t).topk(2)
            rest = paddle.logsumexp(paddle.sort(scores / t)[:, :-2], axis=-1)
            soft = t**2 * top_k_divergence(student, values, indices, rest, t)
        elif distill.loss == "mse":
            soft = logits_mse(student, scores)
        else:
            soft = t**2 * kl_divergence(student, scores, t)
        expected = 0.25 * cross_entropy(student, parts.labels) + 0.75 * soft
        if distill.hints:
            expected += 0.5 * (x[:, :2] - 2 * x[:, :2]).square().mean()
        outputs = {"logits": student, "hidden": x[:, :2]}
        found = loss(outputs, parts.labels, parts.soft, 0).total
        assert float(found) == pytest.approx(float(expected), rel=1e-4)
        positions += parts.positions.tolist()
    assert positions == list(range(READER_ROWS * BATCHES))
