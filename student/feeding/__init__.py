"""Sources of batches for ranks: the order of an epoch, dealt in shards as ranks come and go.

source = source_for(feed, settings=..., rank=0, world=2, link=link, sizes=sizes, saved=None)
reader = make_reader(source, distill, settings, rank=0, epoch=0)
for batch in reader:                        # one epoch
    parts = split(batch, ..., positions=source.has_positions)
    ...                                     # the step
    source.trained(epoch, parts.positions)
checkpoint["feed"] = merged([source.state() of all ranks], saved)
"""

from __future__ import annotations

from .positions import (
    BoardLeases,
    PositionLeases,
    ShardBoard,
    StaticLeases,
    merge_states,
    trained_positions,
)
from .sharded import ShardedSource, Sizes
from .sources import DirectReader, UnshardedSource, check_feed, make_reader, source_for

__all__ = [
    "BoardLeases",
    "DirectReader",
    "PositionLeases",
    "ShardBoard",
    "ShardedSource",
    "Sizes",
    "StaticLeases",
    "UnshardedSource",
    "check_feed",
    "make_reader",
    "merge_states",
    "source_for",
    "trained_positions",
]
