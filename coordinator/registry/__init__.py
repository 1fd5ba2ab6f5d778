"""The registry of a mesh: a schema on the coordination store (`coordinator.store`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from ...runtime.errors import RegistryUnavailable, StartCancelled
from ..store import FACTS_TTLS, Beat, Changes, Leads, Member, MemberBeat, SweepPermit, open_store
from .records import (
    DesiredCount,
    Epoch,
    Kind,
    LogEntry,
    Plan,
    Row,
    ServiceLeadership,
    Table,
    concerns_managers,
)
from .registry import Registry

if TYPE_CHECKING:
    from ...runtime.lifecycle import Stop

_T = TypeVar("_T")

__all__ = [
    "FACTS_TTLS",
    "Beat",
    "Changes",
    "DesiredCount",
    "Epoch",
    "Kind",
    "Leads",
    "LogEntry",
    "Member",
    "MemberBeat",
    "Plan",
    "Registry",
    "Row",
    "ServiceLeadership",
    "SweepPermit",
    "Table",
    "concerns_managers",
    "connect",
    "with_patience",
]

#: Calls of a starting process to a Redis that does not answer in time.
START_ATTEMPTS: Final = 8


def with_patience(call: Callable[[], _T], stop: Stop, attempts: int = START_ATTEMPTS) -> _T:
    """Make a call that a process needs to start, again if Redis does not answer in time.

    Args:
        call: what to do; it must be harmless to repeat, as a late answer may follow a success.
        stop: once it is requested, no further attempt is made.
        attempts: how often; each takes up to twice the timeout of the connection, 2 s by default.

    Raises:
        RegistryUnavailable: Redis cannot be reached, or did not answer any attempt.
        StartCancelled: it did not answer, and `stop` was requested.
    """
    while True:
        attempts -= 1
        try:
            return call()
        except RegistryUnavailable as error:
            if stop.requested:
                raise StartCancelled(str(error)) from None
            if not (attempts and error.timed_out):
                raise


def connect(url: str, timeout_s: float = 1.0) -> Registry:
    """Return the registry at `url`; it connects when it is first used.

    Args:
        url: a Redis by `redis://[user:password@]host:port[/db]`, `rediss://...` (TLS),
            `unix:///path`, `redis+sentinel://host:port[,host:port...]/MASTER[/db]` or
            `rediss+sentinel://...`, with the parameters that `redis_url` names; or
            `memory://NAME` (a store within this process, shared by its name).
        timeout_s: seconds after which one step counts as not answered.

    Raises:
        UsageError: `url` is none of these.
    """
    return Registry(open_store(url, timeout_s))
