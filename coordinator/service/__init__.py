"""The gRPC server of a service manager, the only asyncio code of the manager."""

from __future__ import annotations

from .server import CoordinatorServer

__all__ = ["CoordinatorServer"]
