"""Who is alive, and who serves whom: leases in Redis, and the manager that assigns teachers.

The public names below load what they need when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import drain, fetch_status, upgrade, watch
    from .heartbeat import Heartbeat
    from .memory_registry import MemoryRegistry
    from .registry import Registry, connect
    from .subscription import Subscription

__all__ = [
    "Heartbeat",
    "MemoryRegistry",
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
    "MemoryRegistry": ".memory_registry",
    "Registry": ".registry",
    "Subscription": ".subscription",
    "connect": ".registry",
    "drain": ".client",
    "fetch_status": ".client",
    "upgrade": ".client",
    "watch": ".client",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
