"""Settings of Paddle Serving, and what its server says of its models."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ...errors import ModelError, UsageError
from ...proto.datatypes import TensorSpec
from ...proto.paddle_serving.elements import NUMBERS
from ..backends.device import gpu_of
from ..config import PredictorConfig, TeacherConfig

#: Settings that are heeded; every other one has to be what it is by default.
_HEEDED: Final = frozenset(
    {"service", "coordinator", "teacher_id", "advertise", "ttl_s", "grace_s", "insecure", "devices"}
    | {"model", "threads", "micro_batch", "inputs", "canary"}
    | {"host", "port", "slots"}
)
_PARTS: Final = ("predictor", "server")
#: Flags whose name is not that of the setting.
_FLAGS: Final = {
    "security": "--tls-* and --tokens",
    "self_test": "--no-self-test",
    "batching": "--batch-*",
    "outputs": "--output",
    "max_message_bytes": "--max-message-mib",
    "receive_s": "--receive-timeout",
}


def check(config: TeacherConfig) -> None:
    """Raise UsageError where a setting would not be heeded, or one that is needed is missing."""
    if config.coordinator is None:
        raise UsageError("Paddle Serving is registered at a coordinator: name it by --coordinator")
    if len(config.devices) > 1:
        raise UsageError("a Paddle Serving teacher has one device: start another for each other")
    if config.devices[0].cores:
        raise UsageError("Paddle Serving is not bound to cores: say --devices cpu, and --threads")
    if config.predictor.micro_batch is None:
        raise UsageError("Paddle Serving does not measure its micro-batch: name a number")
    plain = TeacherConfig("", PredictorConfig(""))
    unheeded = [
        *_changed(config, plain, _PARTS),
        *_changed(config.predictor, plain.predictor),
        *_changed(config.server, plain.server),
    ]
    if unheeded:
        flags = ", ".join(_FLAGS.get(name, f"--{name.replace('_', '-')}") for name in unheeded)
        raise UsageError(f"with --engine paddle-serving there is no {flags}: leave it out")


def _changed(settings: Any, plain: Any, parts: Sequence[str] = ()) -> list[str]:
    """Names of the settings that are not heeded, and not what they are by default."""
    return [
        field.name
        for field in fields(settings)
        if field.name not in _HEEDED
        and field.name not in parts
        and getattr(settings, field.name) != getattr(plain, field.name)
    ]


#: What numpy calls a dtype, by what older versions of Paddle call it; newer ones say as numpy.
NAMES = {
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


def describe(program: Path) -> dict[str, Any]:
    """Version of Paddle; [name, dtype, shape] of each input and output of the program.

    Raises:
        ValueError: it is no program in the format of Paddle 2.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle
    whole = paddle.base.core.ProgramDesc(program.read_bytes())  # which owns what follows
    block = whole.block(0)
    operations = [block.op(index) for index in range(block.op_size())]
    feeds = [op.output("Out")[0] for op in operations if op.type() == "feed"]
    fetches = [op.input("X")[0] for op in operations if op.type() == "fetch"]
    return {
        "paddle": paddle.__version__,
        "inputs": [tensor(block, name) for name in feeds],
        "outputs": [tensor(block, name) for name in fetches],
    }


def tensor(block: Any, name: str) -> list[Any]:
    """[name, dtype, shape] of a variable of a program."""
    variable = block.find_var(name.encode())
    dtype = str(variable.dtype()).rpartition(".")[2]
    return [name, NAMES.get(dtype, dtype), [int(size) for size in variable.shape()]]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe(Path(sys.argv[1]))) + "\n")


#: The operator that runs the model, as `service.py` calls it.
OPERATOR: Final = "model"
_CPU, _GPU = 0, 1
_MODEL_FOLDER: Final = "model"
_FEEDS_AND_FETCHES: Final = "serving_server_conf.prototxt"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that Paddle Serving can read.

    Attributes:
        program: its `.pdmodel` file.
        weights: its `.pdiparams` file.
        paddle: the version of Paddle that runs it.
        inputs: in the program's order.
        outputs: in the program's order.
    """

    program: Path
    weights: Path
    paddle: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def write(folder: Path, model: Model, *, port: int, calls: int, device: str, threads: int) -> Path:
    """Write all that the server reads into `folder`; its configuration file.

    Args:
        folder: empty, and the server's working directory.
        model: what it serves; the files are linked, not copied.
        port: for gRPC. No port for HTTP: upstream's gateway would listen on every interface.
        calls: requests served at once, of which the model runs one.
        device: "cpu" or "gpu:N".
        threads: of one run on a CPU.

    Raises:
        ModelError: a tensor's datatype has no number there.
    """
    beside = folder / _MODEL_FOLDER
    beside.mkdir()
    (beside / model.program.name).symlink_to(model.program.absolute())
    (beside / model.weights.name).symlink_to(model.weights.absolute())
    (beside / _FEEDS_AND_FETCHES).write_text(_feeds_and_fetches(model))
    gpu = gpu_of(device)
    config = {
        "rpc_port": port,
        "worker_num": calls,
        "build_dag_each_worker": False,
        # One process: what kills the model kills the server, and that is seen.
        "dag": {"is_thread_op": True, "retry": 1, "tracer": {"interval_s": -1}},
        "op": {
            OPERATOR: {
                "concurrency": 1,
                "local_service_conf": {
                    "client_type": "local_predictor",
                    "model_config": str(beside),
                    "fetch_list": [tensor.name for tensor in model.outputs],
                    "device_type": _CPU if gpu is None else _GPU,
                    "devices": "" if gpu is None else str(gpu),
                    "thread_num": threads,
                    "ir_optim": True,
                    "use_mkldnn": gpu is None,
                },
            }
        },
    }
    file = folder / "config.yml"
    file.write_text(json.dumps(config, indent=2))  # which is YAML too
    return file


def _feeds_and_fetches(model: Model) -> str:
    """Protobuf's text format of upstream's message `GeneralModelConfig`."""
    feeds = [_variable("feed", tensor) for tensor in model.inputs]
    return "".join([*feeds, *(_variable("fetch", tensor) for tensor in model.outputs)])


def _variable(kind: str, tensor: TensorSpec) -> str:
    number = NUMBERS.get(tensor.datatype)
    if number is None:
        raise ModelError(f"Paddle Serving has no {tensor.datatype}, which {tensor.name!r} is of")
    name = json.dumps(tensor.name, ensure_ascii=False)
    lines = [
        f"name: {name}",
        f"alias_name: {name}",
        "is_lod_tensor: false",
        f"{kind}_type: {number}",
        *(f"shape: {size}" for size in tensor.shape[1:]),  # all but the batch
    ]
    return "\n  ".join([f"{kind}_var {{", *lines]) + "\n}\n"
