"""The content of models of every framework, and backends for them by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.errors import ModelError, UsageError
from edl.teacher.backends.open import open_backend
from edl.teacher.content import content_of
from edl.tests.teacher import same_network
from edl.tests.teacher.same_network import NAME

pytestmark = pytest.mark.system

NETWORK = """
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        torch.nn.init.ones_(self.linear.weight)
        torch.nn.init.ones_(self.linear.bias)

    def forward(self, x):
        return self.linear(x) * FACTOR

def network():
    return Network(), [torch.ones(1, 4)]
"""

Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the module `made_here`, to be imported anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        (tmp_path / "made_here.py").write_text(text)
        monkeypatch.delitem(sys.modules, "made_here", raising=False)
        importlib.invalidate_caches()

    return write


def test_code_is_part_of_the_content_of_a_factory(write: Write) -> None:
    ids = []
    for factor in (2, 2, 3):
        write(NETWORK.replace("FACTOR", str(factor)))
        ids.append(open_backend("made_here:network").spec.content_id)
    assert ids[0] == ids[1]
    assert ids[2] != ids[0]


def test_frameworks_are_no_content(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of its releases would be another content of every network made of its parts."""
    write("import torch\ndef network():\n    return torch.nn.Flatten(), [torch.ones(1, 4)]\n")
    before = open_backend("made_here:network").spec.content_id
    import torch

    monkeypatch.setattr(sys.modules[torch.nn.Flatten.__module__], "__file__", __file__)
    assert open_backend("made_here:network").spec.content_id == before


@pytest.mark.parametrize(
    ("factory", "backend", "words"),
    [
        ("by_paddle", "torch", "returned Network: expected a torch.nn.Module, alone"),
        ("by_torch", "paddle", "returned Network: expected a paddle.nn.Layer, alone"),
        ("by_numpy", "paddle", "returned function: expected a paddle.nn.Layer"),
        ("by_numpy", "onnx", "is a factory, and this backend opens files alone"),
    ],
)
def test_a_named_backend_refuses_models_of_others(factory: str, backend: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_backend(f"{NAME}:{factory}", backend=backend)


def test_a_backend_without_files_refuses_a_path(tmp_path: Path) -> None:
    file = same_network.write_onnx(tmp_path)
    with pytest.raises(ModelError, match="is a path, and this backend runs what a factory"):
        open_backend(str(file), backend="callable")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_network.write_onnx(tmp_path_factory.mktemp("onnx"))


@pytest.mark.parametrize("preprocess", [(), ("unit",), ("nhwc", "unit"), ("unit", "nhwc")])
def test_content_of_files_and_of_the_model(model: Path, preprocess: tuple[str, ...]) -> None:
    opened = open_backend(str(model), preprocess=preprocess)
    assert content_of(str(model), preprocess) == opened.spec.content_id
    assert content_of(str(model.parent), preprocess) == opened.spec.content_id


def test_unknown_preprocessing_is_refused(model: Path) -> None:
    with pytest.raises(UsageError, match="os:system"):
        content_of(str(model), ["os:system"])


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model"):
        content_of(str(tmp_path))
