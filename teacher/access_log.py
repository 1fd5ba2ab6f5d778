"""The access log: a debug record of named values for each call, by whichever protocol it came.

Neither credentials nor what stands in tensors is in it. While debug records are not wanted, a call
costs one look at the log's level.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from ..logs import Fields
from ..proto.status import to_status

log = logging.getLogger(__name__)

#: Of a text that a caller has chosen.
_MAX_TEXT: Final = 200


class Entry:
    """One call, which is told what becomes of it; this one forgets it, as nobody wants to know."""

    __slots__ = ()

    def asked(self, model: str, request_id: str | None = None) -> None:
        """A request could be read: what it says of itself; those for labels have an id."""

    def labelled(self, samples: int, queue_s: float, compute_s: float) -> None:
        """Its samples have labels; so long they have waited for the model, and been in it."""

    def received(self, nbytes: int) -> None:
        """More bytes of the request are here."""

    def sent(self, nbytes: int) -> None:
        """More bytes of the answer go out."""

    def ended(self, status: str | int) -> None:
        """How it ends, where that is not what an exception in the `with` says."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The call is over."""


#: For whoever has no call to tell of.
UNLOGGED: Final = Entry()


class _Line(Entry):
    """A call that is written down at its end."""

    __slots__ = ("_began", "_said", "_status")

    def __init__(self, protocol: str, method: str, peer: str) -> None:
        self._began = time.perf_counter()
        self._status: str | int | None = None
        self._said: dict[str, object] = {
            "protocol": protocol,
            "method": method[:_MAX_TEXT],
            "model": None,
            "request": None,
            "peer": peer,
            "status": None,
            "samples": None,
            "queue_s": None,
            "compute_s": None,
            "received_bytes": 0,
            "sent_bytes": 0,
            "duration_s": None,
        }

    def asked(self, model: str, request_id: str | None = None) -> None:
        self._said["model"] = model[:_MAX_TEXT]
        if request_id is not None:
            self._said["request"] = request_id[:_MAX_TEXT]

    def labelled(self, samples: int, queue_s: float, compute_s: float) -> None:
        self._said.update(samples=samples, queue_s=_short(queue_s), compute_s=_short(compute_s))

    def received(self, nbytes: int) -> None:
        self._add("received_bytes", nbytes)

    def sent(self, nbytes: int) -> None:
        self._add("sent_bytes", nbytes)

    def ended(self, status: str | int) -> None:
        self._status = status

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status = _status_of(error) if self._status is None else self._status
        duration_s = _short(time.perf_counter() - self._began)
        log.debug(Fields({**self._said, "status": status, "duration_s": duration_s}))

    def _add(self, name: str, nbytes: int) -> None:
        before = self._said[name]
        assert isinstance(before, int)
        self._said[name] = before + nbytes


def call(protocol: str, method: str, peer: Callable[[], str]) -> Entry:
    """One call, to be entered when it comes and left when it is answered.

    Args:
        protocol: "grpc", "http", or "local".
        method: what is called.
        peer: gives the address of the caller, "HOST:PORT".
    """
    if not log.isEnabledFor(logging.DEBUG):
        return UNLOGGED
    return _Line(protocol, method, peer())


def _status_of(error: BaseException | None) -> str:
    """How a call ends, by the name that gRPC has for it."""
    if error is None:
        return "OK"
    if isinstance(error, Exception):
        return to_status(error)[0].name
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else "ABORTED"


def _short(seconds: float) -> float:
    return round(seconds, 6)
