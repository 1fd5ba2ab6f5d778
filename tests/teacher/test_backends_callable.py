"""Functions on numpy arrays: how they are named, what they declare, what their content is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import BadAnswer, ModelError, RequestRefused, RetryableError
from edl.teacher.backends import run_in_micro_batches
from edl.teacher.backends.selection import open_backend

HERE = "edl.tests.teacher.test_backends_callable"
X = TensorSpec("x", "FP32", (-1, 4))


def double(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {"twice": arrays["x"] * 2, "sum": arrays["x"].sum(axis=1)}


def no_dict(arrays: Mapping[str, Array]) -> Array:
    return arrays["x"]


def writes(arrays: Mapping[str, Array]) -> dict[str, Array]:
    arrays["x"][:] = 0
    return dict(arrays)


def exhausted(arrays: Mapping[str, Array]) -> dict[str, Array]:
    raise MemoryError("no room")


def refuses(arrays: Mapping[str, Array]) -> dict[str, Array]:
    raise RequestRefused("not these")


FILLED = np.zeros((64, 4), np.float32)


def fills(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """As many libraries do: into the same memory each time."""
    filled = FILLED[: len(arrays["x"])]
    np.multiply(arrays["x"], 2, out=filled)
    return {"y": filled}


def capricious(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What it gives depends on the values, and not only on the shape."""
    x = arrays["x"]
    match int(x.max()):
        case 7:
            return {"z": x}
        case 8:
            return {"y": x.astype(np.float64)}
        case 9:
            return {"y": x[:, :3]}
        case _:
            return {"y": x, "scratch": np.zeros(3)}


def spells(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {"word": np.array([b"cat"] * len(arrays["x"]), object), "sum": arrays["x"].sum(axis=1)}


class Table:
    def __init__(self, scale: float) -> None:
        self._scale = np.full(3, scale, np.float32)

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": arrays["x"][:, :3] * self._scale}

    def state_dict(self) -> dict[str, Array]:
        return {"scale": self._scale}


def declared() -> Any:
    return double, [X], ["sum:FP32:-1"]


def raises() -> Any:
    raise KeyError("weights.npz")


def test_what_a_factory_declares_is_what_is_served() -> None:
    spec = open_backend(f"{HERE}:declared").spec
    assert [str(tensor) for tensor in spec.outputs] == ["sum:FP32:-1"]
    outputs = [TensorSpec.parse("twice:FP32:-1,4")]
    assert open_backend(f"{HERE}:declared", outputs=outputs).spec.outputs == tuple(outputs)


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Names a factory that returns this."""

    def named(value: Any) -> str:
        monkeypatch.setattr(import_module(HERE), "factory", lambda: value, raising=False)
        return f"{HERE}:factory"

    return named


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nope", "no factory .*has no attribute 'nope'"),
        ("raises", "raised KeyError: 'weights.npz'"),
        ("double", "inputs of .*:double are not known: declare them with --input"),
        ((double, [X], [], 4), r"returned a tuple of 4: expected \(model, \[inputs\]\)"),
        ((double, [3.5]), "3.5 declares no tensor: write NAME:DATATYPE:DIMS"),
        ((double, [X, X]), "each tensor needs a name of its own"),
        ((no_dict, [X]), "returned ndarray: expected a dict of arrays"),
        ((writes, [X]), "read-only"),
    ],
)
def test_unusable_models_are_refused(
    returned: Callable[[Any], str], value: Any, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        open_backend(f"{HERE}:{value}" if isinstance(value, str) else returned(value))


def test_a_function_may_reuse_its_output() -> None:
    backend = open_backend(f"{HERE}:fills", inputs=[X])
    x = np.arange(28, dtype=np.float32).reshape(7, 4)
    answer = run_in_micro_batches(backend.run, {"x": x}, 2)
    np.testing.assert_array_equal(answer["y"], x * 2)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (7, "'y' was declared by --output and the model does not give it: it gives 'z'"),
        (8, r"'y' is float64 \[2, 4\], expected FP32 \[-1, 4\]"),
        (9, r"'y' is float32 \[2, 3\], expected FP32 \[-1, 4\]"),
    ],
)
def test_undeclared_answers_are_bad_answers(value: int, words: str) -> None:
    backend = open_backend(
        f"{HERE}:capricious", inputs=[X], outputs=[TensorSpec.parse("y:FP32:-1,4")]
    )
    assert list(backend.run({"x": np.ones((2, 4), np.float32)})) == ["y"]
    with pytest.raises(BadAnswer, match=words) as caught:
        backend.run({"x": np.full((2, 4), value, np.float32)})
    assert caught.value.output == "y"


def test_text_is_refused_at_the_start() -> None:
    """Processes share memory, and no objects."""
    with pytest.raises(ModelError, match="'word' is of BYTES, and a teacher works on numbers"):
        open_backend(f"{HERE}:spells", inputs=[X])
    numbers = [TensorSpec.parse("sum:FP32:-1")]
    assert open_backend(f"{HERE}:spells", inputs=[X], outputs=numbers).spec.outputs == (*numbers,)
    given = [TensorSpec.parse("x:BYTES:-1,4")]
    with pytest.raises(ModelError, match="'x' is of BYTES"):
        open_backend(f"{HERE}:double", inputs=given, outputs=[TensorSpec.parse("twice:FP32:-1,4")])


def test_errors_are_translated() -> None:
    outputs = [TensorSpec.parse("y:FP32:-1")]
    batch = {"x": np.ones((2, 4), np.float32)}
    with pytest.raises(RetryableError, match="the function failed: no room"):
        open_backend(f"{HERE}:exhausted", inputs=[X], outputs=outputs).run(batch)
    with pytest.raises(RequestRefused, match=r"^not these$"):
        open_backend(f"{HERE}:refuses", inputs=[X], outputs=outputs).run(batch)


def test_weights_are_content(returned: Callable[[Any], str]) -> None:
    ids = [open_backend(returned((Table(s), [X]))).spec.content_id for s in (1.0, 1.0, 2.0)]
    assert ids[0] == ids[1] != ids[2]


def test_an_input_without_dimensions_is_refused() -> None:
    number = TensorSpec("scale", "FP32", ())
    with pytest.raises(ModelError, match="'scale' has no dimensions"):
        open_backend(f"{HERE}:double", inputs=[X, number])
