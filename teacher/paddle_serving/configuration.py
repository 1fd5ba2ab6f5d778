"""What a pipeline server reads: its configuration, the model's feeds and fetches, the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import ModelError
from ...proto.datatypes import TensorSpec
from ...proto.paddle_serving.arrays import NUMBERS
from ..backends.device import gpu_of

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
