"""One call of Subscribe: its channel, its metadata, what goes up and what comes down."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import grpc

from ...proto import coordinator_pb2 as pb
from ...proto.security import ClientSecurity, open_channel
from .discovery import BEAT_METADATA, CHANNEL_OPTIONS, SECRET_METADATA, begun, call_error, stub

#: Seconds between reports, until the manager says how many.
_BEAT_S: Final = 1.0
_MOST_BEAT_S: Final = 3600.0


class SubscriptionCall:
    """A stream to one manager; use it in a `with`.

    No report goes up before the manager has handed out the student's secret: whatever a manager
    keeps of it, the student has.

    Args:
        address: of the manager.
        security: how to call it.
        secret: what proves that we are the student of an earlier call; empty: this is the first.
        next_report: given this call and the number of the report that went up last (0: none),
            waits for the next one and returns its number and itself; None ends our side. Called in
            a thread of gRPC's.
    """

    def __init__(
        self,
        address: str,
        security: ClientSecurity | None,
        secret: str,
        next_report: Callable[[SubscriptionCall, int], tuple[int, pb.StudentReport] | None],
    ) -> None:
        self.ended = False
        self.opened = False
        self.beat_s = _BEAT_S
        self._address = address
        self._security = security
        self._secret = secret
        self._next_report = next_report
        self._channel: grpc.Channel | None = None
        self._call: Any = None

    def __enter__(self) -> Self:
        self._channel = open_channel(self._address, self._security, CHANNEL_OPTIONS)
        metadata = ((SECRET_METADATA, self._secret),) if self._secret else ()
        self._call = stub(self._channel).Subscribe(self._reports(), metadata=metadata)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        if self._channel is not None:
            self._channel.close()

    def open(self) -> str:
        """Wait until the manager answers; returns the student's secret.

        Raises:
            CoordinatorUnavailable: it does not answer, or not in time.
            EdlError: it refuses us.
        """
        metadata = begun(self._call, self._address)
        self.beat_s = _beat_s(metadata.get(BEAT_METADATA, ""))
        self.opened = True
        return metadata.get(SECRET_METADATA, "")

    def assignments(self) -> Iterator[pb.Assignment]:
        """What comes down, until the manager ends the stream in order.

        Raises:
            CoordinatorUnavailable: the manager is gone, or turns us away.
            EdlError: it refuses us.
        """
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise call_error(self._address, error) from None

    def cancel(self) -> None:
        """End it from another thread."""
        self._call.cancel()

    def _reports(self) -> Iterator[pb.StudentReport]:
        """Runs in a thread of gRPC's; its end closes our side."""
        sent = 0
        while (numbered := self._next_report(self, sent)) is not None:
            sent, report = numbered
            yield report


def try_subscribing(address: str, security: ClientSecurity | None = None) -> None:
    """Find out whether the manager at `address` takes our subscriptions; none is made.

    Raises:
        CoordinatorUnavailable: it does not answer, or not in time.
        EdlError: it refuses us.
    """
    over = threading.Event()

    def say_nothing(_: SubscriptionCall, __: int) -> None:
        over.wait()

    try:
        with SubscriptionCall(address, security, "", say_nothing) as call:
            call.open()
    finally:
        over.set()


def _beat_s(text: str) -> float:
    """What a manager asks for, were it sensible."""
    try:
        beat_s = float(text)
    except ValueError:
        return _BEAT_S
    return beat_s if math.isfinite(beat_s) and 0.01 <= beat_s <= _MOST_BEAT_S else _BEAT_S
