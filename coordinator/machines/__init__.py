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
    """The machine board of the store at `url`.

    Args:
        url: any that a registry takes.

    Raises:
        UsageError: the URL is none.
    """
    return MachineBoard(open_store(url))
