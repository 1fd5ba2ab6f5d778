"""Runs an exported Paddle model (`.json` or `.pdmodel` with `.pdiparams`) by Paddle Inference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...errors import ModelError
from ...proto.arena import Array
from ..model import ModelSpec, TensorSpec
from . import content, paddle_runtime
from .declared import narrowed, refuse_outputs
from .kind import Settings

#: What lies beside a program.
WEIGHTS: Final = ".pdiparams"


class PaddleInference:
    """A model under Paddle's inference engine; oneDNN on CPUs.

    Args:
        program: the exported program; its weights lie beside it.
        settings: how to run it. `inputs` are narrower shapes for inputs of which the program leaves
            more than the batch free.

    Raises:
        ModelError: the files cannot be read, the model has no inputs or no outputs, `inputs` are
            not its inputs, or this machine has not the precision.
    """

    def __init__(self, program: Path, settings: Settings) -> None:
        refuse_outputs(program, settings)
        paddle = paddle_runtime.import_paddle()
        _check_format(paddle, program)
        gpu = paddle_runtime.check_device(paddle, settings.device)
        _check_precision(paddle, gpu, settings.precision)
        try:
            declared = _declared(paddle, program)
            self._predictor = paddle.inference.create_predictor(
                _engine_config(paddle, program, gpu, settings)
            )
        except (ValueError, RuntimeError, OSError, TypeError, LookupError) as error:
            why = paddle_runtime.first_line(error)
            raise ModelError(
                f"paddle {paddle.__version__} cannot load {program}: {why}; "
                "if a newer one wrote it: pip install --upgrade paddlepaddle"
            ) from error
        names = self._predictor.get_input_names(), self._predictor.get_output_names()
        if not names[0] or not names[1]:
            raise ModelError(
                f"{program} has {len(names[0])} inputs and {len(names[1])} outputs: "
                "a teacher needs at least one of each"
            )
        self._inputs = [(name, self._predictor.get_input_handle(name)) for name in names[0]]
        self._outputs = [(name, self._predictor.get_output_handle(name)) for name in names[1]]
        self._spec = ModelSpec(
            platform="paddle_inference",
            inputs=narrowed(
                [_spec_of(name, declared, program) for name in names[0]], settings.inputs
            ),
            outputs=tuple(_spec_of(name, declared, program) for name in names[1]),
            content_id=content.of_files([program, program.with_suffix(WEIGHTS)]),
            numerics=paddle_runtime.numerics(
                paddle, "paddle-inference", gpu, settings.threads, settings.precision
            ),
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


def _check_format(paddle: Any, program: Path) -> None:
    """Raise ModelError where this paddle is older than the program's format."""
    if program.suffix == ".json" and int(paddle.__version__.partition(".")[0] or 3) in (1, 2):
        raise ModelError(
            f"{program} is in the format of Paddle 3, and paddle {paddle.__version__} reads "
            ".pdmodel alone: pip install 'paddlepaddle>=3.0', or export it with Paddle 2"
        )


def _check_precision(paddle: Any, gpu: int | None, precision: str) -> None:
    if precision == "fp32":
        return
    if gpu is not None:
        raise ModelError(f"{precision} is for CPUs: leave --precision out on a GPU")
    if not paddle.base.core.supports_bfloat16_fast_performance():
        raise ModelError(
            f"this CPU has no {precision} instructions (avx512_bf16): leave --precision out"
        )


def _engine_config(paddle: Any, program: Path, gpu: int | None, settings: Settings) -> Any:
    config = paddle.inference.Config(str(program), str(program.with_suffix(WEIGHTS)))
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(settings.threads)
    if gpu is not None:
        config.enable_use_gpu(256, gpu)  # MiB of the memory pool at the start; it grows
        return config
    config.disable_gpu()
    # Five times faster than without; older versions know both by their former names.
    getattr(config, "enable_onednn", config.enable_mkldnn)()
    if settings.precision == "bf16":
        getattr(config, "enable_onednn_bfloat16", config.enable_mkldnn_bfloat16)()
    return config


def _spec_of(name: str, declared: Mapping[str, TensorSpec], program: Path) -> TensorSpec:
    if name not in declared:
        raise ModelError(f"{program} does not say the shape and dtype of {name!r}")
    return declared[name]


def _declared(paddle: Any, program: Path) -> dict[str, TensorSpec]:
    """Name, datatype and shape of every input and output, as the program states them."""
    if program.suffix == ".json":
        return _declared_by_pir(paddle, str(program))
    return _declared_by_protobuf(paddle, program.read_bytes())


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
