"""Simulation of elastic jobs on one pool, in virtual time, with the rule that live jobs follow.

A simulated job has an amount of work, in seconds of one node, and costs of changes: nodes take time
to start and to leave, and the job pauses while its nodes form a new world (group of ranks).
"""

from __future__ import annotations

from .event_loop import simulate
from .values import (
    Failure,
    PoolState,
    ResourceReservation,
    SimulatedJob,
    SimulatedJobRun,
    SimulatedPool,
    Simulation,
)

__all__ = [
    "Failure",
    "PoolState",
    "ResourceReservation",
    "SimulatedJob",
    "SimulatedJobRun",
    "SimulatedPool",
    "Simulation",
    "simulate",
]
