"""One teacher as the engine sees it: a connection, its probing, and its requests in flight.

A link decides nothing. It is told to connect and to send, and posts what came of it; who gets which
batch, and when a teacher counts as lost, is the ledger's to say, in the engine's own thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from ...errors import (
    AccessError,
    BadAnswer,
    EdlError,
    RateLimited,
    RequestRefused,
    RetryableError,
    WireError,
)
from ...proto.arena import Arena
from ...proto.clients import Client, Found, open_client
from ...proto.clients.fitting import misfit
from ...proto.lent_arena import LentArena
from ...proto.security import ClientSecurity
from ...scheduler.backoff import delay_s
from .answers import device_seconds, refuse_what_is_not_finite, soft_labels
from .asking import expected_of, request_of
from .outcomes import Broke, Done, Job, Outcome, Peer, Ready

PROBE_TIMEOUT_S = 5.0
#: A teacher that does not let the reader in is asked as rarely: an operator has to mend that.
REFUSED_PAUSE_S = 5.0
#: A teacher that is full is believed no more than this about when it will have room.
FULL_PAUSE_S = 30.0


class Counter:
    """How many are within, each counted from its entry: entering gives the number, oneself too."""

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
    """A connection to `peer`; every outcome is handed to `post(link, outcome)`, by any thread."""

    peer: Peer
    labels: Arena
    window: int
    request_timeout_s: float
    post: Callable[[TeacherLink, Outcome], None]
    security: ClientSecurity | None = None
    batches: LentArena | None = None  # where they lie that need not be sent
    inputs: tuple[str, ...] = ()
    _jobs: SimpleQueue[Job | None] = field(default_factory=SimpleQueue)
    _closed: threading.Event = field(default_factory=threading.Event)
    _client: Client | None = None
    _found: Found = field(default_factory=Found)  # the model, by the latest probe
    _under_way: Counter = field(default_factory=Counter)

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
        if (client := self._client) is not None:
            client.close()

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
            except Exception as error:
                told = _told(error)
                if attempt == 0:
                    self.post(self, Broke(None, told))
                attempt += 1
                self._closed.wait(pause_after(told, attempt))
            else:
                self.post(self, Ready(inputs))
                return

    def _probe(self) -> tuple[str, ...]:
        """Names of the model's inputs; opens the connection where there is none yet."""
        if (client := self._client) is None:
            # In this thread, not at the start: files of credentials may be unreadable.
            peer = self.peer
            batches = None if peer.foreign else self.batches  # only ours know whose memory it is
            client = open_client(peer.protocol, peer.address, peer.model, self.security, batches)
            self._client = client
            if self.closed:
                client.close()
        found = self._found = client.probe(PROBE_TIMEOUT_S)
        return tuple(tensor.name for tensor in found.inputs) or self.peer.inputs

    # --- requests

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome: Outcome = self._request(job)
            except Exception as error:
                outcome = Broke(job, _told(error))
            self.post(self, outcome)

    def _request(self, job: Job) -> Done:
        client = self._client
        assert client is not None  # nothing is sent before a probe has found it ready
        started = time.monotonic()
        try:
            with self._under_way as beside:
                answer = client.infer(
                    request_of(job, self.peer, self._found), self.request_timeout_s
                )
            seconds = time.monotonic() - started
            labels = soft_labels(answer, expected_of(job, self.peer))
        except WireError as error:
            raise BadAnswer(str(error)) from None
        except RateLimited:
            raise
        except RetryableError as error:
            if words := misfit(self._found.inputs, job.inputs):
                raise RequestRefused(f"{words} (the server says: {error})") from None
            raise
        except BadAnswer:
            refuse_what_is_not_finite(job.inputs)  # nonsense in, nonsense out
            raise
        record = self.labels.put(list(labels.values()))
        device_s = device_seconds(answer.parameters, seconds, beside)
        draining = bool(answer.parameters.get("draining", False))
        return Done(job, tuple(labels), record, device_s, draining, time.monotonic() - job.asked_at)

    def _thread(self, target: Callable[[], None], role: str) -> None:
        name = f"edl-{role}-{self.peer.teacher_id}"
        threading.Thread(target=target, name=name, daemon=True).start()


def _told(error: Exception) -> EdlError:
    """What is posted of `error`. Of no memory, for one, too: nothing must be lost in a thread."""
    return (
        error if isinstance(error, EdlError) else RetryableError(f"{type(error).__name__}: {error}")
    )


def pause_after(error: EdlError, failures: int) -> float:
    """Seconds until a teacher is asked again that has failed so often, by `error` this time.

    A teacher that is full and says when it will have room is asked then, however often it was full
    before: it has not failed.
    """
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        return min(error.retry_after_s, FULL_PAUSE_S)
    pause_s = delay_s(failures, random) if failures else 0.0
    return max(pause_s, REFUSED_PAUSE_S) if isinstance(error, AccessError) else pause_s
