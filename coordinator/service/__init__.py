"""The gRPC server of a service manager. Besides the live page, only this folder uses asyncio."""

from __future__ import annotations

from .server import CoordinatorServer

__all__ = ["CoordinatorServer"]
