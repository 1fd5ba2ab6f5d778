"""Between the requests and the devices: lets wait, merges, hands over, and answers each.

What goes when, and where, is decided by `scheduler.batching`; this file carries it out. The first
request of a batch does the work for all of them, on its own thread: it copies their inputs into the
device's memory, and waits. So nothing stands between an arrival and its device but a lock, and a
device has its next job before it has finished the one before. One thread more looks when time alone
changes something: a delay or a deadline that is over.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..errors import DeadlineExceeded, EdlError, RetryableError
from ..proto.arena import Array
from ..scheduler.batching import BatchRule, Waiting, decide
from ..scheduler.lanes import Lane
from .pool import PredictorPool
from .predictor_session import Answer, Ready
from .request import Request
from .slots import Slots
from .wanted import Wanted

#: Jobs at one predictor: the one that it runs, and the next, whose inputs lie ready.
READ_AHEAD: Final = 2


class Meter(Protocol):
    """Who is told what becomes of requests; from any thread."""

    def dispatched(self, samples: int, queue_s: Sequence[float]) -> None:
        """A job of `samples` goes to a device; so long each of its requests has waited."""

    def expired(self) -> None:
        """A request's deadline was over before it was computed."""


@dataclass(eq=False, slots=True)
class _Ticket:
    """One request inside: first its turn comes, and with it perhaps a batch to lead."""

    request: Request
    waiting: Waiting
    turn: Future[_Job | None] = field(default_factory=Future)
    outcome: Future[Answer] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Job:
    lane: int
    tickets: tuple[_Ticket, ...]

    @property
    def samples(self) -> int:
        return sum(ticket.waiting.samples for ticket in self.tickets)


class Batcher:
    """Labels requests by a pool of predictors; any thread may call, and waits for its labels.

    Args:
        pool: the predictors.
        slots: requests that wait or are labelled at once; one more is refused.
        rule: how requests are merged.
        meter: told what becomes of requests.
        clock: seconds, monotonic: that of the deadlines.
    """

    def __init__(
        self,
        pool: PredictorPool,
        slots: int,
        rule: BatchRule,
        meter: Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._slots = Slots(slots, lambda: pool.t_t_s / max(pool.lanes, 1), clock)
        self._rule = rule
        self._meter = meter
        self._clock = clock
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._line: dict[int, _Ticket] = {}  # in the order in which they came
        self._at_lane: list[list[_Job]] = [[] for _ in pool.ready_lanes()]
        self._look_again_s = math.inf
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="batcher", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether requests are taken now."""
        return self._pool.ready

    @property
    def lanes(self) -> int:
        """Requests, or batches of them, that are computed side by side: devices."""
        return self._pool.lanes

    @property
    def t_t_s(self) -> float:
        """Device time in seconds per sample of one lane."""
        return self._pool.t_t_s

    def require_loaded(self) -> Ready:
        """The model; raises RetryableError while it is not known."""
        return self._pool.require_loaded()

    def start(self) -> None:
        """Take requests."""
        self._thread.start()

    def stop(self) -> None:
        """End those that wait, by RetryableError."""
        with self._changed:
            self._closed = True
            self._fail_line(RetryableError("this teacher has left: ask another one"))
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def devices_changed(self) -> None:
        """A predictor has come or gone."""
        with self._changed:
            self._look()

    @contextmanager
    def label(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[Wanted],
        deadline_s: float | None = None,
    ) -> Iterator[Answer]:
        """Have one request labelled.

        Args:
            inputs: validated, the batch along axis 0.
            outputs: what to answer with.
            deadline_s: on the monotonic clock: it is not computed after that; None: at any time.

        Raises:
            Overloaded: all slots are taken.
            DeadlineExceeded: its deadline was over before it was computed.
            RetryableError: no predictor is ready, or the one that had it ended meanwhile.
            RequestRefused: the model cannot take these values.
            BadAnswer: the labels are not finite.
        """
        self._pool.require_loaded()
        request = Request(inputs, outputs, math.inf if deadline_s is None else deadline_s)
        with self._slots.take(request.samples):
            answer = self._labelled(request)
            try:
                yield answer
            finally:
                answer.release()

    def _labelled(self, request: Request) -> Answer:
        ticket = self._enqueue(request)
        try:
            job = ticket.turn.result()
            if job is not None:
                self._carry_out(job)
            return ticket.outcome.result()
        except DeadlineExceeded:
            self._meter.expired()
            raise

    def _enqueue(self, request: Request) -> _Ticket:
        with self._changed:
            if self._closed or not self._pool.ready:
                raise RetryableError("the predictor is restarting")
            waiting = Waiting(
                next(self._numbers),
                request.shape,
                request.samples,
                self._clock(),
                request.deadline_s,
            )
            self._line[waiting.number] = ticket = _Ticket(request, waiting)
            self._look()
        return ticket

    def _carry_out(self, job: _Job) -> None:
        """Have `job` labelled and give each of its requests what it gets."""
        results: Sequence[Answer | EdlError]
        try:
            results = self._pool.run(job.lane, [ticket.request for ticket in job.tickets])
        except EdlError as error:
            results = [error] * len(job.tickets)
        except Exception as error:  # no memory, for one: nobody may wait for ever
            lost = RetryableError(f"the job was lost: {type(error).__name__}: {error}")
            results = [lost] * len(job.tickets)
        with self._changed:
            self._at_lane[job.lane].remove(job)
            self._look()
        for ticket, result in zip(job.tickets, results, strict=True):
            if isinstance(result, Answer):
                ticket.outcome.set_result(result)
            else:
                ticket.outcome.set_exception(result)

    # --- under the lock

    def _look(self) -> None:
        """Decide, and carry out what can be done without waiting."""
        if not self._pool.ready:
            self._fail_line(RetryableError("the predictor is restarting"))
        now = self._clock()
        line = [ticket.waiting for ticket in self._line.values()]
        decision = decide(self._rule, line, self._lanes(), now)
        for number in decision.expired:
            error = DeadlineExceeded("its deadline was over before its turn came")
            self._line.pop(number).turn.set_exception(error)
        for batch in decision.batches:
            tickets = tuple(self._line.pop(number) for number in batch.requests)
            job = _Job(batch.lane, tickets)
            self._at_lane[batch.lane].append(job)
            self._meter.dispatched(job.samples, [now - t.waiting.arrived_s for t in tickets])
            tickets[0].turn.set_result(job)
            for ticket in tickets[1:]:
                ticket.turn.set_result(None)
        earlier = decision.look_again_s < self._look_again_s
        self._look_again_s = decision.look_again_s
        if earlier:
            self._changed.notify_all()

    def _lanes(self) -> list[Lane]:
        return [
            Lane(
                READ_AHEAD - len(jobs) if ready else 0,
                sum(job.samples for job in jobs),
                self._pool.lane_t_t_s(index),
            )
            for index, (ready, jobs) in enumerate(
                zip(self._pool.ready_lanes(), self._at_lane, strict=True)
            )
        ]

    def _fail_line(self, error: EdlError) -> None:
        for ticket in self._line.values():
            ticket.turn.set_exception(error)
        self._line.clear()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                left_s = self._look_again_s - self._clock()
                if left_s > 0:
                    self._changed.wait(None if left_s == math.inf else left_s)
                else:
                    self._look()
