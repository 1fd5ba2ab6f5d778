"""The link to one teacher: its connections, probes, and requests in flight.

A link decides nothing: it probes and sends by instructions of the engine's core, and posts the
outcomes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import NamedTuple

from ...proto.clients import (
    LabelRequest,
    LabelResponse,
    ModelDescription,
    TeacherClient,
    input_mismatch,
    open_client,
)
from ...proto.clients.oip_grpc import OipGrpcClient
from ...proto.clients.transport import TransportConnection
from ...proto.shared_buffer import SharedBuffer
from ...runtime.errors import (
    AccessError,
    BadAnswer,
    DeadlineExceeded,
    EdlError,
    RateLimited,
    RequestRefused,
    RetryableError,
    WireError,
)
from ...scheduler import reachability
from ...scheduler.reader_core.events import Peer
from ..config import ReaderConfig
from ..store.rows import LabelRow, ModelId
from .answers import (
    ExpectedResponse,
    check_inputs_finite,
    checked_labels,
    device_seconds,
    with_requested_names,
)
from .inbox import Inbox
from .label_cache_thread import rows_of
from .teacher_requests import (
    Outcome,
    RequestDone,
    RequestOrProbeFailure,
    RequestTemplate,
    TeacherReady,
    TeacherRequest,
    template_of,
)

PROBE_TIMEOUT_S = 5.0


class ConcurrencyCounter:
    """Counts the threads in a `with` block; entering returns the count, this thread included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0

    def __enter__(self) -> int:
        with self._lock:
            self._within += 1
            return self._within

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1


class PendingRequest(NamedTuple):
    """A request without a response yet.

    Attributes:
        request: the rows to label.
        template: template of the request.
        message: the request as sent.
        sent_at: time of sending, by the monotonic clock.
        deadline: by the monotonic clock; infinite if a thread sends, whose client has a timeout.
        in_flight: requests in flight at the time of sending, this one included. A request of the
            pool counts those of the pool; a request of a thread counts those of threads.
    """

    request: TeacherRequest
    template: RequestTemplate
    message: LabelRequest
    sent_at: float
    deadline: float
    in_flight: int


class ConnectionPool:
    """The connections to one teacher, over which the engine's thread sends without blocking.

    If a connection is lost, a credential has expired or shared memory fails, a thread repeats the
    request over gRPC. It gets the labels, or an error with the cause. All methods but `open` belong
    to the engine's thread.

    Args:
        inbox: polls the sockets.
        to_outcome: converts a response, or the teacher's error, to an outcome.
        post: receives each outcome.
        send_by_thread: receives each request that a thread has to send.

    Attributes:
        wants_connection: the latest request found no connection with room; True at first.
    """

    def __init__(
        self,
        inbox: Inbox,
        to_outcome: Callable[[PendingRequest, LabelResponse | EdlError], Outcome],
        post: Callable[[Outcome], None],
        send_by_thread: Callable[[TeacherRequest], None],
    ) -> None:
        self.wants_connection = True
        self._inbox = inbox
        self._to_outcome = to_outcome
        self._post = post
        self._send_by_thread = send_by_thread
        self._connections: dict[TransportConnection, dict[int, PendingRequest]] = {}
        self._lock = threading.Lock()
        self._added: deque[TransportConnection] = deque()  # not used yet
        self._is_opening = False
        self._closed = False

    def enqueue(self, request: TeacherRequest, template: RequestTemplate, timeout_s: float) -> bool:
        """Queue a request, to be sent before the engine's thread waits again.

        Returns:
            False if the request has to be sent by a thread.
        """
        while self._added:
            added = self._added.popleft()
            self._connections[added] = {}
            self._inbox.watch(added, partial(self._receive, added))
        in_flight = 1
        connection: TransportConnection | None = None
        for candidate, requests in self._connections.items():
            in_flight += len(requests)
            if connection is None and candidate.has_room:
                connection = candidate
        self.wants_connection = connection is None
        if connection is None:
            return False
        message = template.message_of(request)
        is_waiting = bool(connection.unsent)
        if not connection.put(request.number, message, timeout_s, request.locations):
            return False
        if not is_waiting:
            self._inbox.defer(partial(self._flush, connection))
        now = time.monotonic()
        pending = PendingRequest(request, template, message, now, now + timeout_s, in_flight)
        self._connections[connection][request.number] = pending
        return True

    def open(self, connect: Callable[[], TransportConnection | None]) -> None:
        """Open another connection if it is needed. Thread-safe; opens one at a time.

        Args:
            connect: opens a connection; returns None if that is not possible now.
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
        """Fail overdue requests, and drop their connections."""
        for connection, pending in list(self._connections.items()):
            overdue = [each for each in pending.values() if each.deadline <= now]
            for each in overdue:
                del pending[each.request.number]
            if overdue:
                self._drop(connection)
            for each in overdue:
                error = DeadlineExceeded(f"no response within {each.deadline - each.sent_at:g} s")
                self._post(RequestOrProbeFailure(each.request, error))

    def close(self) -> None:
        """Close all connections; their requests get no outcome."""
        with self._lock:
            self._closed = True
        for connection in self._connections:
            self._inbox.unwatch(connection)
            connection.close()
        for connection in self._added:
            connection.close()
        self._added.clear()
        self._connections.clear()

    def _flush(self, connection: TransportConnection, was_full: bool = False) -> None:
        if connection not in self._connections:  # it was dropped meanwhile
            return
        try:
            connection.send()
        except OSError:
            self._receive(connection)  # responses that arrived before its end
            if connection in self._connections:
                self._drop(connection)
            return
        if connection.unsent:
            self._inbox.watch_room(connection, partial(self._flush, connection, True))
        elif was_full:
            self._inbox.watch_room(connection, None)

    def _receive(self, connection: TransportConnection) -> None:
        try:
            responses = connection.receive()
        except WireError as error:  # invalid data: the teacher is faulty
            pending, self._connections[connection] = self._connections[connection], {}
            self._drop(connection)
            for each in pending.values():
                self._post(self._to_outcome(each, BadAnswer(str(error))))
            return
        except OSError:
            self._drop(connection)
            return
        pending = self._connections[connection]
        any_refused = False
        for number, outcome, without_memory in responses:
            answered, is_refused = pending.pop(number), isinstance(outcome, AccessError)
            any_refused |= is_refused
            if without_memory or is_refused:
                self._send_by_thread(answered.request)
            else:
                self._post(self._to_outcome(answered, outcome))
        # If the connection's credentials have expired, a new one sends the current credentials.
        if any_refused or (connection.leaving and not pending):
            self._drop(connection)

    def _drop(self, connection: TransportConnection) -> None:
        """Close a connection and resend its pending requests by threads."""
        pending = self._connections.pop(connection)
        self._inbox.unwatch(connection)
        connection.close()
        for each in pending.values():
            self._send_by_thread(each.request)


class TeacherLink:
    """The link to one teacher.

    Its methods are for the engine's thread. Probes, and requests that the `ConnectionPool` does not
    take, run in threads of the link.

    Args:
        config: settings of the member.
        inbox: inbox of the engine's thread.
        ring: holds the batches, for teachers that read shared memory; None: every batch is sent
            over the network.

    Attributes:
        peer: the teacher.
        post: called with the link and each outcome, in any thread.
        number: number of the link in the core.
        inputs: names of the model's inputs, once probed.
        model: the model, as of the latest probe.
    """

    def __init__(
        self,
        peer: Peer,
        config: ReaderConfig,
        post: Callable[[TeacherLink, Outcome], None],
        inbox: Inbox,
        ring: SharedBuffer | None,
        number: int = 0,
    ) -> None:
        self.peer = peer
        self.post = post
        self.number = number
        self.inputs: tuple[str, ...] = ()
        self.model = ModelDescription()
        self._config = config
        self._inbox = inbox
        self._ring = ring
        self._requests: SimpleQueue[TeacherRequest | None] = SimpleQueue()
        self._closed = threading.Event()
        self._client: TeacherClient | None = None
        self._pool: ConnectionPool | None = None
        self._learned_outputs: tuple[str, ...] = ()  # if the server does not publish its outputs
        self._lock = threading.Lock()
        self._unfinished = 0  # requests that sending threads have not finished
        self._senders = 0  # sending threads
        self._in_flight = ConcurrencyCounter()
        self._make_template()

    def probe(self) -> None:
        """Probe the teacher in a thread; posts `TeacherReady` or `RequestOrProbeFailure`."""
        try:
            self._thread(self._post_probe, "prober")
        except RuntimeError as error:  # the system refuses a thread
            self.post(self, RequestOrProbeFailure(None, _as_edl_error(error)))

    def send(self, request: TeacherRequest) -> None:
        """Send a request; posts `RequestDone` or `RequestOrProbeFailure`."""
        pool, timeout_s = self._pool, self._config.request_timeout_s
        if pool is None or not pool.enqueue(request, self._template, timeout_s):
            self._send_by_thread(request)

    def check_deadlines(self, now: float) -> None:
        """Fail overdue requests of the pool."""
        if self._pool is not None:
            self._pool.check_deadlines(now)

    def _send_by_thread(self, request: TeacherRequest) -> None:
        """Queue a request for the sending threads; starts another thread if all are busy."""
        with self._lock:
            self._unfinished += 1
            if self._unfinished > self._senders:
                try:
                    self._thread(self._work, "sender")
                except RuntimeError as error:  # the system refuses a thread
                    if not self._senders:
                        self._unfinished -= 1
                        self.post(self, RequestOrProbeFailure(request, _as_edl_error(error)))
                        return
                else:
                    self._senders += 1
        self._requests.put(request)

    def close(self) -> None:
        """Close all connections; outcomes of requests in flight may still be posted."""
        self._closed.set()
        if self._pool is not None:
            self._pool.close()
        for _ in range(self._senders):
            self._requests.put(None)
        if (client := self._client) is not None:
            client.close()

    # --- probing

    def _post_probe(self) -> None:
        outcome: Outcome
        try:
            outcome = TeacherReady(self._probe())
        except Exception as error:
            outcome = RequestOrProbeFailure(None, _as_edl_error(error))
        if not self._closed.is_set():
            self.post(self, outcome)

    def _probe(self) -> tuple[str, ...]:
        """Return the names of the model's inputs; connect first if there is no client yet."""
        if (client := self._client) is None:
            # Opened here, not in the constructor: reading the files of credentials may fail.
            peer = self.peer
            client = open_client(peer.protocol, peer.address, peer.model, self._config.security)
            self._client = client
            if isinstance(client, OipGrpcClient) and not peer.foreign:
                self._pool = ConnectionPool(
                    self._inbox, self._on_response, partial(self.post, self), self._send_by_thread
                )
            if self._closed.is_set():
                client.close()
        model = self.model = client.probe(PROBE_TIMEOUT_S)
        self._make_template()
        self._open_connection()
        return tuple(tensor.name for tensor in model.inputs) or self.peer.inputs

    # --- requests

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                outcome: Outcome = self._request(request)
            except Exception as error:
                outcome = RequestOrProbeFailure(request, _as_edl_error(error))
            self.post(self, outcome)
            del request, outcome  # do not keep their memory until the next request
            self._open_connection()
            with self._lock:  # this thread is free from now on
                self._unfinished -= 1

    def _request(self, request: TeacherRequest) -> RequestDone:
        client = self._client
        assert client is not None  # requests are sent after a successful probe
        started = time.monotonic()
        template = self._template
        message = template.message_of(request)
        with self._in_flight as in_flight:
            response: LabelResponse | EdlError
            try:
                response = client.infer(message, self._config.request_timeout_s)
            except EdlError as error:
                response = error
            pending = PendingRequest(request, template, message, started, inf, in_flight)
            return self._checked(pending, response)

    def _on_response(self, pending: PendingRequest, response: LabelResponse | EdlError) -> Outcome:
        """Return the outcome of a response that the pool received."""
        try:
            return self._checked(pending, response)
        except Exception as error:
            return RequestOrProbeFailure(pending.request, _as_edl_error(error))

    def _make_template(self) -> None:
        """Make the template of requests for the model as it is known now."""
        with self._lock:
            self._template = template_of(self._config, self.peer, self.model, self._learned_outputs)

    def _open_connection(self) -> None:
        """Open a connection of the pool if it needs one, so that requests need no thread."""
        if (pool := self._pool) is not None:
            assert isinstance(self._client, OipGrpcClient)
            pool.open(partial(self._client.connect, self._ring))

    def _checked(self, pending: PendingRequest, response: LabelResponse | EdlError) -> RequestDone:
        """Check a response and convert it to labels; raises EdlError if that fails."""
        request, now = pending.request, time.monotonic()
        try:
            if isinstance(response, EdlError):
                raise response
            expected = pending.template.expected
            if not expected.outputs:
                expected = self._expected_once_learned(pending, response)
            labels = checked_labels(response, expected, request.samples)
        except WireError as error:
            raise BadAnswer(str(error)) from None
        except RateLimited:
            raise
        except RetryableError as error:
            if mismatch := input_mismatch(self.model.inputs, request.inputs):
                raise RequestRefused(f"{mismatch} (error of the server: {error})") from None
            raise
        except BadAnswer:
            check_inputs_finite(request.inputs)  # bad inputs may be the cause
            raise
        parameters = response.parameters
        elapsed_s = now - pending.sent_at
        device_s = device_seconds(parameters.get("device_seconds"), elapsed_s, pending.in_flight)
        draining = bool(parameters.get("draining", False))
        content_id = str(parameters.get("content_id", "")) or self.peer.content_id
        numerics_id = str(parameters.get("numerics_id", "")) or self.peer.numerics_id
        rows: Sequence[LabelRow] = ()
        if self._config.store is not None and content_id:
            model_id = ModelId(content_id, numerics_id if self._config.deterministic else "")
            rows = rows_of(response, expected, model_id, self.peer.teacher_id)
        seconds = now - request.created_at
        return RequestDone(
            request, labels, device_s, draining, seconds, content_id, numerics_id, rows
        )

    def _expected_once_learned(
        self, pending: PendingRequest, response: LabelResponse
    ) -> ExpectedResponse:
        """Repeat a request to find the outputs of a model that does not publish them.

        Returns:
            The properties that responses of this model must have.

        Raises:
            BadAnswer: the responses have different outputs. The repeated requests may raise other
                errors.
        """
        expected = self._template.expected
        if expected.outputs:  # learned since the request was sent
            return expected
        assert self._client is not None
        outputs = [with_requested_names(response, expected)[1]]
        while (step := reachability.believed_outputs(outputs)) == "ask":
            again = self._client.infer(pending.message, self._config.request_timeout_s)
            outputs.append(with_requested_names(again, expected)[1])
        if step == "contradiction":
            first, *_, last = map(list, outputs)
            raise BadAnswer(f"its outputs are {first}, and {last} when asked again")
        self._learned_outputs = outputs[0]
        self._make_template()
        return self._template.expected

    def _thread(self, target: Callable[[], None], role: str) -> None:
        name = f"edl-{role}-{self.peer.teacher_id}"
        threading.Thread(target=target, name=name, daemon=True).start()


def _as_edl_error(error: Exception) -> EdlError:
    """Convert any error of a thread, even a MemoryError, so that it is reported."""
    return (
        error if isinstance(error, EdlError) else RetryableError(f"{type(error).__name__}: {error}")
    )
