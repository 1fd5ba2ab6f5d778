"""The registry on Redis or Valkey: its leases and its assignment table, over one client."""

from __future__ import annotations

from .redis_leases import RedisLeases
from .redis_table import RedisTables


class RedisRegistry(RedisLeases, RedisTables):
    """See `Registry`. Safe to use from several threads; connections come from a pool.

    Args:
        url: any that `redis_url` takes; it connects when it is first used.
        timeout_s: seconds for a connection, and for each answer.

    Raises:
        UsageError: `url` names no Redis.
    """
