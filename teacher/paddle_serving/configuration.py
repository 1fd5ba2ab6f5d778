"""What a pipeline server reads: its configuration, the model's feeds and fetches, the model.

The model is found here, and the serving environment is asked what it is. Which settings of a
teacher mean something to the server is known here too; the others are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ... import supervise
from ...errors import ModelError, ProcessFailed, UsageError
from ...proto.datatypes import TensorSpec
from ...proto.paddle_serving.messages import NUMBERS
from ..backends.declared import datatype_named
from ..backends.framework import gpu_of
from ..backends.kind import find
from ..backends.paddle import KIND
from ..config import PredictorConfig, TeacherConfig

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


#: Seconds for Paddle to be imported and to read a program, which may be large.
_DESCRIBE_S: Final = 120.0
_PROGRAM: Final = Path(__file__).with_name("describe.py")
_FORMER_FORMAT: Final = ".pdmodel"
#: How the serving environment's interpreter is started: nothing of this one's settings reaches it.
PYTHON_OPTIONS: Final = ("-I", "-u")


def open_model(model: str, python: Path) -> Model:
    """The model at a path, as the Paddle of the serving environment reads it.

    Args:
        model: a folder that holds one, or its file.
        python: the interpreter of the serving environment.

    Raises:
        ModelError: there is none, or it is of a format that Paddle Serving cannot read.
        UsageError: that interpreter has no Paddle, or there is no such interpreter.
    """
    found = find(model, [KIND])
    if found.file.suffix != _FORMER_FORMAT or found.beside is None:
        raise ModelError(
            f"{found.file} is in the format of Paddle 3, which Paddle Serving does not read: export"
            " it with FLAGS_enable_pir_api=0 in the environment, which gives a .pdmodel file; or"
            " leave --engine out, and it is served by this teacher itself"
        )
    said = _described(python, found.file)
    return Model(
        found.file,
        found.beside,
        str(said["paddle"]),
        _specs(said["inputs"]),
        _specs(said["outputs"]),
    )


def _described(python: Path, program: Path) -> dict[str, Any]:
    argv = (str(python), *PYTHON_OPTIONS, str(_PROGRAM), str(program.absolute()))
    try:
        process = supervise.start(supervise.Command("describe", argv, guard=True))
    except ProcessFailed as error:
        raise UsageError(f"{error}: make an environment by 'make serving-env'") from None
    try:
        line = process.expect(r'^\{"paddle".*\}$', _DESCRIBE_S)[0]
    except ProcessFailed as error:
        raise ModelError(
            f"the Paddle of {python} cannot read {program}: {error}. Has the environment been made"
            " by 'make serving-env'?"
        ) from None
    finally:
        process.stop()
    return dict(json.loads(line))


def _specs(said: Sequence[tuple[str, str, list[int]]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, datatype_named(dtype), tuple(shape)) for name, dtype, shape in said
    )
