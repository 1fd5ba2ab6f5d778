"""A foreign server is judged by its answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from edl.errors import ModelError, RequestRefused, UsageError, WrongInstance
from edl.proto.arena import Array
from edl.proto.clients import Answer, Found, Request
from edl.proto.specs import TensorSpec
from edl.proto.stacked import whole
from edl.teacher.canary import Canary
from edl.teacher.register.trial import Trial
from edl.tests.foreign_server import MOODS
from edl.tests.scripted_teacher import CLASSES, logits_of

X = np.arange(24, dtype=np.float32).reshape(4, 6)
CANARY = Canary.of("c", 1e-3, {"x": X}, {"logits": logits_of(X)})
WIDTHS = itertools.cycle((5, 6))
INPUT = TensorSpec("x", "FP32", (-1, 6))


class ScriptedClient:
    """A client of a server that has `inputs`, and labels as `label` does."""

    def __init__(self, label: Callable[[Request], Mapping[str, Array]], *inputs: TensorSpec):
        self.label, self._inputs = label, inputs

    def probe(self, timeout_s: float) -> Found:
        return Found(self._inputs)

    def infer(self, request: Request, timeout_s: float) -> Answer:
        return Answer(dict(self.label(request)))

    def close(self) -> None:
        """Nothing is open."""

    def trial(self, *declared: TensorSpec, canary: Canary | None = None, member: str = "") -> Trial:
        return Trial(self, declared, canary, 4, 1.0, member)  # type: ignore[arg-type]


def logits(function: Callable[[Array], Array]) -> Callable[[Request], dict[str, Array]]:
    return lambda request: {"logits": function(whole(request.inputs["x"]))}


def test_a_good_server_is_measured() -> None:
    def slow(x: Array) -> Array:
        time.sleep(0.1)
        return logits_of(x)

    client = ScriptedClient(logits(slow), INPUT)
    for canary, verified in ((None, "declared"), (CANARY, "canary")):
        measured = client.trial(canary=canary).first()
        assert measured.verified == verified
        assert measured.t_t_s >= 0.1 / 8  # two batches of 4 are on their way at once
        assert measured.oddities == ()


def test_a_server_that_changes_is_refused() -> None:
    client = ScriptedClient(logits(logits_of), INPUT)
    trial = client.trial()
    trial.first()
    for _ in range(2):
        trial.again()
    client.label = logits(lambda x: logits_of(x)[:, 1:])
    with pytest.raises(ModelError, match="than at first"):
        trial.again()


@pytest.mark.parametrize("mood", ["nan", "short", "text", "other"])
def test_wrong_answers_are_refused(mood: str) -> None:
    trial = ScriptedClient(logits(MOODS[mood]), INPUT).trial(canary=CANARY)
    for test in (trial.first, trial.again):
        with pytest.raises(ModelError):
            test()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (lambda x: np.ones((len(x), CLASSES), np.float32), "weights loaded"),
        (lambda x: np.tile(x[:, :1], CLASSES).astype(np.float32), "uniform"),
        (lambda x: logits_of(x)[:, : next(WIDTHS)], "other names, shapes or dtypes"),
    ],
)
def test_answers_that_tell_nothing_are_refused(
    behaviour: Callable[[Array], Array], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        ScriptedClient(logits(behaviour), INPUT).trial().first()


def test_undescribed_inputs_must_be_declared() -> None:
    client = ScriptedClient(logits(logits_of))
    with pytest.raises(UsageError, match="--input"):
        client.trial().first()
    assert client.trial(INPUT).first().t_t_s > 0
    assert client.trial(canary=CANARY).first().t_t_s > 0


def test_outputs_may_come_in_any_order() -> None:
    orders = itertools.cycle((1, -1))

    def shuffled(request: Request) -> dict[str, Array]:
        x = whole(request.inputs["x"])
        return dict([("logits", logits_of(x)), ("hidden", x * 2)][:: next(orders)])

    trial = ScriptedClient(shuffled).trial(INPUT)
    trial.first()
    for _ in range(2):
        trial.again()


def refuse(request: Request) -> dict[str, Array]:
    raise RequestRefused("ids beyond the vocabulary")


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("x", "FP32", ()),
        TensorSpec("x", "FP32", (-1, 0)),
        TensorSpec("x", "FP32", (-1, -5)),
        TensorSpec("x", "FP32", (-1, 1 << 45)),
        TensorSpec("x", "FP32", (1,) * 80),
        TensorSpec("x", "TENSOR", (-1, 6)),
    ],
    ids=str,
)
def test_a_spec_without_a_batch_is_a_usage_error(spec: TensorSpec) -> None:
    with pytest.raises(UsageError, match=r"no batch can be made of x:.*--input"):
        ScriptedClient(refuse).trial(spec).first()


def test_refused_noise_asks_for_a_canary() -> None:
    client = ScriptedClient(refuse, INPUT, TensorSpec("mask", "INT64", (-1, 6)))
    with pytest.raises(ModelError, match=r"ids beyond the vocabulary.*--canary"):
        client.trial(INPUT).first()
    with pytest.raises(ModelError, match="refuses the canary's samples"):
        client.trial(INPUT, canary=CANARY).again()
    with pytest.raises(UsageError, match="it has no input 'y'; its inputs are x, mask"):
        client.trial(TensorSpec("y", "FP32", (-1, 6))).first()


def test_our_own_teachers_are_refused() -> None:
    def label(request: Request) -> dict[str, Array]:
        if request.parameters:
            raise WrongInstance("teacher_id 't' was asked for; this is 'u'")
        return {"logits": logits_of(whole(request.inputs["x"]))}

    def refuse_always(request: Request) -> dict[str, Array]:
        raise WrongInstance("this is 'u'")

    ScriptedClient(label).trial(INPUT).first()
    with pytest.raises(UsageError, match=r"an edl-teacher .*--coordinator"):
        ScriptedClient(label).trial(INPUT, member="t").first()
    with pytest.raises(WrongInstance):
        ScriptedClient(refuse_always).trial(INPUT, member="t").first()
