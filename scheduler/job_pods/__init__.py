"""Elastic jobs whose nodes are pods: what of a cluster is seen, and what is done about it now.

`decide_pods` asks `scheduler.elastic` how many nodes each job gets, and says which pods come and go
for that. Whoever carries it out writes a job's ledger down first, and only then touches pods: so it
may be killed between any two calls.
"""

from __future__ import annotations

from .deciding import decide_pods
from .noting import refused
from .values import Happening, JobSeen, JobWanted, Ledger, Orders, PodsConfig, PodSeen, Progress

__all__ = [
    "Happening",
    "JobSeen",
    "JobWanted",
    "Ledger",
    "Orders",
    "PodSeen",
    "PodsConfig",
    "Progress",
    "decide_pods",
    "refused",
]
