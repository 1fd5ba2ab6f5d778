"""A model is judged before it serves: broken ones are refused in words, honest ones never."""

from __future__ import annotations

import contextlib
import pickle
import random
import resource
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError, RequestRefused, RetryableError, UsageError
from edl.teacher.backends import ModelSpec
from edl.teacher.self_test import PROBES, Canary, load_samples, self_test, uninformative_outputs
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


def full(value: float) -> Callable[[Array], Array]:
    return lambda x: np.full((len(x), 5), value, np.float32)


def out_of_memory(x: Array) -> Array:
    raise RetryableError("out of memory")


def same_for_all_classes(x: Array) -> Array:
    return np.tile(x.sum(axis=1, keepdims=True), (1, 5)).astype(np.float32)


def softmax_of(x: Array) -> Array:
    powers: Array = np.exp(x @ WEIGHTS)
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x @ WEIGHTS, "logits"),
        (softmax_of, "probabilities"),
        (lambda x: np.log(softmax_of(x)), "log-probabilities"),
        (lambda x: 1 / (1 + np.exp(-x @ WEIGHTS)), "other"),
        (lambda x: (x @ WEIGHTS)[:, :1], "other"),
    ],
)
def test_outputs_are_classified(function: Callable[[Array], Array], kind: str, dtype: Any) -> None:
    backend = FakeBackend(logits_of(lambda x: function(x).astype(dtype)), SPEC)
    assert self_test(backend, None, 2, lambda _: None) == {"logits": kind}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (full(0.0), "output 'logits' is constant: .* 16 samples that differ.*--no-self-test"),
        (same_for_all_classes, "output 'logits' is uniform: the same for all 5 classes"),
        (full(np.nan), "output 'logits' holds 20 NaN or infinite values of 20.*--precision"),
        (lambda x: np.where(x.sum(-1, keepdims=True) > 1, np.inf, x @ WEIGHTS), "NaN or infinite"),
        (out_of_memory, "out of memory"),
    ],
)
def test_a_broken_model_is_refused(function: Callable[[Array], Array], words: str) -> None:
    with pytest.raises(ModelError, match=f"the self-test failed: .*{words}"):
        judged(logits_of(function))


def saturated(x: Array) -> Array:
    """A softmax that is certain of what it sees wherever it is loud enough."""
    logits = 20 * (x @ WEIGHTS)
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exps / exps.sum(-1, keepdims=True), np.float32)


@pytest.mark.parametrize(
    "function",
    [
        saturated,
        lambda x: np.arange(5, dtype=np.float32) + 1e-3 * (x @ WEIGHTS),
        lambda x: x @ WEIGHTS + np.array([100, 0, 0, 0, 0], np.float32),
        lambda x: 1e-3 * (x @ WEIGHTS),
    ],
    ids=["saturated", "nearly deaf", "one class", "untrained"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_unusual_models_pass(function: Callable[[Array], Array], dtype: Any) -> None:
    judged(logits_of(lambda x: function(x).astype(dtype)))


PASSED = "self-test passed: finite, neither constant nor uniform"
NOTHING = "self-test passed: finite, nothing to compare"
REFUSED = "self-test passed: nothing to judge, because the model refuses all test batches"


def picky(inputs: Mapping[str, Array]) -> dict[str, Array]:
    if inputs["x"].min() < 0:
        raise RequestRefused("no logarithm of it")
    return linear(inputs)


def refuses(inputs: Mapping[str, Array]) -> dict[str, Array]:
    raise RequestRefused("never")


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (linear, PASSED),
        (picky, PASSED),
        (refuses, REFUSED),
        (logits_of(lambda x: np.zeros(len(x), np.int64)), NOTHING),
    ],
)
def test_what_may_be_compared_is(function: Function, told: str) -> None:
    assert judged(function) == [told]


def test_one_odd_output_is_a_warning() -> None:
    told = judged(lambda inputs: {**linear(inputs), "mask": np.ones((len(inputs["x"]), 5), "f4")})
    assert told[0].startswith("warning: output 'mask' is constant")
    assert told[1:] == [PASSED.replace("neither", "other outputs neither")]


def test_a_model_of_ids_gets_different_ids() -> None:
    spec = replace(SPEC, inputs=(TensorSpec("ids", "INT64", (-1, 7)),))
    table = np.random.default_rng(4).normal(size=(2, 5)).astype(np.float32)
    told = judged(lambda inputs: {"logits": table[inputs["ids"]].sum(axis=1)}, spec=spec)
    assert told == [PASSED]


def test_a_slow_model_is_judged_by_two_batches() -> None:
    now = [0.0]

    def slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
        now[0] += 60.0
        return linear(inputs)

    backend = FakeBackend(slow, SPEC)
    self_test(backend, None, 4, lambda text: None, lambda: now[0])
    assert len(backend.runs) == 2 < PROBES


def test_a_canary_replaces_noise() -> None:
    def only_those(inputs: Mapping[str, Array]) -> dict[str, Array]:
        known = np.isin(inputs["x"], canary.inputs["x"]).all()
        return linear(inputs) if known else {"logits": np.full((len(inputs["x"]), 5), np.nan)}

    inputs = {"x": np.random.default_rng(8).normal(size=(3, 4)).astype(np.float32)}
    canary = Canary.from_answer("c0ffee", 1e-3, inputs, linear(inputs))
    assert judged(only_those, canary)[-1].endswith("agrees with its canary within 0.001")
    with pytest.raises(ModelError, match=r"'logits' differs from the canary by 0\.01"):
        judged(logits_of(lambda x: x @ WEIGHTS * 1.01), canary)
    backend, other = FakeBackend(linear, SPEC), replace(canary, content_id="deadbeef")
    with pytest.raises(ModelError, match="the canary is of content deadbeef, the model is c0ffee"):
        self_test(backend, other, 2, lambda text: None)
    assert not backend.runs


def test_rounding_is_no_difference() -> None:
    rows = np.ones((4, 5), np.float32) * np.linspace(1, 1 + 1e-7, 4, dtype=np.float32)[:, None]
    with pytest.raises(ModelError, match="is constant"):
        uninformative_outputs([{"y": rows}])
    with pytest.raises(ModelError, match="is uniform"):
        uninformative_outputs([{"y": rows * np.array([[1.0], [1.0], [1.0], [1.001]])}])


CANARY = Canary(
    "c0ffee",
    2e-3,
    {"image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "a/b": np.ones((2, 1), np.int64)},
    {
        "logits": np.array([[0.5, -3.25], [1e-3, 7.0]], np.float32),
        "hidden": np.array([[1.5], [2.5]], ml_dtypes.bfloat16),
    },
)


LOGITS = CANARY.outputs["logits"]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"logits": LOGITS * 1.001}, ""),
        ({"logits": LOGITS * 1.01}, "'logits' differs from the canary by 0.01"),
        ({"logits": LOGITS[:, :1]}, r"has shape \[2, 1\]; in the canary it has shape \[2, 2\]"),
        ({"hidden": None}, r"'hidden' is missing; in the canary it has shape \[2, 1\]"),
        ({"hidden": np.full((2, 1), np.nan)}, "differs from the canary by nan"),
    ],
)
def test_outputs_agree_within_the_tolerance(outputs: dict[str, Any], words: str) -> None:
    given = {**CANARY.outputs, **outputs}
    answer = {name: array for name, array in given.items() if array is not None}
    with pytest.raises(ModelError, match=words) if words else contextlib.nullcontext():
        CANARY.check(answer)


def test_canaries_survive_their_file(tmp_path: Path) -> None:
    file = tmp_path / "canary"  # as it is named: no suffix is added
    CANARY.save(file)
    read = Canary.load(file)
    assert (read.content_id, read.tolerance) == ("c0ffee", 2e-3)
    for kept, came in ((CANARY.inputs, read.inputs), (CANARY.outputs, read.outputs)):
        assert list(kept) == list(came)
        for name, array in kept.items():
            assert came[name].dtype == array.dtype
            np.testing.assert_array_equal(came[name], array)
    assert read.differences(dict(CANARY.outputs)) == {"logits": 0.0, "hidden": 0.0}


def test_classes_are_kept_if_there_is_nothing_else() -> None:
    inputs = {"x": np.ones((1, 2), np.float32)}
    classes = {"class": np.array([3])}
    assert list(
        Canary.from_answer("c", 1e-3, inputs, {**classes, "logits": np.ones(1)}).outputs
    ) == ["logits"]
    assert list(Canary.from_answer("c", 1e-3, inputs, classes).outputs) == ["class"]


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a canary was unpickled",))


def test_other_files_are_refused_and_pickles_not_run(tmp_path: Path) -> None:
    trap = np.array([Trap()], dtype=object)
    with (tmp_path / "trap.npz").open("wb") as file:
        np.savez(file, header=trap)
    (tmp_path / "trap.pkl").write_bytes(pickle.dumps(Trap()))
    np.savez(tmp_path / "other.npz", x=np.ones(3), label=np.zeros(2))
    assert list(load_samples(tmp_path / "other.npz", ["x"])) == ["x"]
    np.save(tmp_path / "single.npy", np.ones(3))
    for name in ("trap.npz", "trap.pkl", "other.npz", "single.npy"):
        with pytest.raises(ModelError, match="is no canary"):
            Canary.load(tmp_path / name)
    for name, inputs in (("trap.npz", ["header"]), ("other.npz", ["y"])):
        with pytest.raises(UsageError, match="does not hold an array for each of"):
            load_samples(tmp_path / name, inputs)
    for load in (Canary.load, lambda missing: load_samples(missing, ["x"])):
        with pytest.raises((ModelError, UsageError), match=r"cannot read .*missing"):
            load(tmp_path / "missing")


def test_damaged_files_raise_model_errors_only(tmp_path: Path) -> None:
    """Cut anywhere, or any two bytes changed: a teacher must not end by a traceback of zlib."""
    file, rng, refused = tmp_path / "canary", random.Random(1), 0
    CANARY.save(file)
    whole = file.read_bytes()
    for at in rng.sample(range(len(whole)), 20):
        file.write_bytes(whole[:at])
        with pytest.raises(ModelError, match="is no canary"):
            Canary.load(file)
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(2):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged)
        with contextlib.suppress(ModelError):
            Canary.load(file)
            continue
        refused += 1
    assert refused > 30


def test_a_full_disk_spoils_no_canary(tmp_path: Path) -> None:
    file = tmp_path / "canary"
    CANARY.save(file)
    before = file.read_bytes()
    larger = replace(CANARY, inputs={"x": np.random.default_rng(0).random(1 << 16)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as if: EFBIG for ENOSPC
    try:
        with pytest.raises(UsageError, match=r"cannot write .*canary: File too large"):
            larger.save(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_wrong_canaries_are_not_written(tmp_path: Path) -> None:
    words = Canary("c", 0.0, {"text": np.array([b"a"], object)}, {})
    with pytest.raises(ModelError, match="BYTES"):
        words.save(tmp_path / "canary")
    with pytest.raises(UsageError, match="cannot write"):
        CANARY.save(tmp_path / "no" / "canary")
    with pytest.raises(UsageError, match="cannot write /: "):
        CANARY.save(Path("/"))
    with pytest.raises(UsageError, match="a tolerance is a share from 0 to below 1, not 1"):
        Canary("c", 1.0, {}, {})
