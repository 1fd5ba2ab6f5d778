"""A service manager's gRPC side: the only asyncio of the coordinator's server."""

from __future__ import annotations

from .server import CoordinatorServer

__all__ = ["CoordinatorServer"]
