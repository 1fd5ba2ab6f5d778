"""A client of the transport that waits for its answers, as a reader's engine never does."""

from __future__ import annotations

import contextlib
import itertools
import select
import threading
import time

from edl.errors import AccessError, DeadlineExceeded, EdlError, RequestRefused, TeacherLost
from edl.proto.clients import Answer, Request
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.datatypes import to_bytes
from edl.proto.lent_arena import Lent, LentArena
from edl.proto.security import ClientSecurity
from edl.proto.stacked import Stacked
from edl.proto.transport.connection import Connection, Ended, Heard
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
        self, address: str, security: ClientSecurity | None = None, arena: LentArena | None = None
    ) -> None:
        self.arena = arena
        self.grpc = OipGrpcClient(address, "resnet", security)
        self.grpc.probe(WAIT_S)
        self._free: list[Connection] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._closed = False

    def infer(self, request: Request, timeout_s: float = WAIT_S) -> Answer:
        """The answer; raises what the teacher answers with, or TeacherLost."""
        try:
            return self._infer(request, timeout_s)
        except AccessError:  # what was shown counts no more; a new connection shows what we have
            self._drop_free()
            return self._infer(request, timeout_s)

    def heard(self, request: Request, timeout_s: float = WAIT_S) -> Heard:
        """What comes for a request, over a connection that stands or is opened."""
        until_s = time.monotonic() + timeout_s
        while True:
            connection, fresh = self._connection()
            if connection is None:  # as a reader does
                return Heard(0, self.grpc.infer(request, timeout_s))
            try:
                heard = self._ask(connection, request, timeout_s, until_s)
            except Ended as error:
                connection.close()
                if fresh:
                    raise error.why from None
            except OSError:
                connection.close()
                if self._closed or fresh:
                    raise TeacherLost("the connection is closed") from None
            else:
                self._give_back(connection)
                return heard

    def close(self) -> None:
        self._closed = True
        self._drop_free()
        self.grpc.close()

    def _drop_free(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for connection in free:
            connection.close()

    def _infer(self, request: Request, timeout_s: float) -> Answer:
        heard = self.heard(request, timeout_s)
        if isinstance(heard.outcome, EdlError):
            raise heard.outcome
        return heard.outcome

    def _connection(self) -> tuple[Connection | None, bool]:
        with self._lock:
            while self._free:
                connection = self._free.pop()
                with contextlib.suppress(OSError):
                    connection.hear()
                    if connection.has_room:
                        return connection, False
                connection.close()
        return None if self._closed else self.grpc.connect(self.arena), True

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(connection)
                return
        connection.close()

    def _ask(
        self, connection: Connection, request: Request, timeout_s: float, until_s: float
    ) -> Heard:
        if not connection.put(next(self._numbers), request, timeout_s, self._lent(request)):
            raise RequestRefused("it cannot be sent by frames")
        poll = select.poll()
        while True:
            connection.send()
            wanted = select.POLLIN | (select.POLLOUT if connection.waits_to_send else 0)
            poll.register(connection.fileno(), wanted)
            poll.poll(_SLICE_MS)
            if heard := connection.hear():
                return heard[0]
            if self._closed:
                raise ConnectionAbortedError
            if time.monotonic() >= until_s:
                connection.close()
                raise DeadlineExceeded("no answer within the time that there was for one")

    def _lent(self, request: Request) -> dict[str, Lent]:
        if self.arena is None:
            return {}
        found = {}
        for name, value in request.inputs.items():
            if isinstance(value, Stacked) or value.dtype.hasobject:
                return {}
            if (lent := self.arena.lent(to_bytes(value))) is None:
                return {}
            found[name] = lent
        return found
