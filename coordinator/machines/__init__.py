"""Machines that wait for a teacher to be deployed on them, and what is deployed: the board of both.

`board.py` is the contract; `open_board` gives the one in Redis, or its twin in this process.
"""

from __future__ import annotations

from .board import Beaten, Deployment, Machine, MachineBoard, Order, Report

__all__ = [
    "Beaten",
    "Deployment",
    "Machine",
    "MachineBoard",
    "Order",
    "Report",
    "open_board",
]


def open_board(url: str, timeout_s: float = 1.0) -> MachineBoard:
    """The board of the Redis at `url`, or one in this process for `memory://NAME`.

    Args:
        url: any that a registry takes.
        timeout_s: seconds for a connection, and for each answer.

    Raises:
        UsageError: the URL is none.
    """
    if url.partition(":")[0].lower() == "memory":
        from .memory_board import MemoryMachines

        return MemoryMachines.shared(url)
    from .redis_board import RedisMachines

    return RedisMachines(url, timeout_s)
