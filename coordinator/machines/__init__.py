"""Machines that wait for a teacher to be deployed on them, and what is deployed."""

from __future__ import annotations

from ..store import open_store
from .board import MachineBoard
from .schema import Deployment, Machine, MachineOrder, Report

__all__ = [
    "Deployment",
    "Machine",
    "MachineBoard",
    "MachineOrder",
    "Report",
    "open_machines",
]


def open_machines(url: str) -> MachineBoard:
    """Return the machine board of the store at `url`. Raises UsageError if the URL is invalid."""
    return MachineBoard(open_store(url))
