"""Security between processes: TLS, bearer tokens, roles, and the proof of a teacher's instance.

Nothing here loads gRPC before a channel is opened or a server listens, so that a process which only
passes settings on stays light. The names below load their modules when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .access_control import ROLES, AccessControl, Caller
    from .certificates import reloading_context
    from .client_connections import open_channel
    from .credentials import ClientSecurity, ServerSecurity, TlsFiles, check_exposure, is_loopback
    from .servers import Acceptor, listen

__all__ = [
    "ROLES",
    "Acceptor",
    "AccessControl",
    "Caller",
    "ClientSecurity",
    "ServerSecurity",
    "TlsFiles",
    "check_exposure",
    "is_loopback",
    "listen",
    "open_channel",
    "reloading_context",
]

_MODULES = {
    "Acceptor": ".servers",
    "Caller": ".access_control",
    "check_exposure": ".credentials",
    "ClientSecurity": ".credentials",
    "AccessControl": ".access_control",
    "is_loopback": ".credentials",
    "listen": ".servers",
    "open_channel": ".client_connections",
    "reloading_context": ".certificates",
    "ROLES": ".access_control",
    "ServerSecurity": ".credentials",
    "TlsFiles": ".credentials",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
