"""A student's subscription to a service manager. It survives outages of managers and Redis."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import grpc

from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION, check_version
from ...proto.security.client_connections import open_channel
from ...proto.security.credentials import ClientSecurity
from ...runtime.errors import AccessError, EdlError, UnavailableError
from ...scheduler.backoff import delay_s
from ...scheduler.leadership import rank_servers
from ..registry import Registry, connect
from .discovery import (
    BEAT_METADATA,
    CHANNEL_OPTIONS,
    SECRET_METADATA,
    call_error,
    initial_metadata,
    live_managers,
    stub,
)

log = logging.getLogger(__name__)

#: Exponential backoff between attempts, in seconds: base and cap.
_BASE_S: Final = 0.1
_CAP_S: Final = 2.0
#: Seconds for which a manager that failed is tried last.
_SHUN_S: Final = 10.0
#: Seconds between reports until the manager sends its interval, and the longest accepted interval.
_BEAT_S: Final = 1.0
_MAX_BEAT_S: Final = 3600.0


@dataclass(slots=True)
class _Stream:
    """The state of a stream to one manager.

    Attributes:
        opened: the manager has sent the student's secret. Reports wait for this: the first report
            binds the student to the secret, and a student without the secret is then refused.
        ended: the stream is over.
        beat_s: seconds between reports.
    """

    opened: bool = False
    ended: bool = False
    beat_s: float = _BEAT_S


def try_subscribing(address: str, security: ClientSecurity | None = None) -> None:
    """Check that the manager at `address` accepts our subscriptions; create none.

    Raises:
        CoordinatorUnavailable: it does not answer in time.
        EdlError: it refuses them.
    """
    finished = threading.Event()

    def no_reports() -> Iterator[pb.StudentReport]:
        finished.wait()
        yield from ()

    try:
        with open_channel(address, security, CHANNEL_OPTIONS) as channel:
            initial_metadata(stub(channel).Subscribe(no_reports()), address)
    finally:
        finished.set()


def _beat_s(text: str) -> float:
    """Return the manager's interval in seconds; the default if it is invalid."""
    try:
        beat_s = float(text)
    except ValueError:
        return _BEAT_S
    return beat_s if math.isfinite(beat_s) and 0.01 <= beat_s <= _MAX_BEAT_S else _BEAT_S


class Subscription:
    """Sends reports of a student to a live service manager and receives its assignments.

    It retries without limit: while Redis or all managers are unreachable, the student keeps its
    teachers, and `why` has the reason. Only these end the subscription and set `error`: a newer
    incarnation of the student, a manager that refuses its reports or has another version of the
    protocol, refused credentials, and an invalid `url` or `security`. After the first assignment,
    refused credentials only cause retries, because the token may be about to be replaced.

    Students are spread over the managers by rendezvous hashing; any manager can serve any
    student. The methods may be called from any thread.

    Args:
        url: Redis URL of the mesh.
        service: name of the service.
        student_id: `job/rank`.
        security: how to call managers; None: neither TLS nor token.
        on_failed: called once, in the subscription's thread, after an error has ended it.
    """

    def __init__(
        self,
        url: str,
        service: str,
        student_id: str,
        *,
        security: ClientSecurity | None = None,
        on_failed: Callable[[EdlError], None] | None = None,
    ) -> None:
        self._url = url
        self._service = service
        self._student_id = student_id
        self._security = security
        self._on_failed = on_failed
        self._on_assignment: Callable[[pb.Assignment], None] = lambda assignment: None
        self._changed = threading.Condition()
        self._latest: pb.StudentReport | None = None
        self._number = 0  # of the latest report
        self._stopping = threading.Event()
        self._call: Any = None  # of the current stream
        self._secret = ""
        self._incarnation = 0
        self._version = (0, 0)  # (term, counter) of the latest assignment
        self._shunned: dict[str, float] = {}  # address of a manager -> until when it is tried last
        self._accepted = False  # whether a manager has sent an assignment
        self._why = "no report was made yet"
        self._logged_refusal = ""  # the logged reason; empty once a manager has accepted us
        self._error: EdlError | None = None
        self._rng = random.Random()
        self._thread = threading.Thread(
            target=self._run, name=f"edl-subscription-{service}", daemon=True
        )

    @property
    def why(self) -> str:
        """Why the student receives no assignments now, as text; empty: it receives them."""
        return self._why

    @property
    def error(self) -> EdlError | None:
        """The error that ended the subscription; None: there was none.

        One of LeaseSuperseded, VersionMismatch, RequestRefused, AccessError; UsageError: `url` is
        invalid, or a file of `security` cannot be used.
        """
        return self._error

    def start(self, on_assignment: Callable[[pb.Assignment], None]) -> None:
        """Start the subscription; it calls `on_assignment` in its own thread.

        Assignments come in the order of their versions (term, counter).
        """
        self._on_assignment = on_assignment
        self._thread.start()

    def report(self, report: pb.StudentReport) -> None:
        """Send a report at once, and again at each interval until it is replaced.

        Service, student id and protocol version are filled in; the incarnation only if it is
        missing, and the version (term, counter) only if it is older than the latest assignment's.
        """
        copy = pb.StudentReport()
        copy.CopyFrom(report)
        copy.protocol_version = PROTOCOL_VERSION
        copy.service, copy.student_id = self._service, self._student_id
        with self._changed:
            self._latest, self._number = copy, self._number + 1
            self._changed.notify_all()

    def stop(self, timeout_s: float = 3.0) -> None:
        """Close the stream, which returns all teachers at once. Idempotent.

        Returns after at most `timeout_s` seconds.
        """
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s / 2)
            if self._thread.is_alive() and (call := self._call) is not None:
                call.cancel()
                self._thread.join(timeout_s / 2)

    # -- the subscription's thread

    def _run(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._latest is not None or self._stopping.is_set())
        if self._stopping.is_set():
            return
        try:
            registry = connect(self._url)  # loads redis
        except EdlError as error:
            self._fail(error)
            return
        with closing(registry):
            self._subscribe(registry)

    def _subscribe(self, registry: Registry) -> None:
        attempt = 0
        while not self._stopping.is_set():
            before = self._version
            try:
                address = self._choose(registry)
                self._incarnation = self._incarnation or _new_incarnation(registry, self._rng)
                self._follow(address)
            except UnavailableError as error:
                self._why = str(error)
                log.debug("%s", error)
            except EdlError as error:
                if not (isinstance(error, AccessError) and self._accepted):
                    self._fail(error)
                    return
                self._why = str(error)
                if self._logged_refusal != self._why:
                    self._logged_refusal = self._why
                    log.warning("the manager refuses student %s: %s", self._student_id, error)
            attempt = 0 if self._version != before else attempt + 1
            self._stopping.wait(delay_s(attempt, self._rng, base_s=_BASE_S, cap_s=_CAP_S))

    def _choose(self, registry: Registry) -> str:
        """Return the first manager in this student's order; recently failed ones come last."""
        now = time.monotonic()
        self._shunned = {a: until for a, until in self._shunned.items() if until > now}
        order = rank_servers(f"{self._service}/{self._student_id}", live_managers(registry))
        return min(order, key=lambda a: self._shunned.get(a, 0.0))

    def _follow(self, address: str) -> None:
        """Subscribe at one manager until the stream ends."""
        self._why = f"service manager {address} has not answered yet"
        stream = _Stream()
        secret = ((SECRET_METADATA, self._secret),) if self._secret else ()
        try:
            with open_channel(address, self._security, CHANNEL_OPTIONS) as channel:
                call = self._call = stub(channel).Subscribe(self._reports(stream), metadata=secret)
                if self._stopping.is_set():
                    return
                metadata = initial_metadata(call, address)
                self._secret = metadata.get(SECRET_METADATA, "") or self._secret
                stream.beat_s = _beat_s(metadata.get(BEAT_METADATA, ""))
                stream.opened = True
                self._wake()  # `_next_report` returns the first report
                try:
                    for assignment in call:
                        self._accept(assignment)
                except grpc.RpcError as error:
                    raise call_error(address, error) from None
        except EdlError:
            if self._stopping.is_set():
                return
            self._shunned[address] = time.monotonic() + _SHUN_S
            raise
        finally:
            self._call = None
            stream.ended = True
            self._wake()  # `_next_report` of this stream returns
        if not self._stopping.is_set():
            self._why = f"service manager {address} ended the subscription; looking for another"

    def _accept(self, assignment: pb.Assignment) -> None:
        check_version(assignment.protocol_version)
        self._accepted, self._why, self._logged_refusal = True, "", ""
        version = (assignment.term, assignment.counter)
        if version < self._version:
            log.debug("assignment %s is older than %s: ignored", version, self._version)
            return
        self._version = version
        try:
            self._on_assignment(assignment)
        except Exception:
            log.exception("the callback of an assignment failed; the subscription continues")

    def _fail(self, error: EdlError) -> None:
        self._error, self._why = error, str(error)
        log.error("the subscription of %s ended: %s", self._student_id, error)
        if self._on_failed is not None:
            self._on_failed(error)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # -- in a thread of gRPC

    def _reports(self, stream: _Stream) -> Iterator[pb.StudentReport]:
        """Yield reports; the end of the iterator closes our side of the stream."""
        sent = 0
        while (numbered := self._next_report(stream, sent)) is not None:
            sent, report = numbered
            yield report

    def _next_report(self, stream: _Stream, sent: int) -> tuple[int, pb.StudentReport] | None:
        """Wait for the next report to send, and return it with its number; None ends the stream.

        The next report is newer than number `sent`. If none comes within one interval, the latest
        report is sent again.
        """

        def ended() -> bool:
            return stream.ended or self._stopping.is_set()

        with self._changed:
            self._changed.wait_for(
                lambda: ended() or (stream.opened and self._number > sent),
                timeout=stream.beat_s if sent else None,
            )
            if ended() or self._latest is None:
                return None
            report = self._latest
            report.incarnation = report.incarnation or self._incarnation
            if (report.term, report.counter) < self._version:
                report.term, report.counter = self._version
            return self._number, report


def _new_incarnation(registry: Registry, rng: random.Random) -> int:
    """Return a number greater than that of each earlier start of the student.

    It is made from Redis's clock, as hosts' clocks differ. A random part distinguishes starts
    within one millisecond.
    """
    return registry.time_ms() * 1000 + rng.randrange(1000)
