"""What a foreign server has to show: judged by its answers, whatever it speaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest

from edl.errors import (
    ModelError,
    RequestRefused,
    RetryableError,
    TeacherLost,
    UsageError,
    WrongInstance,
)
from edl.proto.arena import Array
from edl.proto.clients import Answer, Found, Request, open_client
from edl.proto.specs import TensorSpec
from edl.proto.stacked import whole
from edl.teacher.canary import Canary
from edl.teacher.register.trial import Trial
from edl.tests.foreign_server import MODEL, MOODS, ForeignServer, Kind, start
from edl.tests.scripted_teacher import CLASSES, logits_of

X = np.arange(24, dtype=np.float32).reshape(4, 6)
CANARY = Canary.of("c", 1e-3, {"x": X}, {"logits": logits_of(X)})
INPUT = TensorSpec("x", "FP32", (-1, 6))


@pytest.fixture(params=get_args(Kind))
def server(request: pytest.FixtureRequest) -> Iterator[ForeignServer]:
    server = start(request.param)
    yield server
    server.stop()


@pytest.fixture
def trial(server: ForeignServer) -> Iterator[Callable[..., Trial]]:
    trials: list[Trial] = []

    def make(canary: Canary | None = None, *declared: TensorSpec, timeout_s: float = 10.0) -> Trial:
        client = open_client("oip", server.address, MODEL)
        trials.append(Trial(client, declared, canary, rows=4, timeout_s=timeout_s))
        return trials[-1]

    yield make
    for each in trials:
        each.close()


def test_a_good_server_is_measured(server: ForeignServer, trial: Callable[..., Trial]) -> None:
    def slow(x: Array) -> Array:
        time.sleep(0.1)
        return logits_of(x)

    server.behaviour = slow
    declared, compared = trial().first(), trial(CANARY).first()
    assert (declared.verified, compared.verified) == ("declared", "canary")
    for measured in (declared, compared):
        assert measured.t_t_s >= 0.1 / 8  # two batches of 4 are on their way at once
        assert measured.oddities == ()
    server.behaviour = logits_of
    trial(CANARY).again()
    again = trial()
    again.first()
    again.again()
    server.behaviour = lambda x: logits_of(x)[:, 1:]
    with pytest.raises(ModelError, match="than at first"):
        again.again()


@pytest.mark.parametrize("mood", ["nan", "short", "text", "other"])
def test_wrong_answers_are_refused(
    server: ForeignServer, trial: Callable[..., Trial], mood: str
) -> None:
    server.behaviour = MOODS[mood]
    with pytest.raises(ModelError):
        trial(CANARY).first()
    with pytest.raises(ModelError):
        trial(CANARY).again()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (lambda x: np.ones((len(x), CLASSES), np.float32), "weights loaded"),
        (lambda x: np.tile(x[:, :1], CLASSES).astype(np.float32), "uniform"),
    ],
)
def test_constant_and_uniform_answers_are_refused(
    server: ForeignServer,
    trial: Callable[..., Trial],
    behaviour: Callable[[Array], Array],
    words: str,
) -> None:
    server.behaviour = behaviour
    with pytest.raises(ModelError, match=words):
        trial().first()


def test_answers_of_different_layouts_are_refused(
    server: ForeignServer, trial: Callable[..., Trial]
) -> None:
    server.behaviour = lambda x: logits_of(x)[:, : 5 + server.requests % 2]
    with pytest.raises(ModelError, match="other names, shapes or dtypes"):
        trial().first()


def test_undescribed_inputs_must_be_declared(
    server: ForeignServer, trial: Callable[..., Trial]
) -> None:
    server.describes = False
    with pytest.raises(UsageError, match="--input"):
        trial().first()
    assert trial(None, INPUT).first().t_t_s > 0
    assert trial(CANARY).first().t_t_s > 0


def test_silence_is_no_wrong_answer(server: ForeignServer, trial: Callable[..., Trial]) -> None:
    server.ready = False
    with pytest.raises(RetryableError):
        trial().ask(5.0)
    server.ready = True
    ended = threading.Event()
    server.behaviour = lambda x: logits_of(x) if ended.wait(10.0) else x
    try:
        with pytest.raises(TeacherLost):
            trial(CANARY, timeout_s=0.3).again()
    finally:
        ended.set()
    closed = trial(CANARY)
    closed.close()
    with pytest.raises(TeacherLost):
        closed.again()


class Shuffling:
    """A client of a server whose outputs come in any order."""

    def __init__(self) -> None:
        self.asked = 0

    def probe(self, timeout_s: float) -> object:
        raise AssertionError("nobody asks: its inputs are declared")

    def infer(self, request: Request, timeout_s: float) -> Answer:
        x = whole(request.inputs["x"])
        outputs = [("logits", logits_of(x)), ("hidden", x * 2)]
        self.asked += 1
        return Answer(dict(outputs[:: 1 if self.asked % 2 else -1]))

    def close(self) -> None:
        """Nothing is open."""


def test_outputs_may_come_in_any_order() -> None:
    trial = Trial(Shuffling(), [INPUT], None, 4, 1.0)  # type: ignore[arg-type]
    trial.first()
    for _ in range(2):
        trial.again()


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
        Trial(Refusing(), [spec], None, 4, 1.0).first()  # type: ignore[arg-type]


class Refusing:
    """A client of a server that takes no noise."""

    def __init__(self, *inputs: TensorSpec) -> None:
        self._inputs = inputs

    def probe(self, timeout_s: float) -> Found:
        return Found(self._inputs)

    def infer(self, request: object, timeout_s: float) -> object:
        raise RequestRefused("ids beyond the vocabulary")

    def close(self) -> None:
        """Nothing is open."""


def test_refused_noise_asks_for_a_canary() -> None:
    with pytest.raises(ModelError, match=r"ids beyond the vocabulary.*--canary"):
        Trial(Refusing(), [INPUT], None, 4, 1.0).first()  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="refuses the canary's samples"):
        Trial(Refusing(), [INPUT], CANARY, 4, 1.0).again()  # type: ignore[arg-type]


def test_an_unknown_input_is_a_usage_error() -> None:
    known = Refusing(INPUT, TensorSpec("mask", "INT64", (-1, 6)))
    with pytest.raises(ModelError, match="ids beyond the vocabulary"):
        Trial(known, [INPUT], None, 4, 1.0).first()  # type: ignore[arg-type]
    other = TensorSpec("y", "FP32", (-1, 6))
    with pytest.raises(UsageError, match="it has no input 'y'; its inputs are x, mask"):
        Trial(known, [other], None, 4, 1.0).first()  # type: ignore[arg-type]


class Minding:
    """A client of a server that refuses whatever is for an instance."""

    def __init__(self, *, always: bool) -> None:
        self._always = always

    def infer(self, request: Request, timeout_s: float) -> Answer:
        if self._always or request.parameters:
            raise WrongInstance("teacher_id 't' was asked for; this is 'u'")
        return Answer({"logits": logits_of(whole(request.inputs["x"]))})


def test_our_own_teachers_are_refused() -> None:
    def first(client: object, member: str) -> None:
        Trial(client, [INPUT], None, 4, 1.0, member).first()  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=r"an edl-teacher .*--coordinator"):
        first(Minding(always=False), "t")
    with pytest.raises(WrongInstance):
        first(Minding(always=True), "t")
    first(Minding(always=False), "")
