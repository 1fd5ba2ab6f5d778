"""A student's side of the control plane: one subscription that outlives managers and Redis."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import CoordinatorUnavailable, EdlError, UnavailableError
from ..proto import coordinator_pb2 as pb
from ..proto.version import PROTOCOL_VERSION, check_version
from ..scheduler.backoff import delay_s
from .discovery import BEAT_METADATA, CHANNEL_OPTIONS, call_error, live_managers, stub
from .registry import connect

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)

_BASE_S, _CAP_S = 0.1, 2.0
_BEAT_S = 1.0  # until the manager says how often
_SHUN_S = 10.0  # how long a manager that failed is asked last


class Subscription:
    """Tells a live service manager how the student is, and hears which teachers to use.

    It never gives up by itself: while Redis or every manager is away, the student keeps what it has
    and `why` says in words what is waited for. Only a newer incarnation of the student, or a
    manager that cannot understand it, end the subscription; then `error` is set.

    Args:
        url: Redis URL of the mesh.
        service: name of the service.
        student_id: `job/rank`.
        on_failed: called once, in the subscription's thread, when it has ended by an error.
    """

    def __init__(
        self,
        url: str,
        service: str,
        student_id: str,
        *,
        on_failed: Callable[[EdlError], None] | None = None,
    ) -> None:
        self._registry = connect(url)
        self._service = service
        self._student_id = student_id
        self._on_failed = on_failed
        self._on_assignment: Callable[[pb.Assignment], None] = lambda assignment: None
        self._changed = threading.Condition()
        self._latest: pb.StudentReport | None = None
        self._number = 0  # of the latest report
        self._stopping = threading.Event()
        self._stream: _Stream | None = None
        self._epoch = (0, 0)
        self._shunned: dict[str, float] = {}
        self._why = "no report was made yet"
        self._error: EdlError | None = None
        self._rng = random.Random()
        self._thread = threading.Thread(
            target=self._run, name=f"edl-subscription-{service}", daemon=True
        )

    @property
    def why(self) -> str:
        """What it waits for, in words; empty when it has an assignment and hears of changes."""
        return self._why

    @property
    def error(self) -> EdlError | None:
        """LeaseSuperseded, VersionMismatch or RequestRefused when it has ended for good."""
        return self._error

    def start(self, on_assignment: Callable[[pb.Assignment], None]) -> None:
        """Begin; `on_assignment` is called in the subscription's thread, newest epoch last."""
        self._on_assignment = on_assignment
        self._thread.start()

    def report(self, report: pb.StudentReport) -> None:
        """Say how the student is: sent at once, and again each beat. The latest one counts.

        Service, student id, protocol version and, where it has none, the epoch are filled in.
        """
        copy = pb.StudentReport()
        copy.CopyFrom(report)
        copy.protocol_version = PROTOCOL_VERSION
        copy.service, copy.student_id = self._service, self._student_id
        with self._changed:
            self._latest, self._number = copy, self._number + 1
            self._changed.notify_all()

    def stop(self, timeout_s: float = 3.0) -> None:
        """Close the stream, which gives all teachers back at once. Idempotent."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s / 2)
            if self._thread.is_alive() and (stream := self._stream) is not None:
                stream.cancel()
                self._thread.join(timeout_s / 2)
        self._registry.close()

    # -- its thread

    def _run(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            epoch = self._epoch
            try:
                self._follow(self._choose())
            except UnavailableError as error:
                self._why = str(error)
                log.debug("%s", error)
            except EdlError as error:
                self._fail(error)
                return
            attempt = 0 if self._epoch != epoch else attempt + 1
            self._stopping.wait(delay_s(attempt, self._rng, base_s=_BASE_S, cap_s=_CAP_S))

    def _choose(self) -> str:
        now = time.monotonic()
        self._shunned = {a: until for a, until in self._shunned.items() if until > now}
        addresses = live_managers(self._registry)
        return min(addresses, key=lambda a: (self._shunned.get(a, 0.0), addresses.index(a)))

    def _follow(self, address: str) -> None:
        """Subscribe at one manager until the stream ends."""
        import grpc

        self._why = f"service manager {address} has not answered yet"
        with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stream = self._stream = _Stream(channel, self._reports)
            try:
                for assignment in stream.assignments():
                    self._take(assignment)
            except grpc.RpcError as error:
                if not self._stopping.is_set():
                    self._shunned[address] = time.monotonic() + _SHUN_S
                    raise call_error(address, error) from None
            finally:
                stream.ended = True
                self._stream = None
                with self._changed:
                    self._changed.notify_all()
        if not self._stopping.is_set():
            self._why = f"service manager {address} ended the subscription; looking for another"

    def _take(self, assignment: pb.Assignment) -> None:
        check_version(assignment.protocol_version)
        epoch = (assignment.term, assignment.counter)
        if epoch < self._epoch:
            log.debug("assignment %s is older than %s: ignored", epoch, self._epoch)
            return
        self._epoch, self._why = epoch, ""
        try:
            self._on_assignment(assignment)
        except Exception:
            log.exception("the callback of an assignment failed; the subscription goes on")

    def _fail(self, error: EdlError) -> None:
        self._error, self._why = error, str(error)
        log.error("the subscription of %s ended: %s", self._student_id, error)
        if self._on_failed is not None:
            self._on_failed(error)

    def _reports(self, stream: _Stream) -> Iterator[pb.StudentReport]:
        """What goes up one stream; runs in a thread of gRPC's. Its end closes our side."""
        sent = 0
        while True:
            with self._changed:
                self._await_news(stream, sent)
                if self._over(stream) or self._latest is None:
                    return
                sent, report = self._number, self._latest
                if (report.term, report.counter) < self._epoch:
                    report.term, report.counter = self._epoch
            yield report

    def _await_news(self, stream: _Stream, sent: int) -> None:
        """Until there is a report after `sent`, or it is time to repeat the latest."""
        self._changed.wait_for(
            lambda: self._over(stream) or self._number > sent,
            timeout=stream.beat_s if sent else None,
        )

    def _over(self, stream: _Stream) -> bool:
        return stream.ended or self._stopping.is_set()


class _Stream:
    """One call of Subscribe."""

    def __init__(
        self,
        channel: grpc.Channel,
        reports: Callable[[_Stream], Iterator[pb.StudentReport]],
    ) -> None:
        self.ended = False
        self.beat_s = _BEAT_S
        self._call = stub(channel).Subscribe(reports(self))

    def assignments(self) -> Iterator[pb.Assignment]:
        """What comes down; raises grpc.RpcError."""
        for name, value in self._call.initial_metadata() or ():
            if name == BEAT_METADATA:
                self.beat_s = float(value)
        yield from self._call

    def cancel(self) -> None:
        self._call.cancel()


def fetch_status(url: str, service: str = "", timeout_s: float = 5.0) -> pb.MeshStatus:
    """Ask a live manager who is alive and who serves whom.

    Args:
        url: Redis URL of the mesh.
        service: one service; empty for all.
        timeout_s: seconds to wait for each manager.

    Raises:
        RegistryUnavailable: Redis does not answer.
        CoordinatorUnavailable: no manager is registered, or none answers.
    """
    import grpc

    registry = connect(url)
    failures = []
    try:
        for address in live_managers(registry):
            with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
                try:
                    status: pb.MeshStatus = stub(channel).Status(
                        pb.StatusRequest(service=service), timeout=timeout_s
                    )
                except grpc.RpcError as error:
                    failures.append(call_error(address, error))
                else:
                    return status
    finally:
        registry.close()
    raise CoordinatorUnavailable("; ".join(str(failure) for failure in failures))
