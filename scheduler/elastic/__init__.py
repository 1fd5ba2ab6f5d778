"""How many nodes each of several elastic jobs has on one cluster: the fewest fulfilled grows first.

After the autoscaler of EDL's controller and ElasticDL's elastic scheduling. `decide` is called
whenever something changed, and every few seconds; whoever runs the jobs carries its targets out.
"""

from __future__ import annotations

from .decision import decide
from .sharing import fulfilment
from .values import SLOTS, ElasticConfig, ElasticJob, ElasticMemory, Pool, Target

__all__ = [
    "SLOTS",
    "ElasticConfig",
    "ElasticJob",
    "ElasticMemory",
    "Pool",
    "Target",
    "decide",
    "fulfilment",
]
