"""A model served by a pipeline server of ours and registered as a teacher, for the command line.

The server is a child process: started, awaited, started again, ended whole.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

from ... import supervise
from ...coordinator.config import is_wildcard, join_address
from ...coordinator.embedded import free_port
from ...coordinator.registry import connect
from ...coordinator.registry.keys import check_member, check_service
from ...errors import EdlError, ProcessFailed, RequestRefused, UsageError
from ...lifecycle import Stop
from ...proto.clients import Client, Request, open_client
from ...proto.protocols import PADDLE_SERVING
from ...proto.security import is_loopback
from ..backends import content
from ..backends.declared import narrowed
from ..config import TeacherConfig
from ..pool import CRASHES_AT_MOST
from ..register.config import RegisterConfig
from ..register.sidecar import register
from ..register.trial import Trial
from ..registration import advertised, split
from ..self_test import Canary
from . import configuration
from .configuration import PYTHON_OPTIONS, Model, check, open_model

#: A start takes 5 to 16 s for a small model, and one for GPUs compiles.
START_S: Final = 300.0
#: Between two looks whether it answers yet.
_PAUSE_S: Final = 0.2
_PROBE_S: Final = 5.0
_PROGRAM: Final = Path(__file__).with_name("service.py")
#: Beyond the grace that the server itself leaves in, until it is killed.
_MARGIN_S: Final = 5.0


class ServerProcess:
    """The server, kept going until `stop`.

    Args:
        command: what to run.
        probe: raises an EdlError while the server does not answer; told for how long to wait.
        on_failure: told, once, in a thread of this, why it was given up: it ended before it had
            answered once, or keeps ending.
    """

    def __init__(
        self,
        command: supervise.Command,
        probe: Callable[[float], object],
        on_failure: Callable[[ProcessFailed], None],
    ) -> None:
        self._keeper = supervise.Keeper(command, on_exit=self._ended)
        self._probe = probe
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._answered = False
        self._failure: ProcessFailed | None = None

    def start(self, stop: Stop) -> bool:
        """Start it and wait until it answers; False when a stop came first.

        Raises:
            ProcessFailed: it ended, or did not answer within `START_S`.
        """
        self._keeper.start()
        deadline = time.monotonic() + START_S
        while not stop.wait(_PAUSE_S):
            if self._failure is not None:
                raise self._failure
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
        return False

    def stop(self, grace_s: float) -> None:
        """Ask it to leave, and end what is left of its process group. Idempotent."""
        self._keeper.stop(grace_s + _MARGIN_S)

    def _ended(self, process: supervise.Process, code: int) -> None:
        with self._lock:
            if self._failure is not None or (
                self._answered and self._keeper.failures < CRASHES_AT_MOST
            ):
                return
            last = next((line for line in reversed(process.tail()) if line.strip()), "")
            self._failure = ProcessFailed(
                f"Paddle Serving {supervise.describe_exit(code)}; its last line: {last.strip()}"
            )
        self._on_failure(self._failure)


_LOOPBACK: Final = "127.0.0.1"
#: Calls beyond those of students: of who looks after the server, ours and the managers.
_LOOKS: Final = 3


def serve(
    config: TeacherConfig,
    stop: Stop,
    *,
    python: Path,
    on_ready: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> None:
    """Serve until `stop` is requested, then drain; nothing of the server is left behind.

    Args:
        config: the teacher; `settings.check` says what of it counts here.
        stop: the wish to end; made by this too, when the server keeps dying.
        python: the interpreter of the serving environment.
        on_ready: told once, in one line, when students can be served.
        on_progress: told in words what is being done until then.

    Raises:
        ModelError: Paddle Serving cannot read the model, or what it answers is not what a teacher
            may.
        UsageError: there is no such interpreter, a setting means nothing here, or a name or a host
            cannot be used.
        ProcessFailed: the server does not start, or keeps dying.
        EdlError: as `register` of the process that vouches for a foreign server.
    """
    check(config)
    host = config.server.host
    _check_host(host, config.insecure)
    on_progress(f"reading {config.predictor.model} by {python}")
    model = open_model(config.predictor.model, python)
    port = config.server.port or free_port(host)
    registration = _registration(config, model, port)
    _check_names(registration)
    failures: list[EdlError] = []

    def give_up(error: ProcessFailed) -> None:
        failures.append(error)
        stop.request()

    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="edl-serving-")))
        bound = join_address(host, port)
        near = join_address(_LOOPBACK, port) if is_wildcard(host) else bound
        client = open_client(PADDLE_SERVING, near, config.service)
        leaving.callback(client.close)
        server = ServerProcess(
            _configured(config, model, python, folder, port),
            partial(_check_pipeline, client),
            give_up,
        )
        leaving.callback(server.stop, config.grace_s)
        on_progress(f"starting Paddle Serving on {bound}")
        if server.start(stop):
            on_progress("testing what it answers")
            _test(registration, client)
            ready = f"teacher ready: {registration.member} {config.service} on {bound}"
            register(
                registration,
                stop,
                on_ready=_first(on_ready, ready, on_progress),
                on_progress=on_progress,
            )
    if failures:
        raise failures[0]


def _configured(
    config: TeacherConfig, model: Model, python: Path, folder: Path, port: int
) -> supervise.Command:
    """What starts the server in a process group of its own, with all that it reads in `folder`."""
    calls = config.server.slots + _LOOKS
    (predictor,) = config.predictors
    file = configuration.write(
        folder, model, port=port, calls=calls, device=predictor.device, threads=predictor.threads
    )
    said = (config.service, config.server.host, calls, predictor.micro_batch or 1, config.grace_s)
    return supervise.Command(
        "paddle-serving",
        (str(python), *PYTHON_OPTIONS, str(_PROGRAM), str(file), *map(str, said)),
        # Upstream keeps its logs, and the list of its processes, where these say.
        env={"SERVING_HOME": str(folder), "SERVING_LOG_PATH": str(folder)},
        cwd=folder,
        guard=True,
    )


def _registration(config: TeacherConfig, model: Model, port: int) -> RegisterConfig:
    canary = config.predictor.canary
    endpoint = advertised(config.server.host, config.advertise, port)
    return RegisterConfig(
        service=config.service,
        endpoint=endpoint,
        model=config.service,
        content_id=content.of_files([model.program, model.weights]),
        coordinator=config.coordinator or "",
        protocol=PADDLE_SERVING,
        canary=Path(canary) if canary is not None else None,
        inputs=narrowed(model.inputs, config.predictor.inputs),
        slots=config.server.slots,
        device=f"{config.device_label} (Paddle Serving, Paddle {model.paddle})",
        teacher_id=config.teacher_id or "",
        ttl_s=config.ttl_s,
        grace_s=config.grace_s,
        host=config.server.host,
        advertise=split(endpoint)[0],
    )


def _check_names(registration: RegisterConfig) -> None:
    """Find out what costs nothing before the server is started; raises as `register`."""
    check_service(registration.service)
    check_member("teachers", registration.member)
    with closing(connect(registration.coordinator)) as registry:
        registry.time_ms()


def _check_pipeline(client: Client, timeout_s: float) -> None:
    """Raise an EdlError while the model is not loaded: a batch of nothing waits for that."""
    with suppress(RequestRefused):
        client.infer(Request({}), timeout_s)


def _test(registration: RegisterConfig, client: Client) -> None:
    """Raise ModelError now where the model is not one to serve: no time will mend that."""
    canary = None if registration.canary is None else Canary.load(registration.canary)
    if canary is not None:
        canary.check_content(registration.content_id)
    Trial(client, registration, canary).first()


def _first(
    on_ready: Callable[[str], None], ready: str, on_progress: Callable[[str], None]
) -> Callable[[str], None]:
    """Tells `ready` when it is registered for the first time; later times are progress."""
    told = False

    def tell(words: str) -> None:
        nonlocal told
        on_progress(words)
        if not told:
            on_ready(ready)
        told = True

    return tell


def _check_host(host: str, insecure: bool) -> None:
    """Raise UsageError where others may reach the server and nobody has said that they may."""
    if not insecure and not is_loopback(host):
        raise UsageError(
            f"Paddle Serving on {host} can be reached from other machines, and it knows neither TLS"
            " nor tokens: listen on 127.0.0.1, or say --insecure if the network is trusted"
        )
