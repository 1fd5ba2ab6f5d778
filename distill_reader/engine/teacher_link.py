"""One teacher as the engine sees it: a connection, its probing, and its requests in flight.

A link decides nothing. It is told to connect and to send, and posts what came of it; who gets which
batch, and when a teacher counts as lost, is the ledger's to say, in the engine's own thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc

from ...errors import (
    AccessError,
    BadAnswer,
    EdlError,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    WireError,
)
from ...proto import inference_pb2 as pb
from ...proto import inference_pb2_grpc as oip
from ...proto import tensors
from ...proto.arena import Arena, Array, Record
from ...proto.security import ClientSecurity, open_channel
from ...proto.status import from_status
from ...scheduler.backoff import delay_s
from ..label_forms import AS_GIVEN, LabelForms
from .answers import Expected, device_seconds, refuse_what_is_not_finite, soft_labels

_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, closed with the link
    ("grpc.enable_retries", 0),  # the ledger resends, and counts it
]
PROBE_TIMEOUT_S = 5.0
#: A teacher that does not let the reader in is asked as rarely: an operator has to mend that.
REFUSED_PAUSE_S = 5.0
#: A teacher that is full is believed no more than this about when it will have room.
FULL_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a teacher is; what is not known of one that was only named by address is empty."""

    teacher_id: str
    address: str
    model: str
    incarnation: int = 0
    content_id: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One request: a batch for a teacher."""

    number: int
    inputs: Mapping[str, Array]
    fetches: tuple[str, ...]
    samples: int
    forms: LabelForms = AS_GIVEN
    asked_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Ready:
    """The teacher answers; `inputs` are the names of its model's inputs."""

    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Labels of a batch lie in the arena."""

    job: Job
    names: tuple[str, ...]
    record: Record
    device_s: float
    draining: bool
    seconds: float  # since it was asked


@dataclass(frozen=True, slots=True)
class Broke:
    """A request, or the connection when `job` is None, came to nothing."""

    job: Job | None
    error: EdlError


Outcome = Ready | Done | Broke


@dataclass(eq=False)
class TeacherLink:
    """A connection to `peer`; every outcome is handed to `post(link, outcome)`, by any thread."""

    peer: Peer
    labels: Arena
    window: int
    request_timeout_s: float
    post: Callable[[TeacherLink, Outcome], None]
    security: ClientSecurity | None = None
    inputs: tuple[str, ...] = ()
    _jobs: SimpleQueue[Job | None] = field(default_factory=SimpleQueue)
    _closed: threading.Event = field(default_factory=threading.Event)
    _channel: grpc.Channel | None = None
    _outputs: tuple[str, ...] = ()  # of the model, as the latest probe has found them

    def __post_init__(self) -> None:
        for _ in range(self.window):
            self._thread(self._work, "sender")

    def connect(self, pause_s: float = 0.0) -> None:
        """Probe the teacher until it answers, then post `Ready`; first pause for so long."""
        self._thread(partial(self._probe_until_ready, pause_s), "prober")

    def send(self, job: Job) -> None:
        """Have one of `window` threads send `job` and post what comes of it."""
        self._jobs.put(job)

    def close(self) -> None:
        """End the connection; requests in flight break."""
        self._closed.set()
        for _ in range(self.window):
            self._jobs.put(None)
        if (channel := self._channel) is not None:
            channel.close()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    # --- probing

    def _probe_until_ready(self, pause_s: float) -> None:
        self._closed.wait(pause_s)
        attempt = 0
        while not self._closed.is_set():
            try:
                inputs = self._probe()
            except EdlError as error:
                if attempt == 0:
                    self.post(self, Broke(None, error))
                attempt += 1
                self._closed.wait(pause_after(error, attempt))
            else:
                self.post(self, Ready(inputs))
                return

    def _dial(self) -> None:
        """Open the connection, by the thread that probes: files of credentials may be unreadable.

        Raises:
            UsageError: they are.
        """
        channel = open_channel(self.peer.address, self.security, _CHANNEL_OPTIONS)
        self._stub: Any = oip.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        self._infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=None,  # bytes as they are: our codec has made them
            response_deserializer=None,
        )
        self._channel = channel
        if self.closed:
            channel.close()

    def _probe(self) -> tuple[str, ...]:
        name = self.peer.model
        if self._channel is None:
            self._dial()
        try:
            ready = self._stub.ModelReady(pb.ModelReadyRequest(name=name), timeout=PROBE_TIMEOUT_S)
            if not ready.ready:
                raise RetryableError(f"model {name!r} is not ready there")
            metadata = self._stub.ModelMetadata(
                pb.ModelMetadataRequest(name=name), timeout=PROBE_TIMEOUT_S
            )
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed
            raise _translated(error) from None
        self._outputs = tuple(tensor.name for tensor in metadata.outputs)
        return tuple(tensor.name for tensor in metadata.inputs)

    # --- requests

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome: Outcome = self._request(job)
            except EdlError as error:
                outcome = Broke(job, error)
            except Exception as error:  # no memory, for one: a batch must not be lost in here
                outcome = Broke(job, RetryableError(f"{type(error).__name__}: {error}"))
            self.post(self, outcome)

    def _request(self, job: Job) -> Done:
        request = self._encoded(job)
        started = time.monotonic()
        try:
            reply = self._infer(request, timeout=self.request_timeout_s)
        except (grpc.RpcError, ValueError) as error:
            raise _translated(error) from None
        seconds = time.monotonic() - started
        try:
            answer = tensors.decode_response(reply)
            labels = soft_labels(answer, self._expected(job))
        except WireError as error:
            raise BadAnswer(str(error)) from None
        except BadAnswer:
            refuse_what_is_not_finite(job.inputs)  # nonsense in, nonsense out
            raise
        record = self.labels.put(list(labels.values()))
        device_s = device_seconds(answer.parameters, seconds)
        draining = bool(answer.parameters.get("draining", False))
        return Done(job, tuple(labels), record, device_s, draining, time.monotonic() - job.asked_at)

    def _encoded(self, job: Job) -> bytes:
        peer = self.peer
        instance = {"teacher_id": peer.teacher_id, "incarnation": str(peer.incarnation)}
        outputs = job.fetches or self._outputs
        asked = {name: job.forms.of(name) for name in outputs}
        forms = {name: form.parameters() for name, form in asked.items() if form is not None}
        try:
            return tensors.encode_request(
                model_name=peer.model,
                inputs=job.inputs,
                outputs=outputs if forms else job.fetches,
                output_parameters=forms,
                request_id=str(job.number),
                parameters=instance if peer.incarnation else {},
            )
        except WireError as error:  # what cannot be sent here can be sent nowhere
            raise RequestRefused(f"it cannot be sent: {error}") from None

    def _expected(self, job: Job) -> Expected:
        peer = self.peer
        teacher_id = peer.teacher_id if peer.incarnation else ""
        return Expected(
            teacher_id, peer.incarnation, peer.content_id, job.fetches, job.samples, job.forms
        )

    def _thread(self, target: Callable[[], None], role: str) -> None:
        name = f"edl-{role}-{self.peer.teacher_id}"
        threading.Thread(target=target, name=name, daemon=True).start()


def pause_after(error: EdlError, failures: int) -> float:
    """Seconds until a teacher is asked again that has failed so often, by `error` this time.

    A teacher that is full and says when it will have room is asked then, however often it was full
    before: it has not failed.
    """
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        return min(error.retry_after_s, FULL_PAUSE_S)
    pause_s = delay_s(failures, random) if failures else 0.0
    return max(pause_s, REFUSED_PAUSE_S) if isinstance(error, AccessError) else pause_s


def _translated(error: Any) -> EdlError:
    if isinstance(error, ValueError):
        return TeacherLost("the connection is closed")
    return from_status(error.code(), error.details() or "", error.trailing_metadata() or ())
