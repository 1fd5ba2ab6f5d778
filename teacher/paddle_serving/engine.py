"""Configures, starts, registers and ends a pipeline server of Paddle Serving.

The server is a child process that is restarted after crashes. A process of the serving environment
describes the model. Options of a teacher that have no meaning here are refused by name.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...coordinator.embedded import free_port
from ...coordinator.registry import connect
from ...coordinator.registry.schema import check_member, check_service
from ...proto.clients import LabelRequest, TeacherClient, open_client
from ...proto.clients.paddle_serving import ELEM_TYPES
from ...proto.datatypes import TensorSpec
from ...proto.protocols import PADDLE_SERVING
from ...runtime import supervise
from ...runtime.addresses import is_loopback, is_wildcard, join_address
from ...runtime.errors import EdlError, ModelError, ProcessFailed, RequestRefused, UsageError
from ...runtime.lifecycle import Stop
from ..backends.framework import gpu_of
from ..backends.model_source import find_model, hash_of_files
from ..backends.paddle import KIND
from ..backends.tensor_specs import datatype_named, with_declared_shapes
from ..config import PredictorConfig, TeacherConfig
from ..identity import advertised, split_address
from ..pool import GIVE_UP_AFTER_CRASHES
from ..register.config import RegisterConfig
from ..register.server_check import ServerTest
from ..register.sidecar import register
from ..self_test import Canary

#: Name of the operator that runs the model; the same in `service.py`.
OPERATOR: Final = "model"
#: Numbers of the device types in the configuration of Paddle Serving ("upstream").
_CPU, _GPU = 0, 1
_MODEL_FOLDER: Final = "model"
#: File with the inputs and outputs of the model, which upstream calls feed and fetch variables.
_VARIABLES_FILE: Final = "serving_server_conf.prototxt"


@dataclass(frozen=True, slots=True)
class ServingModel:
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


def write_configuration(
    folder: Path, model: ServingModel, *, port: int, calls: int, device: str, threads: int
) -> Path:
    """Write everything that the server reads into `folder`; return the configuration file.

    Args:
        folder: empty; the server's working directory.
        model: the model; its files are linked, not copied.
        port: port for gRPC. There is no HTTP port, because upstream's gateway listens on every
            interface.
        calls: concurrent requests; the model runs one at a time.
        device: "cpu" or "gpu:N".
        threads: of one run on a CPU.

    Raises:
        ModelError: Paddle Serving lacks the datatype of a tensor.
    """
    model_folder = folder / _MODEL_FOLDER
    model_folder.mkdir()
    (model_folder / model.program.name).symlink_to(model.program.absolute())
    (model_folder / model.weights.name).symlink_to(model.weights.absolute())
    variables = [_variable("feed", tensor) for tensor in model.inputs]
    variables += [_variable("fetch", tensor) for tensor in model.outputs]
    (model_folder / _VARIABLES_FILE).write_text("".join(variables))
    gpu = gpu_of(device)
    config = {
        "rpc_port": port,
        "worker_num": calls,
        "build_dag_each_worker": False,
        # One process, so that a crash of the model ends the server and is noticed.
        "dag": {"is_thread_op": True, "retry": 1, "tracer": {"interval_s": -1}},
        "op": {
            OPERATOR: {
                "concurrency": 1,
                "local_service_conf": {
                    "client_type": "local_predictor",
                    "model_config": str(model_folder),
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
    file.write_text(json.dumps(config, indent=2))  # JSON is valid YAML
    return file


def _variable(kind: str, tensor: TensorSpec) -> str:
    """Return a variable in the text format of upstream's message `GeneralModelConfig`."""
    number = ELEM_TYPES.get(tensor.datatype)
    if number is None:
        raise ModelError(
            f"{kind} variable {tensor.name!r} is {tensor.datatype}, which Paddle Serving does not "
            "support"
        )
    name = json.dumps(tensor.name, ensure_ascii=False)
    lines = [
        f"name: {name}",
        f"alias_name: {name}",
        "is_lod_tensor: false",
        f"{kind}_type: {number}",
        *(f"shape: {size}" for size in tensor.shape[1:]),  # all but the batch
    ]
    return "\n  ".join([f"{kind}_var {{", *lines]) + "\n}\n"


#: Supported settings; all others must have their defaults. `beat_relay` is set by an agent and is
#: not needed: the sidecar sends its heartbeats to Redis.
_SUPPORTED: Final = frozenset(
    {"service", "coordinator", "teacher_id", "advertise", "ttl_s", "grace_s", "insecure", "devices"}
    | {"model", "threads", "micro_batch", "inputs", "canary"}
    | {"host", "port", "slots", "predictor", "server", "beat_relay"}
)
#: Flags with other names than their settings.
_FLAGS: Final = {
    "security": "--tls and --tokens",
    "self_test": "--no-self-test",
    "batching": "--batch",
    "outputs": "--output",
    "output_kinds": "--output",
    "max_message_bytes": "--limit message-mib=",
    "max_calls": "--limit calls=",
    "max_calls_per_peer": "--limit calls-per-peer=",
    "request_bytes": "--limit memory-mib=",
    "receive_s": "--limit receive-timeout=",
}


def check_settings(config: TeacherConfig) -> None:
    """Raise UsageError for unsupported settings, or if a required one is missing."""
    if config.coordinator is None:
        raise UsageError("Paddle Serving is registered at a coordinator: name it by --redis")
    if len(config.devices) > 1:
        raise UsageError("a Paddle Serving teacher has one device: start a teacher for each device")
    if config.devices[0].cores:
        raise UsageError("Paddle Serving is not bound to cores: use --devices cpu, and --threads")
    if config.predictor.micro_batch is None:
        raise UsageError("Paddle Serving does not measure its micro-batch: name a number")
    defaults = _values(TeacherConfig("", PredictorConfig("")))
    values = _values(config)
    unsupported = [
        name for name in values if name not in _SUPPORTED and values[name] != defaults[name]
    ]
    if unsupported:
        flags = ", ".join(_FLAGS.get(name, f"--{name.replace('_', '-')}") for name in unsupported)
        raise UsageError(f"with --engine paddle-serving there is no {flags}: leave it out")


def _values(config: TeacherConfig) -> dict[str, Any]:
    """Return all settings by name; no name is used twice."""
    parts = (config, config.predictor, config.server)
    return {field.name: getattr(part, field.name) for part in parts for field in fields(part)}


#: Seconds to import Paddle and to read a program, which may be large.
_DESCRIBE_S: Final = 120.0
_DESCRIBE_PROGRAM: Final = Path(__file__).with_name("describe.py")
_PADDLE_2_SUFFIX: Final = ".pdmodel"
#: Options that isolate the serving environment's interpreter from the settings of this one.
PYTHON_OPTIONS: Final = ("-I", "-u")


def open_model(model: str, python: Path) -> ServingModel:
    """Find the model at a path, and describe it with the Paddle of the serving environment.

    Args:
        model: a folder with one model, or the model's file.
        python: the interpreter of the serving environment.

    Raises:
        ModelError: there is no model, or Paddle Serving cannot read its format.
        UsageError: there is no such interpreter.
    """
    files = find_model(model, [KIND])
    if files.file.suffix != _PADDLE_2_SUFFIX or files.companion is None:
        raise ModelError(
            f"{files.file} is in the format of Paddle 3, which Paddle Serving does not read: export"
            " it with FLAGS_enable_pir_api=0 in the environment, which gives a .pdmodel file; or"
            " leave --engine out, and it is served by this teacher itself"
        )
    description = _described(python, files.file)
    return ServingModel(
        files.file,
        files.companion,
        str(description["paddle"]),
        _specs(description["inputs"]),
        _specs(description["outputs"]),
    )


def _described(python: Path, program: Path) -> dict[str, Any]:
    argv = (str(python), *PYTHON_OPTIONS, str(_DESCRIBE_PROGRAM), str(program.absolute()))
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


def _specs(tensors: Sequence[tuple[str, str, list[int]]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, dtype if dtype in ELEM_TYPES else datatype_named(dtype), tuple(shape))
        for name, dtype, shape in tensors
    )


#: Limit of a start, in seconds. A small model takes 5 to 16; GPUs take longer.
START_S: Final = 300.0
#: Seconds between probes during the start.
_PAUSE_S: Final = 0.2
#: Timeout of a probe, in seconds.
_PROBE_S: Final = 5.0
_SERVICE_PROGRAM: Final = Path(__file__).with_name("service.py")
#: Seconds after the server's own grace period until it is killed.
_MARGIN_S: Final = 5.0


class ServingProcess:
    """The server process, restarted until `stop`.

    Args:
        command: the command of the server.
        probe: raises an EdlError while the server does not answer; gets a timeout in seconds.
        stop: ends the wait in `start`; this object requests it when it gives the server up.

    Attributes:
        failure: why the server was given up: it ended before its first answer, or kept ending. None
            if it was not given up.
    """

    def __init__(
        self,
        command: supervise.Command,
        probe: Callable[[float], object],
        stop: Stop,
    ) -> None:
        self.failure: ProcessFailed | None = None
        self._restarter = supervise.Restarter(command, on_exit=self._ended)
        self._probe = probe
        self._stop = stop
        self._answered = False
        #: Deaths since the server last passed a test. The restarter's count cannot be used: it
        #: starts anew once a process has run for a while, even if the server was still loading.
        self._deaths = 0

    def start(self) -> bool:
        """Start the server and wait until it answers; return False if a stop came first.

        Raises:
            ProcessFailed: it ended, or did not answer within `START_S`.
        """
        self._restarter.start()
        deadline = time.monotonic() + START_S
        while not self._stop.wait(_PAUSE_S):
            try:
                self._probe(_PROBE_S)
            except EdlError as error:
                if time.monotonic() > deadline:
                    raise ProcessFailed(
                        f"Paddle Serving does not answer {START_S:g} s after its start: {error}"
                    ) from None
            else:
                self._answered = True
                return True
        if self.failure is not None:
            raise self.failure
        return False

    def test_passed(self) -> None:
        """Forget earlier deaths, because the server has labelled a test batch."""
        self._deaths = 0

    def stop(self, grace_s: float) -> None:
        """Ask the server to end, then kill the rest of its process group. Idempotent."""
        self._restarter.stop(grace_s + _MARGIN_S)

    def _ended(self, process: supervise.Process, code: int) -> None:
        self._deaths += 1
        if self.failure is not None or (self._answered and self._deaths < GIVE_UP_AFTER_CRASHES):
            return
        last = next((line for line in reversed(process.tail()) if line.strip()), "")
        self.failure = ProcessFailed(
            f"Paddle Serving {supervise.describe_exit(code)}; its last line: {last.strip()}"
        )
        self._stop.request()


_LOOPBACK: Final = "127.0.0.1"
#: Calls in addition to those of students: probes of this process and of managers.
_PROBE_CALLS: Final = 3


def serve(
    config: TeacherConfig,
    stop: Stop,
    *,
    python: Path,
    on_ready: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> None:
    """Serve until `stop` is requested, then drain. No process or file of the server remains.

    Args:
        config: the teacher; `check_settings` says which settings are supported.
        stop: requests the end; this function requests it if the server keeps ending.
        python: the interpreter of the serving environment.
        on_ready: called once with one line when students can be served.
        on_progress: called with progress and findings, in words.

    Raises:
        ModelError: Paddle Serving cannot read the model, or its answers are not acceptable.
        UsageError: there is no such interpreter, or a setting, a name or a host cannot be used.
        ProcessFailed: the server does not start, or keeps ending.
        EdlError: as in `register.sidecar.register`.
    """
    check_settings(config)
    host = config.server.host
    _check_host(host, config.insecure)
    on_progress(f"reading {config.predictor.model} by {python}")
    model = open_model(config.predictor.model, python)
    port = config.server.port or free_port(host)
    registration = _registration(config, model, port)
    _check_names(registration)
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="edl-serving-")))
        bound = join_address(host, port)
        local_address = join_address(_LOOPBACK, port) if is_wildcard(host) else bound
        client = open_client(PADDLE_SERVING, local_address, config.service)
        leaving.callback(client.close)
        server = ServingProcess(
            _server_command(config, model, python, folder, port),
            partial(_check_pipeline, client),
            stop,
        )
        leaving.callback(server.stop, config.grace_s)
        on_progress(f"starting Paddle Serving on {bound}")
        if server.start():
            on_progress("testing its answers")
            _test(registration, client)
            ready = f"teacher ready: {registration.member} {config.service} on {bound}"
            register(
                registration,
                stop,
                on_ready=_registration_reporter(server, on_ready, ready, on_progress),
                on_progress=on_progress,
            )
    if server.failure is not None:
        raise server.failure


def _server_command(
    config: TeacherConfig, model: ServingModel, python: Path, folder: Path, port: int
) -> supervise.Command:
    """Write the configuration into `folder`; return the command of the server."""
    calls = config.server.slots + _PROBE_CALLS
    (predictor,) = config.predictors
    file = write_configuration(
        folder, model, port=port, calls=calls, device=predictor.device, threads=predictor.threads
    )
    argv = (config.service, config.server.host, calls, predictor.micro_batch or 1, config.grace_s)
    return supervise.Command(
        "paddle-serving",
        (str(python), *PYTHON_OPTIONS, str(_SERVICE_PROGRAM), str(file), *map(str, argv)),
        # Folders for upstream's logs and its list of processes.
        env={"SERVING_HOME": str(folder), "SERVING_LOG_PATH": str(folder)},
        cwd=folder,
        guard=True,
    )


def _registration(config: TeacherConfig, model: ServingModel, port: int) -> RegisterConfig:
    """Return the settings with which the sidecar registers the server."""
    canary = config.predictor.canary
    endpoint = advertised(config.server.host, config.advertise, port)
    return RegisterConfig(
        service=config.service,
        endpoint=endpoint,
        model=config.service,
        content_id=hash_of_files([model.program, model.weights]),
        coordinator=config.coordinator or "",
        protocol=PADDLE_SERVING,
        canary=Path(canary) if canary is not None else None,
        inputs=with_declared_shapes(model.inputs, config.predictor.inputs),
        slots=config.server.slots,
        device=f"{config.device_label} (Paddle Serving, Paddle {model.paddle})",
        teacher_id=config.teacher_id or "",
        ttl_s=config.ttl_s,
        grace_s=config.grace_s,
        host=config.server.host,
        advertise=split_address(endpoint)[0],
    )


def _check_names(registration: RegisterConfig) -> None:
    """Check names and the registry before the server starts; raises as `register`."""
    check_service(registration.service)
    check_member("teachers", registration.member)
    with closing(connect(registration.coordinator)) as registry:
        registry.time_ms()


def _check_pipeline(client: TeacherClient, timeout_s: float) -> None:
    """Raise an EdlError until the model is loaded; a loaded model refuses an empty batch."""
    with suppress(RequestRefused):
        client.infer(LabelRequest({}), timeout_s)


def _test(registration: RegisterConfig, client: TeacherClient) -> None:
    """Raise ModelError at once if the model is not acceptable, because waiting would not help."""
    canary = None if registration.canary is None else Canary.load(registration.canary)
    if canary is not None:
        canary.check_content(registration.content_id)
    ServerTest(client, registration, canary).run()


def _registration_reporter(
    server: ServingProcess,
    on_ready: Callable[[str], None],
    ready: str,
    on_progress: Callable[[str], None],
) -> Callable[[str], None]:
    """Return a function to be called at each registration of the server.

    The function reports the registration as progress, and `ready` at the first registration. It
    also forgets earlier deaths of the server, because a registration follows a passed test.
    """
    reported = False

    def report(text: str) -> None:
        nonlocal reported
        server.test_passed()
        on_progress(text)
        if not reported:
            on_ready(ready)
        reported = True

    return report


def _check_host(host: str, insecure: bool) -> None:
    """Raise UsageError if other machines reach the server and that was not allowed."""
    if not insecure and not is_loopback(host):
        raise UsageError(
            f"Paddle Serving on {host} can be reached from other machines, and it knows neither TLS"
            " nor tokens: listen on 127.0.0.1, or add --insecure if the network is trusted"
        )
