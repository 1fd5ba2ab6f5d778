"""A model's content by its files alone is the content that a teacher of them serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import ModelError, UsageError
from edl.teacher.backends.open import open_backend
from edl.teacher.content import content_of
from edl.tests.teacher import same_network


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_network.write_onnx(tmp_path_factory.mktemp("onnx"))


@pytest.mark.parametrize("preprocess", [(), ("unit",), ("nhwc", "unit"), ("unit", "nhwc")])
def test_it_is_that_of_the_opened_model(model: Path, preprocess: tuple[str, ...]) -> None:
    opened = open_backend(str(model), preprocess=preprocess)
    assert content_of(str(model), preprocess) == opened.spec.content_id
    assert content_of(str(model.parent), preprocess) == opened.spec.content_id


def test_a_byte_makes_another_content(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "network.onnx"
    other.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(ModelError):  # what a framework would say, too: but nothing was loaded
        content_of(str(other))
    text = bytearray(model.read_bytes())
    text[-1] ^= 1
    other.write_bytes(text)
    assert content_of(str(other)) != content_of(str(model))


def test_a_step_of_somebodys_own_is_refused(model: Path) -> None:
    with pytest.raises(UsageError, match="os:system"):
        content_of(str(model), ["os:system"])


def test_where_there_is_no_model_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model"):
        content_of(str(tmp_path))
