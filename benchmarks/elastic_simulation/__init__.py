"""Elastic jobs on one pool in virtual time, under the very rule that runs live ones.

What a job does is reduced to its work in seconds of one node, and to what a change costs it: nodes
take time to come and to go, and the job stands still while it forms a new world.
"""

from __future__ import annotations

from .running import simulate
from .values import (
    Failure,
    Moment,
    ResourceReservation,
    SimulatedJob,
    SimulatedJobRun,
    SimulatedPool,
    Simulation,
)

__all__ = [
    "Failure",
    "Moment",
    "ResourceReservation",
    "SimulatedJob",
    "SimulatedJobRun",
    "SimulatedPool",
    "Simulation",
    "simulate",
]
