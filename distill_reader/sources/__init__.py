"""Where batches come from: what the user gave, in one of three steps of what can be resumed.

| | resume in mid-epoch | ranks |
|---|---|---|
| map-style: samples with ids, read in the order of a sampler | loads only what remains | by ids |
| stateful: an iterable with `state_dict` and `load_state_dict` | by its own state | if it can |
| plain: any iterable | reads the epoch again, and checks that it is the same | if it can |
"""

from .batched import Batched
from .recognise import source_of
from .source import Reading, Source

__all__ = ["Batched", "Reading", "Source", "source_of"]
