"""A client of the transport that waits for its answers, as a reader's engine never does."""

from __future__ import annotations

import contextlib
import itertools
import select
import time

from edl.proto.clients import LabelRequest, LabelResponse
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.transport import ConnectionEnded, RequestOutcome, TransportConnection
from edl.proto.datatypes import StackedArray
from edl.proto.security.credentials import ClientSecurity
from edl.proto.shared_buffer import BufferLocation, SharedBuffer
from edl.runtime.errors import AccessError, DeadlineExceeded, EdlError, RequestRefused, TeacherLost
from edl.tests.buffer_locations import located
from edl.tests.teacher.bench import WAIT_S

_SLICE_MS = 20


class FramesClient:
    """Any thread may ask; each that asks at once has a connection of its own.

    Args:
        address: of the teacher.
        security: how to prove who calls.
        arena: where batches may lie; None: all travel, by TCP.
    """

    def __init__(
        self,
        address: str,
        security: ClientSecurity | None = None,
        arena: SharedBuffer | None = None,
    ) -> None:
        self.arena = arena
        self._grpc = OipGrpcClient(address, "resnet", security)
        self._grpc.probe(WAIT_S)
        self._free: list[TransportConnection] = []
        self._numbers = itertools.count(1)
        self._closed = False

    def infer(self, request: LabelRequest, timeout_s: float = WAIT_S) -> LabelResponse:
        """The answer; raises what the teacher answers with, or TeacherLost."""
        outcome = self.heard(request, timeout_s).outcome
        if isinstance(outcome, AccessError):  # a new connection shows what we have by now
            self._drop_free()
            outcome = self.heard(request, timeout_s).outcome
        if isinstance(outcome, EdlError):
            raise outcome
        return outcome

    def heard(self, request: LabelRequest, timeout_s: float = WAIT_S) -> RequestOutcome:
        """What comes for a request, over a connection that stands or is opened."""
        until_s = time.monotonic() + timeout_s
        while self._free:
            connection = self._free.pop()
            with contextlib.suppress(ConnectionEnded, OSError):
                connection.receive()
                if connection.has_room:
                    return self._ask(connection, request, until_s)
            connection.close()
        opened = None if self._closed else self._grpc.connect(self.arena)
        if opened is None:  # as a reader does
            return RequestOutcome(0, self._grpc.infer(request, timeout_s))
        try:
            return self._ask(opened, request, until_s)
        except ConnectionEnded as error:
            return RequestOutcome(0, error.why)
        except OSError:
            return RequestOutcome(0, TeacherLost("the connection is closed"))

    def close(self) -> None:
        self._closed = True
        self._drop_free()
        self._grpc.close()

    def _drop_free(self) -> None:
        while self._free:
            self._free.pop().close()

    def _ask(
        self, connection: TransportConnection, request: LabelRequest, until_s: float
    ) -> RequestOutcome:
        """Put the connection back where it is answered, and close it elsewhere."""
        with contextlib.ExitStack() as failing:
            failing.callback(connection.close)
            left_s = until_s - time.monotonic()
            if not connection.put(next(self._numbers), request, left_s, self._lent(request)):
                raise RequestRefused("it cannot be sent by frames")
            poll = select.poll()
            while not self._closed:
                connection.send()
                wanted = select.POLLIN | (select.POLLOUT if connection.unsent else 0)
                poll.register(connection.fileno(), wanted)
                poll.poll(_SLICE_MS)
                if heard := connection.receive():
                    failing.pop_all()
                    self._free.append(connection)
                    return heard[0]
                if time.monotonic() >= until_s:
                    raise DeadlineExceeded("no answer before the deadline")
            raise TeacherLost("the connection is closed")

    def _lent(self, request: LabelRequest) -> dict[str, BufferLocation]:
        """The places of the inputs, if all of them lie in the arena."""
        if self.arena is None:
            return {}
        found = {
            name: located(self.arena, value)
            for name, value in request.inputs.items()
            if not isinstance(value, StackedArray)
        }
        lent = {name: place for name, place in found.items() if place is not None}
        return lent if lent.keys() == request.inputs.keys() else {}
