"""The coordination store: three primitives on Redis, in Redis time.

A *lease set* holds the facts and the deadline of each live member; heartbeats extend the deadline.
A *leadership* has one holder at a time, with a fencing token that grows with each change. A
*document* is a hash changed by compare-and-set: `Store.commit` makes all changes if all conditions
hold, for example that the writer still leads. There are also logs, sets of recently used names, and
shards, the ranges of samples that ranks of a training lease. The registry, the boards of jobs and
machines, and the queue are schemas on top.

`RedisStore` uses Redis or Valkey. `MemoryStore` is within one process, for tests, for training on
one node, and for `memory://NAME`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from ...runtime.errors import UsageError
from .redis_url import is_redis_url, masked

if TYPE_CHECKING:
    from .memory_store import MemoryStore
    from .redis_store import RedisStore

#: A coordination store; `RedisStore` documents the methods.
Store: TypeAlias = "RedisStore | MemoryStore"

_HOST_AND_PORT: Final = re.compile(r"[\w.-]+(:\d+)?", re.ASCII)


def open_store(url: str, timeout_s: float = 1.0) -> Store:
    """Return the store at `url`; it connects at its first use.

    Args:
        url: URL of a Redis as in `redis_url`, or `memory://NAME` for a store within this
            process, shared by name.
        timeout_s: timeout of a connection and of each answer, in seconds.

    Raises:
        UsageError: `url` is neither.
    """
    if url.partition(":")[0].lower() == "memory":
        from .memory_store import MemoryStore

        return MemoryStore.shared(url)
    if is_redis_url(url):
        from .redis_store import RedisStore

        return RedisStore(url, timeout_s)
    hint = f"; did you mean redis://{url}?" if _HOST_AND_PORT.fullmatch(url) else ""
    raise UsageError(
        f"the URL of a coordinator is for example redis://127.0.0.1:6379, not {masked(url)!r}{hint}"
    )
