"""The coordinator: leases in Redis, and service managers that assign teachers to students.

The public names import their modules at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calling.client import drain, fetch_status, upgrade, watch
    from .calling.subscription import Subscription
    from .heartbeat import Heartbeat
    from .registry import Registry, connect

__all__ = [
    "Heartbeat",
    "Registry",
    "Subscription",
    "connect",
    "drain",
    "fetch_status",
    "upgrade",
    "watch",
]

_MODULES = {
    "Heartbeat": ".heartbeat",
    "Registry": ".registry",
    "Subscription": ".calling.subscription",
    "connect": ".registry",
    "drain": ".calling.client",
    "fetch_status": ".calling.client",
    "upgrade": ".calling.client",
    "watch": ".calling.client",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
