"""Sources of batches for ranks that lease shards of an epoch and may come and go.

source = source_for(feed, settings=..., rank=0, world=2, link=link, sizes=sizes, saved=None)
reader = make_reader(source, distill, settings, rank=0, epoch=0)
for batch in reader:                        # one epoch
    parts = split_batch(batch, ..., positions=source.has_positions)
    ...                                     # the step
    source.trained(epoch, parts.positions)
checkpoint["feed"] = merge_states([source.state() of all ranks], saved)
"""

from __future__ import annotations

from .positions import merge_states
from .sharded import ShardedSource
from .sources import (
    DirectReader,
    UnshardedSource,
    make_reader,
    sample_order,
    source_for,
    steps_of,
)

__all__ = [
    "DirectReader",
    "ShardedSource",
    "UnshardedSource",
    "make_reader",
    "merge_states",
    "sample_order",
    "source_for",
    "steps_of",
]
