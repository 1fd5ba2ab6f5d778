"""Machines that run agents, the deployments of teachers, and their placement on machines."""

from __future__ import annotations

from ..store import open_store
from .board import MachineBoard as MachineBoard
from .schema import Deployment as Deployment
from .schema import Machine as Machine
from .schema import MachineOrder as MachineOrder
from .schema import Report as Report


def open_machines(url: str) -> MachineBoard:
    """Return the machine board of the store at `url`. Raises UsageError if the URL is invalid."""
    return MachineBoard(open_store(url))
