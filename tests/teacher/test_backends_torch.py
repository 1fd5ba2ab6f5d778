"""PyTorch: its files and networks, what they declare, how arrays come in and go out."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError, RequestRefused, RetryableError
from edl.teacher.backends.selection import open_backend
from edl.teacher.backends.torch import DeviceCopies, as_array, import_torch
from edl.tests.teacher import same_network
from edl.tests.teacher.same_network import NAME

pytestmark = pytest.mark.system

HERE = "edl.tests.teacher.test_backends_torch"
HALVED = "edl.tests.teacher.test_preprocess:halved"
IMAGE = TensorSpec.parse(same_network.IMAGE)


def several_inputs() -> Any:
    import torch

    class Network(torch.nn.Module):  # type: ignore[misc]
        def forward(self, ids: Any, weights: Any) -> Any:
            return {"total": ids.float() @ weights.float(), "half": weights.bfloat16() / 2}

    return Network(), ["ids:INT64:-1,4", "weights:FP16:4,-1"]


def in_place() -> Any:
    import torch

    class Network(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.sub_(1)

    return Network(), [torch.zeros(1, 3)]


def undeclared() -> Any:
    return same_network.by_torch()[0]


def sequence() -> Any:
    import torch

    class Network(torch.nn.Module):  # type: ignore[misc]
        def forward(self, ids: Any) -> Any:
            return ids.float()[..., None].expand(-1, -1, 5), ids.float().sum(1, keepdim=True)

    return Network(), ["ids:INT64:-1,-1"]


def test_several_inputs_and_dtypes() -> None:
    backend = open_backend(f"{HERE}:several_inputs")
    assert [tensor.name for tensor in backend.spec.inputs] == ["ids", "weights"]
    ids = np.arange(8, dtype=np.int64).reshape(2, 4)
    weights = np.full((4, 3), 0.5, np.float16)
    answer = backend.run({"weights": weights, "ids": ids})
    np.testing.assert_array_equal(answer["total"], ids @ weights.astype("f4"))
    assert answer["half"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(answer["half"].astype("f4"), np.full((4, 3), 0.25, "f4"))
    outputs = open_backend(f"{HERE}:sequence").spec.outputs
    assert [tensor.shape for tensor in outputs] == [(-1, -1, 5), (-1, 1)], "as long as its input"


def test_a_network_that_writes_into_its_input() -> None:
    backend = open_backend(f"{HERE}:in_place")
    given = np.zeros((2, 3), np.float32)
    assert (backend.run({"x": given})["output_0"] == -1).all()
    assert not given.any()


def test_undeclared_inputs_are_refused() -> None:
    with pytest.raises(ModelError, match=r"inputs .* not known: return \(module, \[example"):
        open_backend(f"{HERE}:undeclared")
    assert open_backend(f"{HERE}:undeclared", inputs=[IMAGE]).spec.inputs == (IMAGE,)


def test_a_script_needs_declared_shapes(tmp_path: Path) -> None:
    file = str(same_network.write_script(tmp_path))
    for declared in ([], [TensorSpec("picture", "FP32", (-1, 1, 8, 8))]):
        with pytest.raises(ModelError, match=r"declare each input of .* \(\w+\) with --input"):
            open_backend(file, inputs=declared)


def test_the_format_of_a_file_is_found_by_its_content(tmp_path: Path) -> None:
    script = same_network.write_script(tmp_path).rename(tmp_path / "script.pt2")
    assert open_backend(str(script), inputs=[IMAGE]).spec.platform == "torch_script"
    exported = same_network.write_exported(tmp_path).rename(tmp_path / "exported.pt")
    assert open_backend(str(exported)).spec.platform == "torch_export"
    with pytest.raises(ModelError, match=r"exported for training: call eval\(\)"):
        open_backend(str(same_network.write_exported(tmp_path, training=True)))


def test_files_without_a_model_are_refused(tmp_path: Path) -> None:
    import torch

    weights = tmp_path / "net.pt"
    torch.save(same_network.by_torch()[0].state_dict(), str(weights))
    with pytest.raises(ModelError, match=r"weights or pickled objects.*--model module:function"):
        open_backend(str(weights))
    for damage in (b"", b"garbage"):
        weights.write_bytes(damage)
        with pytest.raises(ModelError, match="cannot be read as a file of PyTorch") as caught:
            open_backend(str(weights))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("inner", ["archive_format", "constants.pkl"])
def test_a_file_of_a_newer_torch_is_refused(tmp_path: Path, inner: str) -> None:
    file = tmp_path / "net.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"net/{inner}", "of tomorrow")
    with pytest.raises(ModelError, match="pip install --upgrade torch") as caught:
        open_backend(str(file), inputs=[IMAGE])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (MemoryError("x"), RetryableError),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator"), RetryableError),
        (RuntimeError("CUDA error: unspecified launch failure"), RetryableError),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), RequestRefused),
        (IndexError("index out of range in self"), RequestRefused),
    ],
)
def test_errors_of_a_run_are_told_apart(
    raised: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def fail(self: object, x: object) -> None:
        raise raised

    backend = open_backend(f"{NAME}:by_torch")
    monkeypatch.setattr(torch.nn.Conv2d, "forward", fail)
    with pytest.raises(expected, match="the model failed"):
        backend.run({"image": np.zeros((2, 1, 8, 8), np.float32)})


def test_arrays_of_every_dtype_survive_copies() -> None:
    torch = import_torch()
    copies = DeviceCopies(torch, torch.device("cpu"))
    for dtype in (*"?bhilefdBHIQ", ml_dtypes.bfloat16):
        given: Array = np.arange(6).reshape(2, 3).astype(dtype)
        tensor = copies.to_device(copies.staged(given))
        (back,) = copies.arrays(copies.to_host({"x": tensor})).values()
        assert back.dtype == given.dtype
        np.testing.assert_array_equal(back, given)
        assert not np.shares_memory(back, as_array(torch, tensor))


@pytest.mark.parametrize(
    ("steps", "wire"),
    [(["nhwc", "unit"], "image:UINT8:-1,8,8,1"), ([HALVED], "image:UINT8:-1,1,8,8")],
)
def test_undescribed_models_are_preprocessed(tmp_path: Path, steps: list[str], wire: str) -> None:
    """TorchScript has names alone, and a function has not even these."""
    declared = TensorSpec.parse(wire)
    image = np.random.default_rng(1).integers(0, 256, (4, *declared.shape[1:]), np.uint8)
    given = {"image": image}
    models = [same_network.write_script(tmp_path), f"{NAME}:label", f"{HERE}:undeclared"]
    opened = [open_backend(str(model), inputs=[declared], preprocess=steps) for model in models]
    answers = [list(backend.run(given).values()) for backend in opened]
    for backend, answer in zip(opened, answers, strict=True):
        assert backend.spec.inputs == (declared,)
        np.testing.assert_allclose(answer[0], answers[0][0], atol=1e-3)


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
