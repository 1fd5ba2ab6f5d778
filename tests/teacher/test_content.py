"""What a factory makes is told apart by its weights and by what it does with them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.teacher.backends.open import open_backend

NETWORKS = {
    "paddle": """
import paddle

class Network(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 3)
        for parameter in self.linear.parameters():
            parameter.set_value(paddle.ones_like(parameter))

    def forward(self, x):
        return self.linear(x) * FACTOR

def network():
    return Network(), [paddle.static.InputSpec([None, 4], "float32", "x")]
""",
    "torch": """
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
""",
}

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


@pytest.mark.parametrize("framework", NETWORKS)
def test_a_network_of_equal_weights_that_does_something_else_is_another(
    framework: str, write: Write
) -> None:
    ids = []
    for factor in (2, 2, 3):
        write(NETWORKS[framework].replace("FACTOR", str(factor)))
        ids.append(open_backend("made_here:network").spec.content_id)
    assert ids[0] == ids[1]
    assert ids[2] != ids[0]


def test_a_framework_is_not_a_part_of_the_content(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of its releases would be another content of every network made of its parts."""
    write("import torch\ndef network():\n    return torch.nn.Flatten(), [torch.ones(1, 4)]\n")
    before = open_backend("made_here:network").spec.content_id
    import torch

    monkeypatch.setattr(sys.modules[torch.nn.Flatten.__module__], "__file__", __file__)
    assert open_backend("made_here:network").spec.content_id == before
