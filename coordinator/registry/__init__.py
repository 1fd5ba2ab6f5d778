"""The registry of a mesh: a schema on the coordination store (`coordinator.store`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from ...runtime.errors import RedisUnavailable, StartCancelled
from ..store import open_store
from .registry import Registry as Registry
from .schema import DesiredCount as DesiredCount
from .schema import Kind as Kind
from .schema import LogEntry as LogEntry
from .schema import Row as Row
from .schema import ServiceLeadership as ServiceLeadership
from .schema import StoredContentPlan as StoredContentPlan
from .schema import Table as Table
from .schema import TableVersion as TableVersion

if TYPE_CHECKING:
    from ...runtime.lifecycle import Stop

_T = TypeVar("_T")

#: Attempts of a starting process to call a Redis that does not answer in time.
START_ATTEMPTS: Final = 8


def retry_timeouts(call: Callable[[], _T], stop: Stop) -> _T:
    """Make a call of a starting process; repeat it while Redis does not answer in time.

    Args:
        call: the call. It must be idempotent: a call that timed out may have succeeded.
        stop: no further attempt is made once it is requested.

    Raises:
        RedisUnavailable: Redis cannot be reached, or did not answer any attempt.
        StartCancelled: Redis did not answer, and `stop` was requested.
    """
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            return call()
        except RedisUnavailable as error:
            if stop.requested:
                raise StartCancelled(str(error)) from None
            if attempt == START_ATTEMPTS or not error.timed_out:
                raise
    raise AssertionError("the last attempt returns or raises")


def connect(url: str, timeout_s: float = 1.0) -> Registry:
    """Return the registry at `url`; it connects at its first use.

    Args:
        url: URL of a Redis: `redis://[user:password@]host:port[/db]`, `rediss://...` (TLS),
            `unix:///path`, `redis+sentinel://host:port[,host:port...]/MASTER[/db]` or
            `rediss+sentinel://...`, with the parameters that `redis_url` names; or
            `memory://NAME` for a store within this process, shared by name.
        timeout_s: timeout of a connection and of each answer, in seconds.

    Raises:
        UsageError: `url` is invalid.
    """
    return Registry(open_store(url, timeout_s))
