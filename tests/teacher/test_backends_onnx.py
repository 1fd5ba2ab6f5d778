"""ONNX models: what they declare, what they consist of, how they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError, RetryableError, UsageError
from edl.teacher.backends.model_source import ModelSettings
from edl.teacher.backends.onnx import OnnxSession, files_of
from edl.teacher.backends.selection import content_of, open_backend
from edl.tests.teacher import same_network
from edl.tests.teacher.same_network import NAME

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_network.write_onnx(tmp_path_factory.mktemp("onnx"))


def rewritten(model: Path, folder: Path, change: Callable[[Any], object]) -> Path:
    """The model with its message changed, as a file of its own."""
    import onnx

    message = onnx.load(str(model))
    change(message)
    file = folder / "changed.onnx"
    file.write_bytes(message.SerializeToString())
    return file


def test_external_weights_are_part_of_the_content(tmp_path: Path) -> None:
    file = same_network.write_onnx(tmp_path, external=True)
    beside = tmp_path / "net.weights"
    assert files_of(file) == [file, beside]
    before = open_backend(str(file)).spec.content_id
    content = bytearray(beside.read_bytes())
    content[0] ^= 1
    beside.write_bytes(content)
    assert open_backend(str(file)).spec.content_id != before
    beside.unlink()
    with pytest.raises(ModelError, match=r"net.weights"):
        open_backend(str(file))
    with pytest.raises(ModelError, match=r"weights in .*net.weights, which does not exist"):
        files_of(file)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ModelError, match="cannot read"):
        files_of(file)


def test_weights_of_branches_are_part_of_the_content(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    def scaled_by(name: str, *, inline: bool) -> Any:
        """A branch whose weight lies in the file `name`, in an initializer or a Constant."""
        (tmp_path / name).write_bytes(np.float32(2).tobytes())
        weight = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=name)
        nodes = [helper.make_node("Mul", ["x", name], [f"by_{name}"])]
        if inline:
            nodes.insert(0, helper.make_node("Constant", [], [name], value=weight))
        value = helper.make_tensor_value_info(f"by_{name}", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [value], [] if inline else [weight])

    branches = {
        "then_branch": scaled_by("then", inline=False),
        "else_branch": scaled_by("else", inline=True),
    }
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "xy")
    always = helper.make_tensor("always", TensorProto.BOOL, [1], [True])
    chosen = helper.make_node("If", ["always"], ["y"], **branches)
    graph = helper.make_graph([chosen], "g", [x], [y], [always])
    file = tmp_path / "branches.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(file))
    assert files_of(file) == [file, tmp_path / "else", tmp_path / "then"]


def test_graphs_may_be_large(tmp_path: Path) -> None:
    from onnx import ModelProto

    message = ModelProto()
    for _ in range(10_000):
        message.graph.node.add(op_type="Relu")
    file = tmp_path / "large.onnx"
    file.write_bytes(message.SerializeToString())
    assert files_of(file) == [file]


def test_an_empty_value_may_be_left_out(tmp_path: Path) -> None:
    """As writers of proto3 do."""
    from onnx import ModelProto

    message = ModelProto()
    weight = message.graph.initializer.add()
    weight.external_data.add(key="checksum")
    weight.external_data.add(key="location", value="weights")
    (tmp_path / "weights").write_bytes(b"")
    file = tmp_path / "net.onnx"
    file.write_bytes(message.SerializePartialToString())
    assert files_of(file) == [file, tmp_path / "weights"]


@pytest.mark.parametrize(
    "change",
    [
        lambda message: setattr(message, "ir_version", 99),
        lambda message: setattr(message.opset_import[0], "version", 99),
        lambda message: setattr(message.graph.node[0], "op_type", "ConvOfTomorrow"),
    ],
    ids=["ir", "opset", "operator"],
)
def test_models_of_newer_runtimes_fail(
    model: Path, tmp_path: Path, change: Callable[[Any], object]
) -> None:
    file = rewritten(model, tmp_path, change)
    with pytest.raises(ModelError, match=r"pip install --upgrade onnxruntime") as caught:
        open_backend(str(file))
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    for damage in (b"", b"garbage"):
        (tmp_path / "net.onnx").write_bytes(damage)
        with pytest.raises(ModelError, match=r"onnxruntime .* cannot load .*net.onnx: ") as caught:
            open_backend(str(tmp_path))
        assert "\n" not in str(caught.value)
        assert "upgrade" not in str(caught.value)


def test_inputs_may_be_narrowed(model: Path) -> None:
    narrow = TensorSpec("image", "FP32", (4, 1, 8, 8))
    assert open_backend(str(model), inputs=[narrow]).spec.inputs == (narrow,)
    for other in ("img:FP32:-1,1,8,8", "image:FP64:-1,1,8,8", "image:FP32:-1,3,8,8"):
        with pytest.raises(ModelError, match="the model has image:FP32:-1,1,8,8"):
            open_backend(str(model), inputs=[TensorSpec.parse(other)])
    with pytest.raises(ModelError, match="says its outputs itself"):
        open_backend(str(model), outputs=[TensorSpec.parse("logits:FP32:-1,10")])


def test_outputs_of_unknown_dimensions_are_found_by_a_run(model: Path, tmp_path: Path) -> None:
    def by_a_shape_of_its_own(message: Any) -> None:
        """Reshapes to what comes out of a run, which no rule of inference can know."""
        from onnx import TensorProto, helper

        nodes, outputs = message.graph.node, message.graph.output
        nodes.append(helper.make_node("Shape", ["features"], ["sizes"]))
        nodes.append(helper.make_node("Unique", ["sizes"], ["shape"], sorted=0))
        nodes.append(helper.make_node("Reshape", ["features", "shape"], ["again"]))
        del outputs[:]
        outputs.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, None))

    backend = open_backend(str(rewritten(model, tmp_path, by_a_shape_of_its_own)))
    assert [tensor.shape for tensor in backend.spec.outputs] == [(-1, 144)]


@pytest.mark.parametrize("dtype", ["string", "bfloat16"])
def test_inputs_that_cannot_be_sent_are_refused(model: Path, tmp_path: Path, dtype: str) -> None:
    from onnx import TensorProto

    def with_more(message: Any) -> None:
        more = message.graph.input.add()
        more.name = "more"
        more.type.tensor_type.elem_type = TensorProto.DataType.Value(dtype.upper())
        more.type.tensor_type.shape.dim.add()

    said = rf"'more' is a tensor\({dtype}\), which cannot be sent"
    with pytest.raises(ModelError, match=said):
        open_backend(str(rewritten(model, tmp_path, with_more)))


def test_a_lower_precision_is_refused(model: Path) -> None:
    with pytest.raises(ModelError, match="backend onnx runs at fp32, not at bf16"):
        open_backend(str(model), precision="bf16")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Of the next session: whether it uses a GPU, how it fails, and what it was asked to use."""
    import onnxruntime

    state = SimpleNamespace(used="CUDAExecutionProvider", error="", asked=[])
    make = onnxruntime.InferenceSession

    def fail(*_: object) -> None:
        raise RuntimeError(state.error)

    def made(model: str, options: Any, providers: list[Any]) -> Any:
        state.asked = providers
        session = make(model, options, providers=["CPUExecutionProvider"])
        session.get_providers = lambda: [state.used]
        if state.error:
            session.run = fail
        return session

    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(onnxruntime, "InferenceSession", made)
    return state


def test_a_gpu_is_used_with_full_float32_and_no_cpu_instead(
    model: Path, session: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "gpu" in OnnxSession(model, ModelSettings(device="gpu:1")).spec.numerics
    name, settings = session.asked[0]
    assert name == "CUDAExecutionProvider"
    assert settings == {"device_id": 1, "use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    monkeypatch.delattr("onnxruntime.preload_dlls")  # older releases have none
    session.used = "CPUExecutionProvider"
    with pytest.raises(ModelError, match="cannot use device gpu:1"):
        OnnxSession(model, ModelSettings(device="gpu:1"))
    session.error = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory"
    with pytest.raises(RetryableError, match="the model failed: Failed to allocate memory"):
        OnnxSession(model, ModelSettings()).run({"image": np.zeros((2, 1, 8, 8), np.float32)})


class Driver:
    """CUDA's driver, for two GPUs."""

    NAMES = ("NVIDIA V100", "NVIDIA T4")

    def __init__(self, _: str) -> None:
        pass

    def cuInit(self, flags: int) -> int:
        return flags

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = 10 + number  # noqa: SLF001 - what a pointer points to
        return 0 if number < len(self.NAMES) else 101

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = self.NAMES[device.value - 10].encode()
        return 0


@pytest.mark.usefixtures("session")
def test_the_numerics_have_the_name_that_cuda_gives_a_gpu(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctypes.CDLL", Driver)
    for number, name in enumerate((*Driver.NAMES, "unknown")):
        numerics = OnnxSession(model, ModelSettings(device=f"gpu:{number}")).spec.numerics
        assert numerics[-1] == name


@pytest.mark.parametrize(
    ("factory", "backend", "words"),
    [
        ("by_paddle", "torch", "returned Network: expected a torch.nn.Module, alone"),
        ("by_torch", "paddle", "returned Network: expected a paddle.nn.Layer, alone"),
        ("by_numpy", "paddle", "returned function: expected a paddle.nn.Layer"),
        ("by_numpy", "onnx", "is a factory, and this backend opens only files"),
    ],
)
def test_a_named_backend_refuses_models_of_others(
    model: Path, factory: str, backend: str, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        open_backend(f"{NAME}:{factory}", backend=backend)
    with pytest.raises(ModelError, match="is a path, and this backend runs only what a factory"):
        open_backend(str(model), backend="callable")


@pytest.mark.parametrize("preprocess", [(), ("unit",), ("nhwc", "unit"), ("unit", "nhwc")])
def test_content_of_files_and_of_the_model(model: Path, preprocess: tuple[str, ...]) -> None:
    opened = open_backend(str(model), preprocess=preprocess)
    assert content_of(str(model), preprocess) == opened.spec.content_id
    assert content_of(str(model.parent), preprocess) == opened.spec.content_id
    with pytest.raises(UsageError, match="os:system"):
        content_of(str(model), ["os:system"])
