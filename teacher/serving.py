"""One teacher, from its start to its leave: puts the parts of this folder together."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

from ..coordinator.config import is_wildcard, join_address
from ..coordinator.heartbeat import Heartbeat
from ..coordinator.keys import check_member, check_service
from ..coordinator.registry import Registry, connect
from ..errors import EdlError
from ..lifecycle import Stop
from .backends.open import check_model
from .config import TeacherConfig
from .drain import drain
from .predictor_client import PredictorClient
from .registration import new_registration
from .server import Server
from .servicer import Identity, Servicer
from .traffic import Traffic

#: How soon a wish to stop is seen while the model loads.
_POLL_S = 0.1


def serve(
    config: TeacherConfig,
    stop: Stop,
    *,
    on_ready: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> None:
    """Serve until `stop` is requested, then drain.

    What cannot work is found out in the order of its cost: the model's path, the names, the
    registry, the port, and only then the model itself.

    Args:
        config: the teacher.
        stop: the wish to end.
        on_ready: told once, in one line, when students can be served.
        on_progress: told in words what is being done until then.

    Raises:
        ModelError: the model cannot be served.
        UsageError: the service or the teacher's id cannot be registered, or the host is not ours.
        RegistryUnavailable: Redis does not answer.
        AddressInUse: another process listens on the port.
        LeaseSuperseded: a newer teacher has taken this one's id.
        ProcessFailed: the predictor process keeps dying.
    """
    check_model(config.predictor.model)
    with ExitStack() as leaving:
        registry = _registry(config, leaving)
        teacher = _Teacher(config, stop, registry, on_progress)
        leaving.callback(teacher.close)
        if teacher.load():
            on_ready(teacher.enter())
            stop.wait()
            teacher.leave()


class _Teacher:
    def __init__(
        self,
        config: TeacherConfig,
        stop: Stop,
        registry: Registry | None,
        on_progress: Callable[[str], None],
    ) -> None:
        self._config = config
        self._stop = stop
        self._registry = registry
        self._on_progress = on_progress
        self._failure: EdlError | None = None
        self._heartbeat: Heartbeat | None = None
        self._traffic = Traffic()
        self._identity = Identity(config.service, "", new_incarnation(registry))
        self._predictor = PredictorClient(
            config.predictor,
            config.server.slots,
            on_progress=on_progress,
            on_change=self._predictor_changed,
        )
        servicer = Servicer(self._identity, self._predictor, self._traffic)
        self._server = Server(config.server, servicer)
        self._address = join_address(_advertised(config), self._server.port)
        self._identity.teacher_id = config.teacher_id or self._address

    def load(self) -> bool:
        """Answer probes, load the model and warm it up; False when a stop came first."""
        self._server.start()
        self._predictor.start()
        while not self._predictor.settled(_POLL_S):
            if self._stop.requested:
                return False
        return not self._stop.requested

    def enter(self) -> str:
        """Register with the mesh; the line that says so."""
        loaded = self._predictor.require_loaded()
        speed = f"{loaded.t_t_s * 1000:.3g} ms/sample on {self._config.predictor.device}"
        if self._registry is None:
            self._on_progress(f"{speed}; no coordinator was named, serving alone")
        else:
            self._on_progress(f"{speed}, registering with {self._registry.url}")
            heartbeat = new_registration(
                self._registry,
                self._config,
                self._identity,
                self._address,
                self._predictor,
                self._traffic,
                self._fail,
            )
            heartbeat.start()
            self._heartbeat = heartbeat
        bound = join_address(self._config.server.host, self._server.port)
        return f"teacher ready: {self._identity.teacher_id} {self._config.service} on {bound}"

    def leave(self) -> None:
        """Drain, if there is anything to serve by; raises what made it leave if no wish did."""
        if self._predictor.failure is None:
            self._on_progress("draining")
            grace_s = self._config.grace_s
            drain(self._identity, self._traffic, self._server, self._heartbeat, grace_s)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Let go of everything that is left, at once."""
        if self._heartbeat is not None:
            self._heartbeat.stop(leave=True)
        self._predictor.stop()
        self._server.stop(0)

    def _predictor_changed(self) -> None:
        if self._predictor.failure is not None:
            self._fail(self._predictor.failure)
        elif self._heartbeat is not None:
            self._heartbeat.update()

    def _fail(self, error: EdlError) -> None:
        self._failure = self._failure or error
        self._stop.request()


def _advertised(config: TeacherConfig) -> str:
    host = config.server.host
    return config.advertise or (socket.gethostname() if is_wildcard(host) else host)


def _registry(config: TeacherConfig, leaving: ExitStack) -> Registry | None:
    """Where the teacher will register; names that cannot be registered show at once."""
    if config.coordinator is None:
        return None
    check_service(config.service)
    check_member("teachers", config.teacher_id or _advertised(config))
    registry = connect(config.coordinator)
    leaving.callback(registry.close)
    return registry


def new_incarnation(registry: Registry | None) -> int:
    """Greater than those of earlier starts, by the one clock of all who may start under an id."""
    return time.time_ns() // 1_000_000 if registry is None else registry.time_ms()
