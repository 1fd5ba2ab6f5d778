"""Hooks before a model: what they make of a batch, of the declared inputs, of the content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError, RequestRefused, UsageError
from edl.teacher.backends import ModelSpec
from edl.teacher.backends.preprocess import BUILT_IN_STEPS, preprocessed
from edl.teacher.backends.selection import check_model, open_backend
from edl.teacher.config import PredictorConfig
from edl.teacher.predictor import load
from edl.tests.teacher.fakes import FakeBackend
from edl.tests.teacher.same_network import NAME, label

HERE = "edl.tests.teacher.test_preprocess"
SHAPE = (5, 3, 6, 4)


def echo(datatype: str = "FP32", *dims: int) -> FakeBackend:
    """A model that gives back the images that it gets."""
    image = TensorSpec("image", datatype, (-1, *(dims or SHAPE[1:])))
    other = TensorSpec("mask", "FP32", (-1, 2))
    spec = ModelSpec("fake", (image, other), (image,), "c0ffee", ("fake-1", "fp32"))
    return FakeBackend(lambda inputs: {"image": inputs["image"]}, spec)


@pytest.fixture
def pixels() -> Array:
    return np.random.default_rng(3).integers(0, 256, SHAPE, np.uint8)


def given(image: Array) -> dict[str, Array]:
    return {"image": image, "mask": np.zeros((len(image), 2), np.float32)}


def halved(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {**arrays, "image": arrays["image"].astype(np.float32) / 2}


def from_bytes() -> Any:
    return halved, ["image:UINT8:-1,3,6,4", "mask:FP32:-1,2"]


def loses(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {"mask": arrays["mask"]}


def wrong_dtype(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {**arrays, "image": arrays["image"].astype(np.float64)}


def fails(arrays: Mapping[str, Array]) -> dict[str, Array]:
    raise KeyError("picture")


def in_place(arrays: dict[str, Array]) -> dict[str, Array]:
    arrays["image"] /= 2
    return arrays


def no_function() -> int:
    return 3


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("unit", 0.0, 1.0),
        ("symmetric", 0.5, 0.5),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_bytes_become_normalised_floats(name: str, mean: Any, std: Any, pixels: Array) -> None:
    backend = preprocessed(echo(), [name])
    assert backend.spec.inputs[0] == TensorSpec("image", "UINT8", (-1, 3, 6, 4))
    assert backend.spec.inputs[1] == TensorSpec("mask", "FP32", (-1, 2))
    made = backend.run(given(pixels))["image"]
    assert made.dtype == np.float32
    for datatype, dtype in (("FP16", np.float16), ("FP64", np.float64)):
        assert preprocessed(echo(datatype), [name]).run(given(pixels))["image"].dtype == dtype
    last = np.moveaxis(pixels, 1, -1) / 255
    np.testing.assert_allclose(np.moveaxis(made, 1, -1), (last - mean) / std, atol=1e-5)


def test_imagenet_finds_the_channels(pixels: Array) -> None:
    first = preprocessed(echo(), ["imagenet"]).run(given(pixels))["image"]
    channels_last = np.ascontiguousarray(np.moveaxis(pixels, 1, -1))
    behind = preprocessed(echo("FP32", 6, 4, 3), ["imagenet"])
    last = behind.run(given(channels_last))["image"]
    np.testing.assert_array_equal(last, np.moveaxis(first, 1, -1))
    turned = preprocessed(echo(), ["nhwc", "imagenet"])  # in this order
    assert turned.spec.inputs[0] == TensorSpec("image", "UINT8", (-1, 6, 4, 3))
    np.testing.assert_array_equal(turned.run(given(channels_last))["image"], first)


IDS = ModelSpec("fake", (TensorSpec("ids", "INT64", (-1, 7)),), (), "c", ("fake", "fp32"))


@pytest.mark.parametrize(
    ("backend", "hook", "words"),
    [
        *(
            (FakeBackend(spec=IDS), name, f"{name} is for images, of four dim")
            for name in BUILT_IN_STEPS
        ),
        (echo("UINT8"), "unit", "step unit needs an input of FP16, .* the model takes image:UINT8"),
        (echo("FP32", 1, 6, 4), "imagenet", "imagenet needs 3 channels, first or last"),
        (echo(), f"{HERE}:no_function", "gave int: expected a function on arrays"),
        (echo(), f"{HERE}:nope", "no factory"),
    ],
)
def test_unsuitable_hooks_are_refused(backend: FakeBackend, hook: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        preprocessed(backend, [hook])


def test_functions_are_hooks(pixels: Array) -> None:
    image = TensorSpec("image", "UINT8", (-1, 3, 6, 4))
    for name, inputs in ((f"{HERE}:from_bytes", ()), (f"{HERE}:halved", (image, image))):
        backend = preprocessed(echo(), [name], inputs[:1])
        assert backend.spec.inputs[0] == image
        answer = backend.run(given(pixels))["image"]
        np.testing.assert_array_equal(answer, pixels.astype("f4") / 2)
    assert preprocessed(echo(), [f"{HERE}:halved"]).spec.inputs == echo().spec.inputs


def test_a_predictor_preprocesses(pixels: Array) -> None:
    config = PredictorConfig(f"{NAME}:by_numpy", preprocess=("nhwc", "unit"))
    backend = load(config, lambda text: None).backend
    assert backend.spec.inputs == (TensorSpec("image", "UINT8", (-1, 8, 8, 1)),)
    image = np.resize(pixels, (4, 8, 8, 1))
    expected = label({"image": image.transpose(0, 3, 1, 2) / np.float32(255)})
    for name, array in backend.run({"image": image}).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-4)


def test_preprocessing_is_part_of_the_content() -> None:
    ways: list[list[str]] = [[], ["unit"], ["symmetric"], ["nhwc", "unit"], [f"{HERE}:halved"]]
    ids = [preprocessed(echo(), way).spec.content_id for way in ways]
    assert len(set(ids)) == len(ids)
    assert ids == [preprocessed(echo(), way).spec.content_id for way in ways]
    numerics = [preprocessed(echo(), way).spec.numerics_id for way in ways]
    assert len(set(numerics)) == len(numerics)


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("loses", r"gave \['mask'\]; the model takes image:FP32"),
        ("wrong_dtype", r"gave 'image' as float64 \[5, 3, 6, 4\]; the model takes image:FP32"),
        ("fails", "preprocessing by .*:fails failed: 'picture'"),
        # Its memory is the request's, which is run again where a merged run has failed.
        ("in_place", "preprocessing by .*:in_place failed: .*read-only"),
    ],
)
def test_wrong_results_of_a_hook_are_refused(hook: str, words: str, pixels: Array) -> None:
    with pytest.raises(RequestRefused, match=words):
        preprocessed(echo(), [f"{HERE}:{hook}"]).run(given(pixels.astype(np.float32)))


def test_declared_inputs_narrow_the_wire() -> None:
    narrow = TensorSpec("image", "UINT8", (-1, 32, 48, 3))
    backend = preprocessed(echo("FP32", 3, -1, -1), ["nhwc", "unit"], [narrow])
    assert backend.spec.inputs[0] == narrow
    with pytest.raises(ModelError, match="was declared as an input; the model has image:UINT8"):
        preprocessed(echo(), ["unit"], [TensorSpec("image", "FP32", (-1, 3, 6, 4))])


def test_a_hook_that_fails_on_an_example_is_named() -> None:
    wire = [TensorSpec.parse("picture:UINT8:-1,1,8,8")]
    with pytest.raises(ModelError, match=r":fails does not run on an example: .*'picture'"):
        open_backend(f"{NAME}:label", inputs=wire, preprocess=[f"{HERE}:fails"])
    with pytest.raises(UsageError, match=r"expected module:function, or one of unit, symmetric"):
        check_model(f"{NAME}:by_numpy", preprocess=["imagnet"])
