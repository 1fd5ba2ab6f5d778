"""Runs an exported Paddle model (`.json` or `.pdmodel` with `.pdiparams`) by Paddle Inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...proto.arena import Array
from ..model import ModelSpec, TensorSpec
from . import paddle_runtime
from .paddle_files import ModelFiles


class PaddleInference:
    """A model under Paddle's inference engine; oneDNN on CPUs.

    Args:
        files: the exported model.
        device: "cpu" or "gpu:N".
        threads: CPU threads of one run.
        inputs: narrower shapes for inputs of which the program leaves more than the batch free.

    Raises:
        ModelError: the files cannot be read, the model has no inputs or no outputs, or `inputs` are
            not its inputs.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        device: str = "cpu",
        threads: int = 1,
        inputs: Sequence[TensorSpec] = (),
    ) -> None:
        paddle = paddle_runtime.import_paddle()
        gpu = paddle_runtime.check_device(paddle, device)
        try:
            declared = _declared(paddle, files)
            self._predictor = paddle.inference.create_predictor(
                _engine_config(paddle, files, gpu, threads)
            )
        except (ValueError, RuntimeError, OSError, TypeError, LookupError) as error:
            why = paddle_runtime.first_line(error)
            raise ModelError(f"paddle cannot load {files.program}: {why}") from error
        names = self._predictor.get_input_names(), self._predictor.get_output_names()
        if not names[0] or not names[1]:
            raise ModelError(
                f"{files.program} has {len(names[0])} inputs and {len(names[1])} outputs: "
                "a teacher needs at least one of each"
            )
        self._inputs = [(name, self._predictor.get_input_handle(name)) for name in names[0]]
        self._outputs = [(name, self._predictor.get_output_handle(name)) for name in names[1]]
        self._spec = ModelSpec(
            platform="paddle_inference",
            inputs=_narrowed([_spec_of(name, declared, files) for name in names[0]], inputs),
            outputs=tuple(_spec_of(name, declared, files) for name in names[1]),
            content_id=files.content_id(),
            numerics=paddle_runtime.numerics(paddle, "paddle-inference", gpu, threads),
        )

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with paddle_runtime.translated("the model"):
            for name, handle in self._inputs:
                handle.copy_from_cpu(np.ascontiguousarray(inputs[name]))
            self._predictor.run()
            return {name: handle.copy_to_cpu() for name, handle in self._outputs}


def _engine_config(paddle: Any, files: ModelFiles, gpu: int | None, threads: int) -> Any:
    config = paddle.inference.Config(str(files.program), str(files.weights))
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(threads)
    if gpu is not None:
        config.enable_use_gpu(256, gpu)  # MiB of the memory pool at the start; it grows
        return config
    config.disable_gpu()
    # Five times faster than without; older versions know it by its former name.
    getattr(config, "enable_onednn", config.enable_mkldnn)()
    return config


def _spec_of(name: str, declared: Mapping[str, TensorSpec], files: ModelFiles) -> TensorSpec:
    if name not in declared:
        raise ModelError(f"{files.program} does not say the shape and dtype of {name!r}")
    return declared[name]


def _narrowed(
    specs: Sequence[TensorSpec], narrower: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    by_name = {spec.name: spec for spec in specs}
    for tensor in narrower:
        spec = by_name.get(tensor.name)
        if spec is None or spec.datatype != tensor.datatype or not spec.admits(tensor.shape):
            raise ModelError(
                f"{tensor} was declared as an input; the model has {', '.join(map(str, specs))}"
            )
        by_name[tensor.name] = tensor
    return tuple(by_name.values())


def _declared(paddle: Any, files: ModelFiles) -> dict[str, TensorSpec]:
    """Name, datatype and shape of every input and output, as the program states them."""
    if files.program.suffix == ".json":
        return _declared_by_pir(paddle, str(files.program))
    return _declared_by_protobuf(paddle, files.program.read_bytes())


def _declared_by_pir(paddle: Any, path: str) -> dict[str, TensorSpec]:
    program = paddle.base.libpaddle.pir.Program()
    paddle.base.core.deserialize_pir_program(path, program, 1)
    declared = {}
    for operation in program.global_block().ops:
        if operation.name() in ("pd_op.data", "pd_op.feed"):
            value = operation.results()[0]
        elif operation.name() == "pd_op.fetch":
            value = operation.operands_source()[0]
        else:
            continue
        name = operation.attrs()["name"]
        declared[name] = _tensor_spec(name, value)
    return declared


def _declared_by_protobuf(paddle: Any, program_bytes: bytes) -> dict[str, TensorSpec]:
    with paddle.pir_utils.OldIrGuard():
        block = paddle.static.Program.parse_from_string(program_bytes).global_block()
        feeds = [op.output("Out")[0] for op in block.ops if op.type == "feed"]
        fetches = [op.input("X")[0] for op in block.ops if op.type == "fetch"]
        return {name: _tensor_spec(name, block.var(name)) for name in (*feeds, *fetches)}


def _tensor_spec(name: str, value: Any) -> TensorSpec:
    shape = tuple(int(size) for size in value.shape)
    return TensorSpec(name, paddle_runtime.datatype(value.dtype), shape)
