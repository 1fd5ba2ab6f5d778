"""Starts and stops a coordinator: Redis, manager, gRPC, metrics, page, lease."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from .. import __version__
from ..proto.security.access_control import AccessControl
from ..proto.security.certificates import export_expiry
from ..proto.security.credentials import ClientSecurity, ServerSecurity, check_exposure
from ..runtime.addresses import (
    advertised_host,
    check_free,
    is_loopback,
    is_wildcard,
    join_address,
    split_listen,
)
from ..runtime.errors import (
    AccessError,
    ProcessFailed,
    StartCancelled,
    UnavailableError,
    UsageError,
)
from ..runtime.extras import install_command
from ..runtime.lifecycle import Stop
from ..runtime.metrics import MetricsServer
from ..scheduler.autoscale import AutoscaleConfig
from .config import ManagerConfig
from .embedded import keep_embedded, on_free_port
from .heartbeat import Heartbeat
from .machines import MachineBoard, open_machines
from .machines.placing import Placer
from .manager.manager import Manager
from .manager.prober import GrpcProber
from .metrics import CoordinatorMetrics
from .registry import Registry, connect, retry_timeouts
from .service import CoordinatorServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Settings of a coordinator.

    Attributes:
        redis: URL of a running Redis; None: start one.
        redis_port: port of the started Redis; 0: any free one; None: 6379 if free, else any.
        host: address to listen on, for gRPC and for the started Redis.
        port: gRPC port; 0: any free one.
        advertise: host name or address of this machine for others; None: `host`, or this machine's
            name if `host` is a wildcard.
        metrics_listen: "PORT" or "HOST:PORT" of the Prometheus metrics; None: no metrics.
        http: "PORT" or "HOST:PORT" of the live page; None: no page.
        insecure: even without authentication, allow addresses that other machines can reach, as
            `host`, `metrics_listen` and `http`.
        security: certificates and tokens of the manager; None: neither.
        probing: how the manager calls teachers that it probes; None: neither TLS nor token.
        manager: settings of the manager.
    """

    redis: str | None = None
    redis_port: int | None = None
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    metrics_listen: str | None = None
    http: str | None = None
    insecure: bool = False
    security: ServerSecurity | None = None
    probing: ClientSecurity | None = None
    manager: ManagerConfig = field(default_factory=ManagerConfig)

    def __post_init__(self) -> None:
        check_exposure(self.host, self.security, self.insecure, "the service manager")
        if self.redis is not None and self.redis_port is not None:
            raise UsageError(
                "--redis-port belongs to a Redis that is started here, and --redis names a running "
                "one: give only one of them"
            )
        if self.redis is not None or is_loopback(self.host):
            return
        if self.security is not None and self.security != ServerSecurity():
            raise UsageError(
                "the started Redis has neither TLS nor passwords: everybody who can reach "
                f"{self.host} has access despite certificates and tokens. Name a Redis with both "
                "in --redis rediss://... (docs/how-to/security.md), or omit the credentials and "
                "give --insecure if the network is trusted"
            )
        if not self.insecure:
            raise UsageError(
                f"the started Redis would be open to everybody who can reach {self.host}: name one "
                "with passwords in --redis URL (docs/how-to/security.md), or give --insecure if "
                "the network is trusted"
            )

    @property
    def requires_tokens(self) -> bool:
        """Whether there are tokens; over HTTP, they are the only credentials."""
        return self.security is not None and self.security.tokens_file is not None

    @property
    def reachable_host(self) -> str:
        """Host name or address at which other machines reach this one."""
        if self.advertise:
            return advertised_host(self.advertise)
        return socket.gethostname() if is_wildcard(self.host) else self.host


def serve(config: ServeConfig, stop: Stop, announce: Callable[[str, str], None]) -> None:
    """Run a coordinator until `stop` is requested.

    Args:
        config: its settings.
        stop: ends the coordinator within a few seconds.
        announce: called once with the URL of Redis and the manager's address when all is ready.

    Raises:
        RedisUnavailable: the named Redis does not answer.
        AccessError: Redis refuses the user or password of its URL.
        AddressInUse: one of the ports is taken.
        UsageError: no Redis is named, and there is no program to start one; `host` is no address of
            this machine; a credential cannot be used; a package for the page is not installed; or
            other machines could read the page or the metrics without a token.
        ProcessFailed: a server did not start, or the gRPC server ended by itself.
    """
    check_free(config.host, config.port)
    if not is_loopback(config.host) and not (
        config.security is not None and config.security.authenticates
    ):
        log.warning("listening on %s without credentials: every caller is served", config.host)
    with suppress(StartCancelled):
        _serve(config, stop, announce)


def _serve(config: ServeConfig, stop: Stop, announce: Callable[[str, str], None]) -> None:
    with ExitStack() as undo:
        url = config.redis or _start_redis(config, undo)
        registry = connect(url)
        undo.callback(registry.close)
        started_ms = retry_timeouts(registry.time_ms, stop)
        metrics = CoordinatorMetrics()
        export_expiry(metrics.registry, config.security)
        gate = AccessControl(config.security, metrics.refused)
        ended: list[str] = []

        def server_ended() -> None:
            ended.append("the manager's gRPC server ended by itself")
            stop.request()

        machines = open_machines(url)
        undo.callback(machines.close)
        prober = GrpcProber(config.probing)
        undo.callback(prober.stop)

        def listen(port: int) -> tuple[Manager, str]:
            """Start a manager and its server on a port; return the manager and its address."""
            address = join_address(config.reachable_host, port)
            manager = Manager(
                registry,
                config.manager,
                address=address,
                prober=prober,
                scaling_of=DeploymentSettings(machines, config.manager.autoscale).for_service,
            )
            server = CoordinatorServer(
                manager,
                registry,
                security=config.security,
                gate=gate,
                on_refused=metrics.refused,
                on_ended=server_ended,
                machines=machines,
            )
            server.start(config.host, port)
            metrics.export_view(manager.view)
            manager.start()
            undo.callback(manager.stop)
            undo.callback(server.stop)
            return manager, address

        manager, address = on_free_port(listen, config.port, config.host)
        autoscale, ttl_s = config.manager.autoscale, config.manager.ttl_s
        placer = Placer(machines, registry, autoscale, address=address, ttl_s=ttl_s)
        placer.start()
        undo.callback(placer.stop)
        if config.metrics_listen is not None:
            _serve_metrics(config.metrics_listen, config, metrics, registry, manager, gate, undo)
        if config.http is not None:
            _serve_page(config.http, config, manager, registry, gate, undo)
        facts = {
            "incarnation": str(started_ms),
            "host": socket.gethostname(),
            "version": __version__,
        }
        ttl_s = config.manager.ttl_s
        lease = Heartbeat(registry, "managers", "", address, lambda: facts, ttl_s)
        retry_timeouts(lease.start, stop)
        undo.callback(lease.stop)
        announce(registry.url, address)
        stop.wait()
    if ended:
        raise ProcessFailed(ended[0])


def _serve_metrics(
    listen: str,
    config: ServeConfig,
    metrics: CoordinatorMetrics,
    registry: Registry,
    manager: Manager,
    gate: AccessControl,
    undo: ExitStack,
) -> None:
    def authorize(token: str) -> None:
        gate.require(gate.bearer(token), "viewer")

    # No token is needed on loopback, so that a local Prometheus works without settings.
    needs_token = config.requires_tokens and not is_loopback(split_listen(listen)[0])
    server = MetricsServer(
        listen,
        metrics.registry,
        insecure=config.insecure,
        authorize=authorize if needs_token else None,
        json_route=partial(autoscale_page, registry),
        ready=lambda: manager.view().redis_available,
    )
    undo.callback(server.close)
    log.info("metrics at http://%s/metrics", server.address)


def _serve_page(
    listen: str,
    config: ServeConfig,
    manager: Manager,
    registry: Registry,
    gate: AccessControl,
    undo: ExitStack,
) -> None:
    try:
        from .web.feed import MeshSource
        from .web.server import WebServer
    except ImportError as error:
        raise UsageError(
            f"the page needs {error.name}, which is not installed: {install_command('dashboard')}"
        ) from None
    server = WebServer(
        MeshSource(manager, registry),
        listen,
        gate if config.requires_tokens else None,
        config.insecure,
        tls=None if config.security is None else config.security.tls,
    )
    undo.callback(server.stop)
    log.info("the page of the mesh is at %s", server.start())


def _start_redis(config: ServeConfig, undo: ExitStack) -> str:
    restarter, url = keep_embedded(config.redis_port, config.host)
    undo.callback(restarter.stop)
    if is_loopback(config.host):
        return url
    return f"redis://{join_address(config.reachable_host, int(url.rpartition(':')[2]))}"


#: Seconds for which deployments are cached.
_DEPLOYMENTS_CACHED_S: Final = 2.0
#: Start of the HTTP path of the desired number; the name of a service follows.
_AUTOSCALE_PATH: Final = "/autoscale/"


class DeploymentSettings:
    """Autoscaling settings of each service: those of its deployment, else the defaults.

    Only for one thread.

    Args:
        board: machine board with the deployments.
        defaults: settings of services without a deployment, and of fields that deployments lack.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        board: MachineBoard,
        defaults: AutoscaleConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._defaults = defaults
        self._clock = clock
        self._read_s = float("-inf")
        self._deployed: dict[str, AutoscaleConfig] = {}

    def for_service(self, service: str) -> AutoscaleConfig:
        """Return the settings of a service; the last known ones while the board does not answer."""
        now = self._clock()
        if now - self._read_s >= _DEPLOYMENTS_CACHED_S:
            self._read_s = now
            try:
                self._deployed = {
                    deployment.service: deployment.autoscale_config(self._defaults)
                    for deployment in self._board.deployments()
                    if not deployment.withdrawn
                }
            except (UnavailableError, AccessError) as error:
                log.debug("autoscaling keeps its settings: %s", error)
        return self._deployed.get(service, self._defaults)


def autoscale_page(registry: Registry, path: str) -> bytes | None:
    """Return the reply to `GET /autoscale/SERVICE` as JSON; None: `path` is not of this form.

    `{"service", "desired_teachers", "reason", "since_ms", "at_ms"}`, times by the registry's clock.

    Raises:
        UsageError: the name is invalid, or no number is known, perhaps because there is no such
            service. A reply such as 0 would make an autoscaler end all teachers.
        UnavailableError, AccessError: the registry does not answer or refuses.
    """
    if not path.startswith(_AUTOSCALE_PATH):
        return None
    service = path.removeprefix(_AUTOSCALE_PATH)
    desired = registry.desired(service)
    if desired is None:
        raise UsageError(
            f"no manager has recently written how many teachers {service!r:.140} should have"
        )
    reply = {
        "service": service,
        "desired_teachers": desired.count,
        "reason": desired.reason,
        "since_ms": desired.since_ms,
        "at_ms": desired.at_ms,
    }
    return json.dumps(reply).encode()
