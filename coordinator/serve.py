"""A coordinator from its start to its orderly end: Redis, manager, gRPC, its own lease."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from ..lifecycle import Stop
from .config import (
    ManagerConfig,
    check_exposure,
    check_free,
    is_loopback,
    is_wildcard,
    join_address,
)
from .discovery import STARTED_MS
from .embedded import keep_embedded
from .heartbeat import Heartbeat
from .manager import Manager
from .registry import Registry, connect
from .service import CoordinatorServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Where a coordinator listens and what it stands on.

    Attributes:
        redis: URL of a running Redis; None: start one.
        redis_port: port of the one to start; 0: any free; None: 6379 if free, else any.
        host: address to listen on, for gRPC and for the Redis that is started.
        port: gRPC port; 0: any free.
        advertise: host name or address that others reach this machine by; None: `host`.
        insecure: allow a `host` that other machines can reach, though nobody is authenticated.
        manager: settings of the manager.
    """

    redis: str | None = None
    redis_port: int | None = None
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    insecure: bool = False
    manager: ManagerConfig = field(default_factory=ManagerConfig)

    def __post_init__(self) -> None:
        check_exposure(self.host, self.insecure)

    @property
    def reached_by(self) -> str:
        """The host under which others reach it."""
        if self.advertise:
            return self.advertise
        return socket.gethostname() if is_wildcard(self.host) else self.host


def serve(config: ServeConfig, stop: Stop, announce: Callable[[str, str], None]) -> None:
    """Run a coordinator until `stop` is requested.

    Args:
        config: its settings.
        stop: ends it, within a few seconds.
        announce: called once with the URL of Redis and the manager's address when all is ready.

    Raises:
        RegistryUnavailable: the Redis that was named does not answer.
        AddressInUse: one of the ports is taken.
        UsageError: no Redis is named, and there is no program to start one; `host` is no address of
            this machine.
    """
    check_free(config.host, config.port)
    if not is_loopback(config.host):
        log.warning("listening on %s without credentials: whoever calls is served", config.host)
    with ExitStack() as undo:
        url = config.redis or _start_redis(config, undo)
        registry = connect(url)
        undo.callback(registry.close)
        started_ms = registry.time_ms()
        manager = Manager(registry, config.manager)
        manager.start()
        undo.callback(manager.stop)
        server = CoordinatorServer(manager, registry)
        address = join_address(config.reached_by, server.start(config.host, config.port))
        undo.callback(server.stop)
        lease = _lease(registry, address, started_ms, config.manager.ttl_s)
        lease.start()
        undo.callback(lease.stop)
        announce(registry.url, address)
        stop.wait()


def _start_redis(config: ServeConfig, undo: ExitStack) -> str:
    keeper, url = keep_embedded(config.redis_port, config.host)
    undo.callback(keeper.stop)
    if is_loopback(config.host):
        return url
    return f"redis://{join_address(config.reached_by, int(url.rpartition(':')[2]))}"


def _lease(registry: Registry, address: str, started_ms: int, ttl_s: float) -> Heartbeat:
    facts = {
        "incarnation": str(started_ms),
        STARTED_MS: str(started_ms),
        "host": socket.gethostname(),
    }
    return Heartbeat(registry, "managers", "", address, lambda: facts, ttl_s)
