"""Backend `paddle`: exported models in Paddle Inference, and networks of a factory run eagerly.

An exported model is a `.json` or `.pdmodel` file with a `.pdiparams` file beside it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import FREE, TensorSpec
from ...runtime.errors import ModelError
from ...runtime.extras import install_command
from . import ModelSpec, framework
from .framework import check_gpu, gpu_of
from .model_source import BackendKind, FactoryResult, ModelSettings, hash_of_code, hash_of_files
from .tensor_specs import (
    datatype_named,
    outputs_by_name,
    outputs_by_trial,
    parse_declared,
    refuse_outputs,
    with_declared_shapes,
)


def import_paddle() -> Any:
    """Import `paddle`; raises ModelError if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tools for building extensions
            import paddle
            import paddle.inference
    except ImportError as error:
        raise ModelError(
            f"paddle cannot be imported ({error}): {install_command('paddle')}"
        ) from None
    # Its handlers would print a C++ traceback at SIGTERM, which only asks a process to end.
    paddle.disable_signal_handler()
    return paddle


def checked_gpu(paddle: Any, device: str) -> int | None:
    """Return the number of the GPU that `device` names; None for the CPU.

    Raises:
        ModelError: there is no such device, or this paddle cannot use it.
    """
    if (index := gpu_of(device)) is None:
        return None
    if not paddle.is_compiled_with_cuda():
        raise ModelError(
            f"device {device} was requested, but paddle {paddle.__version__} has no GPU support: "
            "install paddlepaddle-gpu"
        )
    check_gpu(device, index, paddle.device.cuda.device_count())
    return index


def numerics(
    paddle: Any, engine: str, gpu: int | None, threads: int, precision: str = "fp32"
) -> tuple[str, ...]:
    """Return all that decides the bits of a Paddle model's labels, except the micro-batch."""
    names = None
    if gpu is not None:
        names = paddle.device.cuda.get_device_name(gpu), f"cuda={paddle.version.cuda()}"
    return framework.numerics(f"{engine}-{paddle.__version__}", precision, threads, names)


def datatype(dtype: Any) -> str:
    """Return the protocol's name for a Paddle dtype; raise ModelError if it has none."""
    return datatype_named(str(dtype).rpartition(".")[2].lower())


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: The dtype of arrays in which Paddle takes and returns the bits of bfloat16.
_BITS = np.dtype(np.uint16)


def translate_errors(subject: str) -> AbstractContextManager[None]:
    """Convert errors of a run. Paddle's own errors are Python's built-in exceptions.

    Raises:
        RetryableError: the device or its memory failed; the same inputs may succeed elsewhere.
        RequestRefused: any other error, because it is about the inputs.
    """
    return framework.translate_errors(subject, _is_transient, first_line)


def first_line(error: BaseException) -> str:
    """Return the message of a Paddle error, without its C++ location."""
    lines = [line.strip() for line in str(error).splitlines()]
    notes = ("In user code", "[Hint", "[operator", "---")
    messages = [line for line in lines if line and not line.startswith(notes)]
    return messages[0] if messages else type(error).__name__


def _is_transient(error: Exception) -> bool:
    """Whether the same inputs may succeed elsewhere."""
    return isinstance(error, MemoryError | OSError | SystemError | RuntimeError) and not isinstance(
        error, NotImplementedError
    )


#: Suffix of the weights beside a program.
WEIGHTS: Final = ".pdiparams"


def files_of(program: Path) -> list[Path]:
    """Return an exported program and the file with its weights."""
    return [program, program.with_suffix(WEIGHTS)]


class PaddleInference:
    """A model in Paddle's inference engine, with oneDNN on CPUs.

    Args:
        program: the exported program; its weights are beside it.
        settings: how to run it; `inputs` narrow shapes that the program leaves free.

    Raises:
        ModelError: paddle or the device is missing, the files cannot be read, the model has no
            inputs or no outputs, the declared ones do not fit, or this machine lacks the precision.
    """

    def __init__(self, program: Path, settings: ModelSettings) -> None:
        refuse_outputs(program, settings)
        paddle = import_paddle()
        _check_format(paddle, program)
        gpu = checked_gpu(paddle, settings.device)
        _check_precision(paddle, gpu, settings.precision)
        runtime = f"paddle {paddle.__version__}"
        with framework.loading_errors(runtime, program, "paddlepaddle", first_line):
            # The specs that the program states for its inputs and outputs.
            if program.suffix == ".json":
                declared = _declared_by_pir(paddle, str(program))
            else:
                declared = _declared_by_protobuf(paddle, program.read_bytes())
            self._predictor = paddle.inference.create_predictor(
                _engine_config(paddle, program, gpu, settings)
            )
        names = self._predictor.get_input_names(), self._predictor.get_output_names()
        if not names[0] or not names[1]:
            raise ModelError(
                f"{program} has {len(names[0])} inputs and {len(names[1])} outputs: "
                "a teacher needs at least one of each"
            )
        self._inputs = [(name, self._predictor.get_input_handle(name)) for name in names[0]]
        self._outputs = [(name, self._predictor.get_output_handle(name)) for name in names[1]]
        self.spec = ModelSpec(
            platform="paddle_inference",
            inputs=with_declared_shapes(
                [_spec_of(name, declared, program) for name in names[0]], settings.inputs
            ),
            outputs=tuple(_spec_of(name, declared, program) for name in names[1]),
            content_id=hash_of_files(files_of(program)),
            numerics=numerics(
                paddle, "paddle-inference", gpu, settings.threads, settings.precision
            ),
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with translate_errors("the model"):
            for name, handle in self._inputs:
                handle.copy_from_cpu(np.ascontiguousarray(inputs[name]))
            self._predictor.run()
            return {name: handle.copy_to_cpu() for name, handle in self._outputs}


def _check_format(paddle: Any, program: Path) -> None:
    """Raise ModelError if this paddle is older than the program's format."""
    if program.suffix == ".json" and int(paddle.__version__.partition(".")[0] or 3) in (1, 2):
        raise ModelError(
            f"{program} is in the format of Paddle 3, and paddle {paddle.__version__} reads "
            "only .pdmodel: pip install 'paddlepaddle>=3.0', or export it with Paddle 2"
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


def _engine_config(paddle: Any, program: Path, gpu: int | None, settings: ModelSettings) -> Any:
    config = paddle.inference.Config(str(program), str(program.with_suffix(WEIGHTS)))
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(settings.threads)
    if gpu is not None:
        config.enable_use_gpu(256, gpu)  # initial MiB of the memory pool, which grows
        return config
    config.disable_gpu()
    # oneDNN is five times faster. Older versions of Paddle know it by its former name, MKL-DNN.
    library = "onednn" if hasattr(config, "enable_onednn") else "mkldnn"
    getattr(config, f"enable_{library}")()
    if settings.precision == "bf16":
        getattr(config, f"enable_{library}_bfloat16")()
    return config


def _spec_of(name: str, declared: Mapping[str, TensorSpec], program: Path) -> TensorSpec:
    if name not in declared:
        raise ModelError(f"{program} does not say the shape and dtype of {name!r}")
    return declared[name]


def _declared_by_pir(paddle: Any, path: str) -> dict[str, TensorSpec]:
    """Return the specs of inputs and outputs in a .json program, by name."""
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
    """Return the specs of inputs and outputs in a .pdmodel program, by name."""
    with paddle.pir_utils.OldIrGuard():
        block = paddle.static.Program.parse_from_string(program_bytes).global_block()
        feeds = [op.output("Out")[0] for op in block.ops if op.type == "feed"]
        fetches = [op.input("X")[0] for op in block.ops if op.type == "fetch"]
        return {name: _tensor_spec(name, block.var(name)) for name in (*feeds, *fetches)}


def _tensor_spec(name: str, value: Any) -> TensorSpec:
    shape = tuple(int(size) for size in value.shape)
    return TensorSpec(name, datatype(value.dtype), shape)


class PaddleDygraph:
    """A `paddle.nn.Layer`, run eagerly in eval mode and without gradients.

    Args:
        result: the layer, and a `paddle.static.InputSpec` for each argument of its `forward`.
        settings: how to run it; `inputs` override the InputSpecs. `threads` is only stated in the
            numerics: the environment of this process sets the number of threads.

    Raises:
        ModelError: paddle or the device is missing, the precision is not fp32, the inputs are
            unknown or cannot be converted, or the layer does not run.
    """

    def __init__(self, result: FactoryResult, settings: ModelSettings) -> None:
        if settings.precision != "fp32":
            raise ModelError(
                f"{settings.precision} is for exported models: write {result.name} with "
                "paddle.jit.save"
            )
        self._paddle = import_paddle()
        gpu = checked_gpu(self._paddle, settings.device)
        place = "cpu" if gpu is None else f"gpu:{gpu}"
        self._paddle.set_device(place)
        self._layer = result.model.to(place)  # its factory does not know the device
        self._layer.eval()
        self._inputs = settings.inputs or _declared_inputs(result) or settings.preprocessed_inputs()
        if not self._inputs:
            raise ModelError(
                f"the inputs of {result.name} are not known: return (layer, "
                "[InputSpec(shape, dtype, name)]) from it, or declare them with --input"
            )
        for tensor in self._inputs:
            if tensor.datatype == "UINT16":
                raise ModelError(f"{tensor}: Paddle takes UINT16 for bfloat16; declare INT32")
        outputs = settings.outputs or parse_declared(result.outputs)
        self.spec = ModelSpec(
            platform="paddle_dygraph",
            inputs=self._inputs,
            outputs=outputs_by_trial(self.run, self._inputs, outputs, result.name),
            content_id=hash_of_code(
                result.name,
                result.model,
                ((name, value.numpy()) for name, value in self._layer.state_dict().items()),
            ),
            numerics=numerics(self._paddle, "paddle-dygraph", gpu, settings.threads),
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with translate_errors("the model"), self._paddle.no_grad():
            tensors = [self._to_tensor(inputs[tensor.name]) for tensor in self._inputs]
            outputs = outputs_by_name(self._layer(*tensors))
            return {name: self._to_array(tensor) for name, tensor in outputs.items()}

    def _to_tensor(self, array: Array) -> Any:
        return self._paddle.to_tensor(array.view(_BITS) if array.dtype == _BFLOAT16 else array)

    def _to_array(self, tensor: Any) -> Array:
        array: Array = tensor.numpy()
        return array.view(_BFLOAT16) if tensor.dtype == self._paddle.bfloat16 else array


def _declared_inputs(result: FactoryResult) -> tuple[TensorSpec, ...]:
    arguments = list(inspect.signature(result.model.forward).parameters)
    return parse_declared(result.inputs, arguments, _convert_input_spec, "an InputSpec")


def _convert_input_spec(spec: Any, argument: str) -> TensorSpec:
    shape = tuple(FREE if size is None else int(size) for size in spec.shape)
    return TensorSpec(spec.name or argument, datatype(spec.dtype), shape)


KIND = BackendKind(
    name="paddle",
    package="paddle",
    precisions=("fp32", "bf16"),
    files="a .json or .pdmodel file with a .pdiparams file of the same name beside it (Paddle)",
    suffixes=(".json", ".pdmodel"),
    open_file=PaddleInference,
    companion_suffix=WEIGHTS,
    content_files=files_of,
    factory_types="a paddle.nn.Layer",
    recognises=partial(framework.is_network, framework="paddle", class_name="Layer"),
    open_object=PaddleDygraph,
)
