"""A model is judged before it serves: broken ones are refused in words, honest ones never."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.errors import ModelError, RequestRefused, RetryableError
from edl.proto.arena import Array
from edl.teacher.canary import Canary
from edl.teacher.model import ModelSpec, TensorSpec
from edl.teacher.self_test import PROBES, odd_outputs, self_test
from edl.tests.teacher.fakes import FakeBackend

Function = Callable[[Mapping[str, Array]], dict[str, Array]]
SPEC = ModelSpec(
    "fake",
    (TensorSpec("x", "FP32", (-1, 4)),),
    (TensorSpec("logits", "FP32", (-1, 5)),),
    "c0ffee",
    ("fake",),
)
WEIGHTS = np.random.default_rng(3).normal(size=(4, 5)).astype(np.float32)


def linear(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"logits": inputs["x"].astype(np.float32) @ WEIGHTS}


def logits_of(function: Callable[[Array], Array]) -> Function:
    return lambda inputs: {"logits": function(inputs["x"])}


def judged(function: Function, canary: Canary | None = None, spec: ModelSpec = SPEC) -> list[str]:
    told: list[str] = []
    self_test(FakeBackend(function, spec), canary, 2, told.append)
    return told


def test_a_good_model_passes_and_says_what_was_looked_at() -> None:
    assert judged(linear) == ["self-test passed: finite, neither constant nor uniform"]


def full(value: float) -> Callable[[Array], Array]:
    return lambda x: np.full((len(x), 5), value, np.float32)


def bias_only(x: Array) -> Array:
    return np.tile(np.arange(5, dtype=np.float32), (len(x), 1))


def same_for_all_classes(x: Array) -> Array:
    return np.tile(x.sum(axis=1, keepdims=True), (1, 5)).astype(np.float32)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (full(0.0), "output 'logits' is constant: the same for 16 samples that differ"),
        (bias_only, "is constant"),
        (same_for_all_classes, "output 'logits' is uniform: the same for all 5 classes"),
        (full(np.nan), "output 'logits' holds 20 values of 20 that are NaN"),
        (lambda x: np.where(x.sum(-1, keepdims=True) > 1, np.inf, x @ WEIGHTS), "NaN or infinite"),
    ],
)
def test_a_broken_model_is_refused_and_told_why(
    function: Callable[[Array], Array], words: str
) -> None:
    with pytest.raises(ModelError, match=f"the self-test failed: .*{words}"):
        judged(logits_of(function))


def test_the_refusal_of_what_is_not_finite_says_where_to_look() -> None:
    with pytest.raises(ModelError, match=r"Were the weights .*--precision and --preprocess"):
        judged(logits_of(full(np.nan)))


def test_the_refusal_says_how_an_honest_model_gets_round_it() -> None:
    with pytest.raises(ModelError, match=r"fingerprint --samples.*--no-self-test"):
        judged(logits_of(full(0.2)))


def nearly_deaf(x: Array) -> Array:
    """Depends on its input by a thousandth."""
    rows: Array = bias_only(x) + 1e-3 * (x @ WEIGHTS)
    return rows


def saturated(x: Array) -> Array:
    """A softmax that is certain of what it sees wherever it is loud enough."""
    logits = 20 * (x @ WEIGHTS)
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exps / exps.sum(-1, keepdims=True), np.float32)


def one_class(x: Array) -> Array:
    """The same class for any noise, by a wide margin."""
    rows: Array = x @ WEIGHTS + np.array([100, 0, 0, 0, 0], np.float32)
    return rows


def untrained(x: Array) -> Array:
    rows: Array = 1e-3 * (x @ WEIGHTS)
    return rows


@pytest.mark.parametrize("function", [nearly_deaf, saturated, one_class, untrained])
@pytest.mark.parametrize("dtype", ["FP32", "FP16"])
def test_honest_models_pass_whatever_they_make_of_noise(
    function: Callable[[Array], Array], dtype: str
) -> None:
    cast = np.float16 if dtype == "FP16" else np.float32
    spec = replace(SPEC, outputs=(TensorSpec("logits", dtype, (-1, 5)),))
    judged(logits_of(lambda x: function(x).astype(cast)), spec=spec)


def test_one_odd_output_is_a_warning_and_not_a_reason() -> None:
    told = judged(lambda inputs: {**linear(inputs), "mask": np.ones((len(inputs["x"]), 5), "f4")})
    assert told[0].startswith("warning: output 'mask' is constant")
    assert told[1].startswith("self-test passed")


def test_a_model_of_ids_gets_ids_that_differ() -> None:
    spec = replace(SPEC, inputs=(TensorSpec("ids", "INT64", (-1, 7)),))
    table = np.random.default_rng(4).normal(size=(2, 5)).astype(np.float32)
    told = judged(lambda inputs: {"logits": table[inputs["ids"]].sum(axis=1)}, spec=spec)
    assert told == ["self-test passed: finite, neither constant nor uniform"]


def test_outputs_of_integers_are_not_judged() -> None:
    told = judged(logits_of(lambda x: np.zeros(len(x), np.int64)))
    assert told == ["self-test passed: finite, nothing to compare"]


def test_a_batch_that_the_model_refuses_does_not_count() -> None:
    def picky(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if inputs["x"].min() < 0:
            raise RequestRefused("no logarithm of it")
        return linear(inputs)

    assert len(judged(picky)) == 1

    def refuses(inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise RequestRefused("never")

    assert judged(refuses) == ["self-test passed: finite, nothing to compare"]


def test_a_model_that_fails_is_refused() -> None:
    def fail(inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise RetryableError("out of memory")

    with pytest.raises(ModelError, match="the self-test failed: out of memory"):
        judged(fail)


def test_a_very_slow_model_is_judged_by_two_batches() -> None:
    now = [0.0]

    def slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
        now[0] += 60.0
        return linear(inputs)

    backend = FakeBackend(slow, SPEC)
    self_test(backend, None, 4, lambda text: None, lambda: now[0])
    assert len(backend.runs) == 2 < PROBES


# --- the canary


def canary_of(function: Function, **other: Any) -> Canary:
    inputs = {"x": np.random.default_rng(8).normal(size=(3, 4)).astype(np.float32)}
    return replace(Canary.of("c0ffee", 1e-3, inputs, function(inputs)), **other)


def test_a_model_that_agrees_with_its_canary_passes() -> None:
    told = judged(linear, canary_of(linear))
    assert told[-1].endswith("agrees with its canary within 0.001")
    judged(lambda inputs: {"logits": linear(inputs)["logits"] * 1.0005}, canary_of(linear))


def test_a_model_that_computes_something_else_is_refused() -> None:
    wrong = lambda inputs: {"logits": linear(inputs)["logits"] * 1.01}  # noqa: E731
    words = "output 'logits' differs from the canary by 0.01 of its greatest value, and 0.001"
    with pytest.raises(ModelError, match=words):
        judged(wrong, canary_of(linear))


def test_a_canary_of_another_content_is_refused_before_anything_runs() -> None:
    backend = FakeBackend(linear, SPEC)
    with pytest.raises(ModelError, match="the canary is of content deadbeef, the model is c0ffee"):
        self_test(backend, canary_of(linear, content_id="deadbeef"), 2, lambda text: None)
    assert not backend.runs


def test_with_a_canary_a_model_is_judged_by_its_samples_and_not_by_noise() -> None:
    def only_those(inputs: Mapping[str, Array]) -> dict[str, Array]:
        known = np.isin(inputs["x"], canary.inputs["x"]).all()
        return linear(inputs) if known else {"logits": np.full((len(inputs["x"]), 5), np.nan)}

    canary = canary_of(linear)
    judged(only_those, canary)


def test_an_output_that_has_gone_or_changed_its_shape_is_refused() -> None:
    kept = canary_of(lambda inputs: {**linear(inputs), "hidden": inputs["x"]})
    with pytest.raises(ModelError, match=r"'hidden' of shape \[3, 4\], which is missing"):
        judged(linear, kept)
    narrow = lambda inputs: {"logits": linear(inputs)["logits"][:, :4]}  # noqa: E731
    with pytest.raises(ModelError, match=r"of shape \[3, 5\], which has shape \[3, 4\]"):
        judged(narrow, canary_of(linear))


def test_what_differs_only_by_rounding_is_the_same() -> None:
    rows = np.ones((4, 5), np.float32) * np.linspace(1, 1 + 1e-7, 4, dtype=np.float32)[:, None]
    assert "is constant" in odd_outputs([{"y": rows}])["y"]
    assert odd_outputs([{"y": rows * np.array([[1.0], [1.0], [1.0], [1.001]])}])["y"].startswith(
        "is uniform"
    )
