"""One teacher as the engine sees it: a connection, its probing, and its requests in flight.

A link decides nothing. It is told to probe and to send, and posts what came of it; who gets which
batch, and when a teacher counts as lost, is the core's to say, in the engine's own thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import Any

from ...errors import (
    BadAnswer,
    EdlError,
    RateLimited,
    RequestRefused,
    RetryableError,
    WireError,
)
from ...proto.clients import (
    LabelRequest,
    LabelResponse,
    ModelDescription,
    TeacherClient,
    input_mismatch,
    open_client,
)
from ...proto.clients.oip_grpc import OipGrpcClient
from ...proto.security import ClientSecurity
from ...proto.shared_buffer import SharedBuffer
from ...scheduler import reachability
from ...scheduler.reader_core.events import Peer
from ..store.rows import Content, Row
from .answers import Expected, device_seconds, named, refuse_what_is_not_finite, soft_labels
from .inbox import Inbox
from .label_cache_thread import rows_of
from .outcomes import LinkFailure, Outcome, RequestDone, TeacherReady, TeacherRequest
from .request_template import RequestTemplate, template_of
from .transport import PendingRequest, Transport

PROBE_TIMEOUT_S = 5.0


class Counter:
    """Counts concurrent users of a `with` block; entering returns the count, itself included."""

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


@dataclass(eq=False)
class TeacherLink:
    """A connection to `peer`; passes every outcome to `post(link, outcome)`, in any thread."""

    peer: Peer
    request_timeout_s: float
    post: Callable[[TeacherLink, Outcome], None]
    security: ClientSecurity | None = None
    batches: SharedBuffer | None = None  # shared memory of batches, if any
    inputs: tuple[str, ...] = ()  # of the model, once probed
    found: ModelDescription = field(
        default_factory=ModelDescription
    )  # the model, by the latest probe
    keeps: bool = False  # split answers into rows for a label store
    exact: bool = False  # labels of other numerics are other labels
    inbox: Inbox | None = None  # of the sending thread; None: it polls no sockets
    number: int = 0  # of the connection in the core
    _jobs: SimpleQueue[TeacherRequest | None] = field(default_factory=SimpleQueue)
    _closed: threading.Event = field(default_factory=threading.Event)
    _client: TeacherClient | None = None
    _transport: Transport | None = None
    _template: tuple[tuple[Any, ...], RequestTemplate] | None = (
        None  # the latest, and what it stands on
    )
    _agreed: tuple[str, ...] = ()  # names of its outputs, if the server does not publish them
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unfinished: int = 0  # jobs
    _senders: int = 0  # threads
    _under_way: Counter = field(default_factory=Counter)

    def probe(self) -> None:
        """Ask the teacher once whether it serves, and post `TeacherReady` or what went wrong."""
        try:
            self._thread(self._post_probe, "prober")
        except RuntimeError as error:  # the system starts no thread
            self.post(self, LinkFailure(None, _told(error)))

    def send(self, job: TeacherRequest) -> None:
        """Send `job`, and post what comes of it."""
        transport, template = self._transport, self._template_of(job)
        if transport is None or not transport.ask(job, template, self.request_timeout_s):
            self._hand_to_thread(job)

    def check_deadlines(self, now: float) -> None:
        """Fail requests whose deadline has passed."""
        if self._transport is not None:
            self._transport.check_deadlines(now)

    def _hand_to_thread(self, job: TeacherRequest) -> None:
        """Send by a thread; starts another one if all are busy."""
        with self._lock:
            self._unfinished += 1
            if self._unfinished > self._senders:
                try:
                    self._thread(self._work, "sender")
                except RuntimeError as error:  # the system starts none
                    if not self._senders:
                        self._unfinished -= 1
                        self.post(self, LinkFailure(job, _told(error)))
                        return
                else:
                    self._senders += 1
        self._jobs.put(job)

    def close(self) -> None:
        """End the connection; requests in flight fail."""
        self._closed.set()
        if self._transport is not None:
            self._transport.close()
        for _ in range(self._senders):
            self._jobs.put(None)
        if (client := self._client) is not None:
            client.close()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    # --- probing

    def _post_probe(self) -> None:
        outcome: Outcome
        try:
            outcome = TeacherReady(self._probe())
        except Exception as error:
            outcome = LinkFailure(None, _told(error))
        if not self.closed:
            self.post(self, outcome)

    def _probe(self) -> tuple[str, ...]:
        """Names of the model's inputs; opens the connection if there is none yet."""
        if (client := self._client) is None:
            # In this thread, not at the start: files of credentials may be unreadable.
            peer = self.peer
            client = open_client(peer.protocol, peer.address, peer.model, self.security)
            self._client = client
            if isinstance(client, OipGrpcClient) and self.inbox is not None and not peer.foreign:
                self._transport = Transport(
                    self.inbox, self._on_answer, partial(self.post, self), self._hand_to_thread
                )
            if self.closed:
                client.close()
        found = self.found = client.probe(PROBE_TIMEOUT_S)
        self._open_connection()
        return tuple(tensor.name for tensor in found.inputs) or self.peer.inputs

    # --- requests

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome: Outcome = self._request(job)
            except Exception as error:
                outcome = LinkFailure(job, _told(error))
            self.post(self, outcome)
            del job, outcome  # not to be held until the next one
            self._open_connection()
            with self._lock:  # from now on it takes another one
                self._unfinished -= 1

    def _request(self, job: TeacherRequest) -> RequestDone:
        client = self._client
        assert client is not None  # nothing is sent before a probe has found it ready
        started = time.monotonic()
        request = self._template_of(job).request(job)
        with self._under_way as beside:
            answer: LabelResponse | EdlError
            try:
                answer = client.infer(request, self.request_timeout_s)
            except EdlError as error:
                answer = error
            return self._checked(PendingRequest(job, request, started, inf, beside), answer)

    def _on_answer(self, pending: PendingRequest, answer: LabelResponse | EdlError) -> Outcome:
        """The outcome of an answer over the transport."""
        try:
            return self._checked(pending, answer)
        except Exception as error:
            return LinkFailure(pending.job, _told(error))

    def _template_of(self, job: TeacherRequest) -> RequestTemplate:
        """The request template: the same for jobs of one size, until the next probe."""
        found, agreed, known = self.found, self._agreed, self._template
        of = (found, agreed, job.fetches, job.forms, job.samples)
        if known is None or known[0] != of:
            known = self._template = (of, template_of(job, self.peer, found, agreed))
        return known[1]

    def _open_connection(self) -> None:
        """Open a connection of the transport, so that requests need no thread."""
        if (transport := self._transport) is not None:
            assert isinstance(self._client, OipGrpcClient)
            transport.open(partial(self._client.connect, self.batches))

    def _checked(self, pending: PendingRequest, answer: LabelResponse | EdlError) -> RequestDone:
        """Check an answer; returns its labels."""
        job, now = pending.job, time.monotonic()
        try:
            if isinstance(answer, EdlError):
                raise answer
            expected = self._template_of(job).expected
            if not expected.outputs:
                self._agreed = self._agree(pending.request, answer, expected)
                expected = self._template_of(job).expected
            labels = soft_labels(answer, expected)
        except WireError as error:
            raise BadAnswer(str(error)) from None
        except RateLimited:
            raise
        except RetryableError as error:
            if words := input_mismatch(self.found.inputs, job.inputs):
                raise RequestRefused(f"{words} (the server says: {error})") from None
            raise
        except BadAnswer:
            refuse_what_is_not_finite(job.inputs)  # nonsense in, nonsense out
            raise
        told = answer.parameters.get("device_seconds")
        device_s = device_seconds(told, now - pending.at, pending.beside)
        draining = bool(answer.parameters.get("draining", False))
        content_id = str(answer.parameters.get("content_id", "")) or self.peer.content_id
        numerics_id = str(answer.parameters.get("numerics_id", "")) or self.peer.numerics_id
        rows: Sequence[Row] = ()
        if self.keeps and content_id:
            content = Content(content_id, numerics_id if self.exact else "")
            rows = rows_of(answer, expected, content, self.peer.teacher_id)
        took_s = now - job.asked_at
        return RequestDone(job, labels, device_s, draining, took_s, content_id, numerics_id, rows)

    def _agree(
        self, request: LabelRequest, answer: LabelResponse, expected: Expected
    ) -> tuple[str, ...]:
        """The names of the outputs of an undescribed model, confirmed by repeated answers.

        Raises:
            BadAnswer: the answers differ.
        """
        assert self._client is not None
        told = [named(answer, expected)[1]]
        while (step := reachability.believed_outputs(told)) == "ask":
            again = self._client.infer(request, self.request_timeout_s)
            told.append(named(again, expected)[1])
        if step == "contradiction":
            first, *_, last = map(list, told)
            raise BadAnswer(f"its outputs are {first}, and {last} when asked again")
        return told[0]

    def _thread(self, target: Callable[[], None], role: str) -> None:
        name = f"edl-{role}-{self.peer.teacher_id}"
        threading.Thread(target=target, name=name, daemon=True).start()


def _told(error: Exception) -> EdlError:
    """`error` as an EdlError: no failure of a thread may get lost, not even a MemoryError."""
    return (
        error if isinstance(error, EdlError) else RetryableError(f"{type(error).__name__}: {error}")
    )
