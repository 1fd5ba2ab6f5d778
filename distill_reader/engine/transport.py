"""Sends requests to one teacher from the engine's thread, without ever blocking it.

A request that fails here, by a lost connection or an expired credential, is repeated by a thread
over gRPC, which finds out the cause.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ...errors import AccessError, BadAnswer, DeadlineExceeded, EdlError, WireError
from ...proto.clients import LabelRequest, LabelResponse
from ...proto.clients.transport import TransportConnection
from .inbox import Inbox
from .outcomes import LinkFailure, Outcome, TeacherRequest
from .request_template import RequestTemplate


class PendingRequest(NamedTuple):
    """A request without an answer yet.

    Attributes:
        job: what it is for.
        request: as it was sent.
        at: when it was sent, by the monotonic clock.
        until: its deadline.
        beside: requests in flight to the teacher at that time, this one included.
    """

    job: TeacherRequest
    request: LabelRequest
    at: float
    until: float
    beside: int


class Transport:
    """The connections to one teacher. But for `add`, of the engine's thread.

    Args:
        inbox: waits for the sockets.
        checked: turns an answer, or the teacher's error, into an outcome.
        post: receives each outcome.
        send_by_thread: receives each job that a thread has to send.


    Attributes:
        wants_connection: there was none with room for a request.
    """

    def __init__(
        self,
        inbox: Inbox,
        checked: Callable[[PendingRequest, LabelResponse | EdlError], Outcome],
        post: Callable[[Outcome], None],
        send_by_thread: Callable[[TeacherRequest], None],
    ) -> None:
        self.wants_connection = True
        self._inbox = inbox
        self._checked = checked
        self._post = post
        self._send_by_thread = send_by_thread
        self._connections: dict[TransportConnection, dict[int, PendingRequest]] = {}
        self._lock = threading.Lock()
        self._added: deque[TransportConnection] = deque()  # and not used yet
        self._is_opening = False
        self._closed = False

    def ask(self, job: TeacherRequest, template: RequestTemplate, timeout_s: float) -> bool:
        """Queue a request, sent with others before the thread waits; False: it needs a thread."""
        connection = self._free()
        self.wants_connection = connection is None
        if connection is None:
            return False
        request = template.request(job)
        waited_for = connection.waits_to_send
        if not connection.put(job.request, request, timeout_s, job.locations):
            return False
        if not waited_for:
            self._inbox.put_off(partial(self._flush, connection))
        now = time.monotonic()
        beside = 1 + sum(map(len, self._connections.values()))
        pending = PendingRequest(job, request, now, now + timeout_s, beside)
        self._connections[connection][job.request] = pending
        return True

    def open(self, connect: Callable[[], TransportConnection | None]) -> None:
        """Open another connection if one is needed; thread-safe, one opens at a time.

        Args:
            connect: opens a connection; None: not possible now.
        """
        with self._lock:
            if self._closed or self._is_opening or self._added or not self.wants_connection:
                return
            self._is_opening = True
        connection = None
        try:
            connection = connect()
        finally:
            with self._lock:
                self._is_opening = False
                if connection is not None and not self._closed:
                    self._added.append(connection)
                    connection = None
        if connection is not None:
            connection.close()

    def check_deadlines(self, now: float) -> None:
        """Fail requests whose deadline has passed, and drop their connections."""
        for connection, pending in list(self._connections.items()):
            late = next((one for one in pending.values() if one.until <= now), None)
            if late is not None:
                del pending[late.job.request]
                self._drop(connection)
                error = DeadlineExceeded("no answer within the time that there was for one")
                self._post(LinkFailure(late.job, error))

    def close(self) -> None:
        """Close all connections; answers in flight are ignored."""
        with self._lock:
            self._closed = True
        for connection in self._connections:
            self._inbox.unwatch(connection)
            connection.close()
        for connection in self._added:
            connection.close()
        self._added.clear()
        self._connections.clear()

    def _free(self) -> TransportConnection | None:
        while self._added:
            connection = self._added.popleft()
            self._connections[connection] = {}
            self._inbox.watch(connection, partial(self._receive, connection))
        for connection in self._connections:
            if connection.has_room:
                return connection
        return None

    def _flush(self, connection: TransportConnection, was_full: bool = False) -> None:
        if connection not in self._connections:  # it was dropped meanwhile
            return
        try:
            connection.send()
        except OSError:
            self._receive(connection)  # answers that came before its end
            if connection in self._connections:
                self._drop(connection)
            return
        if connection.waits_to_send:
            self._inbox.watch_room(connection, partial(self._flush, connection, True))
        elif was_full:
            self._inbox.watch_room(connection, None)

    def _receive(self, connection: TransportConnection) -> None:
        try:
            heard = connection.receive()
        except WireError as error:  # invalid data: the teacher is faulty
            lied, self._connections[connection] = self._connections[connection], {}
            self._drop(connection)
            for liar in lied.values():
                self._post(self._checked(liar, BadAnswer(str(error))))
            return
        except OSError:
            self._drop(connection)
            return
        pending = self._connections[connection]
        refused = False
        for number, outcome, without_memory in heard:
            one, is_refused = pending.pop(number), isinstance(outcome, AccessError)
            refused |= is_refused
            if without_memory or is_refused:
                self._send_by_thread(one.job)
            else:
                self._post(self._checked(one, outcome))
        # Its credentials expired: a new connection presents the present ones.
        if refused or (connection.leaving and not pending):
            self._drop(connection)

    def _drop(self, connection: TransportConnection) -> None:
        """Close a connection and resend its pending requests by threads."""
        lost = self._connections.pop(connection)
        self._inbox.unwatch(connection)
        connection.close()
        for pending in lost.values():
            self._send_by_thread(pending.job)
