"""Which backend opens a model: by its files, by what its factory returns, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edl.errors import ModelError, UsageError
from edl.teacher.backends import precision
from edl.teacher.backends.open import KINDS, NAMES, check_model, open_backend
from edl.tests.teacher import same_network
from edl.tests.teacher.fakes import FakeBackend, double_and_sum
from edl.tests.teacher.same_network import NAME


def test_every_backend_can_be_named_and_two_more() -> None:
    assert NAMES == ("auto", "paddle", "onnx", "torch", "callable", "paced")
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    suffixes = [suffix for kind in KINDS if kind.files for suffix in kind.files.suffixes]
    assert len(set(suffixes)) == len(suffixes), "a file would be of two backends"


@pytest.mark.parametrize(
    ("factory", "platform"),
    [
        ("by_paddle", "paddle_dygraph"),
        ("by_torch", "torch_module"),
        ("by_numpy", "callable"),
    ],
)
def test_what_a_factory_returns_says_whose_it_is(factory: str, platform: str) -> None:
    assert open_backend(f"{NAME}:{factory}").spec.platform == platform


@pytest.mark.parametrize(
    ("write", "platform"),
    [
        (same_network.write_paddle, "paddle_inference"),
        (same_network.write_onnx, "onnxruntime"),
        (same_network.write_exported, "torch_export"),
    ],
)
def test_files_say_whose_they_are(
    tmp_path: Path, write: Callable[[Path], Path], platform: str
) -> None:
    write(tmp_path)
    assert open_backend(str(tmp_path)).spec.platform == platform


@pytest.mark.parametrize(
    ("factory", "backend", "words"),
    [
        ("by_paddle", "torch", "returned Network: expected a torch.nn.Module, alone"),
        ("by_torch", "paddle", "returned Network: expected a paddle.nn.Layer, alone"),
        ("by_numpy", "paddle", "returned function: expected a paddle.nn.Layer"),
        ("by_numpy", "onnx", "is a factory, and this backend opens files alone"),
    ],
)
def test_a_named_backend_takes_nothing_of_anothers(factory: str, backend: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_backend(f"{NAME}:{factory}", backend=backend)


def test_a_backend_without_files_says_so(tmp_path: Path) -> None:
    file = same_network.write_onnx(tmp_path)
    with pytest.raises(ModelError, match="is a path, and this backend runs what a factory"):
        open_backend(str(file), backend="callable")


def test_a_backend_that_is_not_there_is_refused() -> None:
    for call in (check_model, open_backend):
        with pytest.raises(UsageError, match="no backend 'caffe': expected one of auto, paddle"):
            call(f"{NAME}:by_numpy", backend="caffe")


def test_an_emulated_device_needs_its_rate() -> None:
    with pytest.raises(UsageError, match="--backend paced emulates a device"):
        open_backend(f"{NAME}:by_numpy", backend="paced")
    with pytest.raises(UsageError, match="--rate is that of an emulated device"):
        open_backend(f"{NAME}:by_numpy", rate=5.0)


def test_what_a_precision_costs_is_said_of_each_output() -> None:
    def rounded(inputs: object) -> object:
        exact = double_and_sum(inputs)  # type: ignore[arg-type]
        exact["double"][:, 0] += 1e6
        return exact

    said = precision.compared(FakeBackend(rounded), FakeBackend(), "bf16")  # type: ignore[arg-type]
    assert said.startswith("bf16 against fp32 on 8 example samples: sum differs by at most 0 (0.")
    assert "double differs by at most 1e+06" in said
    assert said.count("largest entry the same in") == 1
