"""Runs one teacher from start to end, and wires the parts of this folder together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from ..coordinator.beat_relay import RelayedRegistry
from ..coordinator.heartbeat import Heartbeat
from ..coordinator.registry import Registry, connect, retry_timeouts
from ..coordinator.registry.schema import check_member, check_service
from ..proto.security.access_control import AccessControl
from ..proto.security.certificates import export_expiry
from ..runtime.addresses import join_address
from ..runtime.errors import EdlError, ProcessFailed, StartCancelled
from ..runtime.lifecycle import Stop
from ..runtime.logs import add_log_fields
from ..runtime.metrics import MetricsServer
from .backends.selection import check_model
from .batcher import Batcher
from .config import TeacherConfig, check_cores
from .identity import (
    InstanceIdentity,
    TeacherView,
    advertised,
    new_incarnation,
)
from .pool import PredictorPool
from .recorder import Recorder
from .servers.server import TeacherServer
from .servers.servicer import InferenceServicer
from .servers.shared_regions import SharedMemoryRegions

log = logging.getLogger(__name__)

#: Seconds without a request after which all students should have noticed the drain.
QUIET_S = 0.5
#: Seconds between checks for a stop while the model loads.
_POLL_S = 0.1


def serve(
    config: TeacherConfig,
    stop: Stop,
    *,
    on_ready: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> None:
    """Serve until `stop` is requested, then drain.

    The model is loaded last, after cheap checks of its path, the names, the registry and the port.

    Args:
        config: the teacher.
        stop: requests the end.
        on_ready: called once with one line when students can be served.
        on_progress: called with progress, in words.

    Raises:
        ModelError: the model cannot be served.
        UsageError: there is no such backend or preprocessing, the service or teacher's id cannot be
            registered, the host or a core is not of this machine, or a file of credentials cannot
            be used.
        RedisUnavailable: Redis does not answer.
        AccessError: Redis refuses this teacher.
        AddressInUse: another process listens on the port.
        LeaseSuperseded: a newer teacher has taken this one's id.
        ProcessFailed: a predictor died before it had loaded the model for the first time, all
            predictors were given up, or the gRPC server ended by itself.
    """
    predictor = config.predictor
    check_model(predictor.model, predictor.backend, predictor.preprocess)
    check_cores(config.devices)
    with ExitStack() as leaving:
        registry = _registry(config, leaving)
        leaving.enter_context(suppress(StartCancelled))
        teacher = TeacherLifecycle(config, stop, registry, on_progress)
        leaving.callback(teacher.close)
        if teacher.load():
            on_ready(teacher.enter())
            stop.wait()
            teacher.leave()


def _registry(config: TeacherConfig, leaving: ExitStack) -> Registry | None:
    """Check the names, and connect to the registry; return None without a coordinator."""
    if config.coordinator is None:
        return None
    check_service(config.service)
    address = advertised(config.server.host, config.advertise, 1)  # the port does not matter here
    check_member("teachers", config.teacher_id or address)
    registry = connect(config.coordinator)
    if config.beat_relay is not None:
        registry = RelayedRegistry(registry.store, config.beat_relay)
    leaving.callback(registry.close)
    return registry


def drain(
    identity: InstanceIdentity,
    recorder: Recorder,
    server: TeacherServer,
    heartbeat: Heartbeat | None,
    grace_s: float,
) -> None:
    """Leave within `grace_s` seconds, in an order that lets requests in flight finish.

    First the registry and each answer with labels get the state "draining", so students send
    elsewhere. Requests are served until `QUIET_S` seconds pass without one, or `grace_s` are over.
    Then the lease ends, and finally the sockets close.
    """
    deadline = time.monotonic() + grace_s
    identity.draining = True
    if heartbeat is not None:
        heartbeat.update()
    if not recorder.wait_quiet(QUIET_S, grace_s):
        log.warning(
            "the grace period of %g s ended before %g s passed without a request: leaving anyway",
            grace_s,
            QUIET_S,
        )
    if heartbeat is not None:
        heartbeat.stop(leave=True)
    server.stop(max(0.0, deadline - time.monotonic()))


class TeacherLifecycle:
    """One teacher: call `load`, `enter` and `leave`, and `close` in any case.

    Args:
        config: the teacher.
        stop: requests the end of the teacher; this object requests it after a failure or an order
            to drain.
        registry: of the mesh; None to serve without one.
        on_progress: called with progress, in words.

    Raises:
        EdlError: as in `serve`; StartCancelled: a stop came first.
    """

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
        self._drain_cause = ""
        self._heartbeat: Heartbeat | None = None
        self._metrics_server: MetricsServer | None = None
        self._recorder = Recorder()
        export_expiry(self._recorder.metric_registry, config.server.security)
        self._identity = InstanceIdentity(config.service, "", new_incarnation(registry, stop))
        self._pool = PredictorPool(
            config.predictors,
            merge_samples=config.batching.max_samples,
            on_progress=on_progress,
            on_change=self._predictors_changed,
        )
        with ExitStack() as undo:
            undo.callback(self._pool.stop)
            self._batcher = Batcher(
                self._pool, config.server.slots, config.batching, self._recorder
            )
            access = AccessControl(config.server.security, self._recorder.count_refusal)
            servicer = InferenceServicer(
                self._identity,
                self._pool,
                self._batcher,
                self._recorder,
                SharedMemoryRegions(
                    config.server.max_message_bytes, enabled=config.server.allow_system_shm
                ),
            )
            self._server = TeacherServer(
                config.server, servicer, access, self._recorder, self._server_ended
            )
            undo.callback(self._server.stop, 0)
            self._address = advertised(config.server.host, config.advertise, self._server.port)
            self._identity.teacher_id = config.teacher_id or self._address
            add_log_fields(service=config.service, teacher=self._identity.teacher_id)
            self._recorder.export_view(self._view)
            self._serve_metrics(access)
            undo.pop_all()

    def load(self) -> bool:
        """Answer probes, load the model and warm it up; returns False if a stop came first.

        Raises:
            EdlError: the model cannot be loaded, or the server has ended.
        """
        self._server.start()
        self._batcher.start()
        self._pool.start()
        while not self._pool.wait_loaded(_POLL_S) and not self._stop.requested:
            pass
        self._raise_failure()  # a failure may have requested the stop
        return not self._stop.requested

    def enter(self) -> str:
        """Register in the mesh; return the line that says that the teacher is ready."""
        loaded = self._pool.require_loaded()
        self._recorder.create_output_series(tensor.name for tensor in loaded.spec.outputs)
        speed = f"{loaded.t_t_s * 1000:.3g} ms/sample on {self._config.device_label}"
        if self._registry is None:
            self._on_progress(f"{speed}; no coordinator was named, serving alone")
        else:
            self._on_progress(f"{speed}, registering with {self._registry.url}")
            heartbeat = Heartbeat(
                self._registry,
                "teachers",
                self._identity.service,
                self._identity.teacher_id,
                lambda: self._view().facts(self._address, self._config.device_label),
                self._config.ttl_s,
                on_superseded=self._fail,
                on_drain=self._asked_to_drain,
            )
            try:
                retry_timeouts(heartbeat.start, self._stop)
            except StartCancelled:
                self._raise_failure()
                raise
            self._heartbeat = heartbeat
        if self._server.url is not None:
            self._on_progress(f"HTTP on {self._server.url}/v2")
        bound = join_address(self._config.server.host, self._server.port)
        return f"teacher ready: {self._identity.teacher_id} {self._config.service} on {bound}"

    def leave(self) -> None:
        """Drain if the model can still serve; raises the error that ended the teacher, if any."""
        if self._pool.failure is None:
            self._on_progress(f"draining{self._drain_cause}")
            grace_s = self._config.grace_s
            drain(self._identity, self._recorder, self._server, self._heartbeat, grace_s)
        self._raise_failure()

    def close(self) -> None:
        """Release everything that is left, at once."""
        if self._heartbeat is not None:
            self._heartbeat.stop(leave=True)
        self._batcher.stop()
        self._pool.stop()
        self._server.stop(0)
        if self._metrics_server is not None:
            self._metrics_server.close()

    def _serve_metrics(self, access: AccessControl) -> None:
        listen, security = self._config.metrics_listen, self._config.server.security
        if listen is None:
            return
        with_tokens = security is not None and security.tokens_file is not None
        self._metrics_server = MetricsServer(
            listen,
            self._recorder.metric_registry,
            insecure=self._config.insecure,
            authorize=(lambda token: access.require(access.bearer(token), "viewer"))
            if with_tokens
            else None,
            ready=lambda: self._pool.ready,
        )
        self._on_progress(f"metrics on http://{self._metrics_server.address}/metrics")

    def _view(self) -> TeacherView:
        heartbeat = self._heartbeat
        return TeacherView(
            identity=self._identity,
            model=self._pool.ready_report,
            slots=self._config.server.slots,
            device_count=self._pool.device_count,
            in_flight=self._recorder.in_flight,
            t_t_s=self._pool.t_t_s,
            accepting=self._pool.ready,
            restarts=self._pool.restarts,
            micro_batch_reductions=sum(p.micro_batch_reductions for p in self._pool.predictors),
            registry_answers=heartbeat.answering if heartbeat else None,
            samples_per_second=self._recorder.samples_per_second,
        )

    def _asked_to_drain(self) -> None:
        self._drain_cause = ": asked by an administrator"
        self._stop.request()

    def _predictors_changed(self) -> None:
        self._batcher.devices_changed()
        if (failure := self._pool.failure) is not None:
            self._fail(failure)
        elif self._heartbeat is not None:
            self._heartbeat.update()

    def _server_ended(self) -> None:
        self._fail(ProcessFailed("the gRPC server ended by itself: start another teacher"))

    def _raise_failure(self) -> None:
        """Raise the error that made this teacher stop, if there is one."""
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: EdlError) -> None:
        self._failure = self._failure or error
        self._stop.request()
