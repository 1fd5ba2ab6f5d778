"""The coordinator: leases in Redis, and service managers that assign teachers to students.

The public names import their modules at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_names import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".calling.client": ["drain", "fetch_status", "upgrade", "watch"],
        ".calling.subscription": ["Subscription"],
        ".heartbeat": ["Heartbeat"],
        ".registry": ["Registry", "connect"],
    },
)
