"""The reader core: decides for one reader and one service; takes events, returns instructions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple, assert_never

from .. import flow, stream_stats
from ..backoff import RandomLike
from ..canaries import CanaryConfig
from ..debounce import Starvation
from ..flow import FlowConfig, FlowDecision, FlowMemory, FlowView
from ..ledger import Ledger
from ..ledger import events as ev
from ..ledger.view import LedgerLoad
from ..stream_stats import Measured, SampleTimes, StreamProfile, StreamStats
from . import events
from .hedging import LOOK_EVERY_S
from .instructions import (
    Discard,
    DropLabels,
    EpochDue,
    Instruction,
    LogLevel,
    LogMessage,
    ReportNow,
    SendRequest,
)
from .model_switch import ModelSwitch, NumericsPin
from .request_pacing import RequestPacing
from .teachers import TeacherStates
from .windows import WindowConfig


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Settings of a reader that affect decisions.

    Attributes:
        service: name of the set of interchangeable teachers.
        flow: thresholds and bounds of Algorithm 1.
        window: bounds of the requests in flight per teacher.
        request_rows: limit of rows per request; "auto": found by measuring; None: a request is one
            batch.
        ordered: the student takes batches in the order of the source.
        deterministic: use only teachers of one numerics_id.
        canaries: settings for comparing teachers' answers; None: compare nothing.
        stored: there is a label store, which is searched before batches are labelled again.
        remembered: number of latest events that `ReaderCore.story` covers; ticks without
            instructions do not count.
    """

    service: str
    flow: FlowConfig
    window: WindowConfig
    request_rows: int | Literal["auto"] | None = None
    ordered: bool = True
    deterministic: bool = False
    canaries: CanaryConfig | None = None
    stored: bool = False
    remembered: int = 4096


class Step(NamedTuple):
    """An event and the instructions that followed; it is not a training step.

    Attributes:
        event_number: number of the event.
        at: its time, by the driver's clock.
        event: the event.
        instructions: in order.
    """

    event_number: int
    at: float
    event: events.Event
    instructions: tuple[Instruction, ...]


class ReaderCore:
    """Decides where rows go, which labels are trusted, and how many teachers are wanted.

    No clock, no I/O; use it from one thread. `now` is in seconds of one clock that does not go
    back.

    Args:
        config: the settings.
        rng: jitters probes, and draws the requests that two teachers label for comparison.

    Attributes:
        config: the settings.
        ledger: the state of each row; drivers only read it.
        stats: measurements of the stream.
        pacing: windows and sizes of requests.
        teachers: membership and health.
        numerics: restricts a deterministic reader to teachers with one numerics_id.
        model_switch: which model the labels come from.
        decision: latest decision of flow control.
        memory: state of flow control between decisions.
        starves: the student starves, as reported to the coordinator.
        is_cut_off: the reader is cut off, as reported to the coordinator; see
            `TeacherStates.cut_off`.
        waiting_since: since when the training loop waits for a batch; None: it does not.
        calls: number of calls outside the training loop that wait for their labels.
        source_ended: the source has nothing more for this epoch.
        epoch: highest (term, counter) of an assignment so far; not an epoch of the data.
        event_number: number of the latest event.
    """

    def __init__(self, config: CoreConfig, rng: RandomLike) -> None:
        self.config = config
        self.ledger = Ledger()
        self.stats = StreamStats()
        self.pacing = RequestPacing(config.window, config.request_rows)
        self.teachers = TeacherStates(
            self.ledger,
            self.pacing,
            self.stats,
            config.canaries,
            rng,
            self._emit,
            self._apply,
            self._log,
        )
        self._links = self.teachers.links
        self.numerics = NumericsPin(config.deterministic)
        self.model_switch = ModelSwitch(self.numerics, self._log)
        self.memory = FlowMemory()
        self.decision = FlowDecision(0, config.flow.teachers_min)
        self.starves = self.is_cut_off = False
        self.waiting_since: float | None = None
        self.calls = 0
        self.source_ended = False
        self.assignment_version = (0, 0)
        self.event_number = 0
        self._starvation = Starvation()
        self._profile: StreamProfile | None = None
        self._wall_ahead_s = 0.0  # wall clock minus the driver's clock
        self._out: list[Instruction] = []  # instructions that follow from the current event
        self._now = 0.0
        self._load: LedgerLoad | None = None  # None: the inputs of decisions may have changed
        self._times = SampleTimes(None, None)
        self._pace_s: float | None = None  # `StreamStats.pace_s` of these times
        self._awaited = 0  # number of teachers in the ledger's latest `Awaited`
        self._epoch_due = False  # `EpochDue` was emitted in this epoch
        self._looked_at = -inf
        self._reported: tuple[object, ...] = ()  # what a report contains, as last decided
        #: The fields of each `Step`; objects are only made on demand.
        self._steps = deque[tuple[int, float, events.Event, list[Instruction]]](
            maxlen=config.remembered
        )

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Handle one event; return the instructions that follow, in order.

        Raises:
            ValueError: the event is impossible; see `Ledger.handle`.
        """
        out: list[Instruction] = []
        self._out, self._now = out, now
        self.event_number += 1
        match event:
            case events.Tick():
                if now - self._looked_at >= LOOK_EVERY_S:
                    self._look(event, now)
                self._decide(event, now)
            case events.AnswerCame():
                self._on_answer(event, now)
            case (
                events.Queued()
                | events.Released()
                | events.StoreSearched()
                | events.BatchRestored()
                | events.InvalidateBatch()
                | events.DeliverUnlabelled()
            ):
                self._apply(event)
            case events.Pulled(source_s, samples, rows):
                self.source_ended = False
                self.pacing.record_batch(rows)
                self.stats.pulled(source_s, samples)
                self._load = None
            case events.BatchTaken():
                self._on_batch_taken(event, now)
            case events.Called(samples, rows):
                self.calls += 1
                self.pacing.record_batch(rows)
                self.stats.called(samples, now)
            case events.CallEnded(batch, samples):
                self.calls -= 1
                if samples:
                    self.stats.taken(samples, now)
                self._apply(ev.BatchConsumed(batch))
            case events.LoopWaiting(waits):
                self.waiting_since = now if waits else None
            case events.RequestFailed():
                if self._links.record_message(event.teacher, event.link):
                    self.teachers.failed(event, now)
            case events.Probed():
                if self._links.record_message(event.teacher, event.link):
                    self._on_probed(event, now)
            case events.ProbeFailed():
                if self._links.record_message(event.teacher, event.link):
                    self.teachers.probe_failed(event, now)
            case events.PathsTried():
                self.teachers.paths_tried(event, now)
            case events.Assigned():
                self.assignment_version = max(self.assignment_version, event.epoch)
                self._follow(self.model_switch.assigned(event, now), now)
            case events.Cancelled():
                self.teachers.cancelled(event, now)
            case events.SourceEnded():
                self.source_ended = True
            case events.EpochBegan(data_epoch):
                self._on_epoch(data_epoch, now)
            case events.EngineResumed():
                self._on_resumed(event, now)
            case events.ProfileLoaded(profile, wall_s):
                self._profile, self._wall_ahead_s = profile, wall_s - now
                self._load = None
            case _:
                assert_never(event)
        links = self._links
        if now >= links.next_probe_at:
            links.start_probes(now)
        if len(links.unanswered) != self._awaited:
            self._update_awaited()
        if self.config.remembered and (out or not isinstance(event, events.Tick)):
            self._steps.append((self.event_number, now, event, out))
        return out

    # --- read access

    @property
    def content_id(self) -> str:
        """Content to report to the coordinator; empty: unknown, or the student waits to move."""
        return self.model_switch.state.reported

    @property
    def lacks_labels(self) -> bool:
        """Whether the training loop waits for labels of this service."""
        is_waiting = self.waiting_since is not None
        return is_waiting and not self.ledger.has_next(ordered=self.config.ordered)

    @property
    def unavailable(self) -> frozenset[str]:
        """Assigned teachers that give no labels; see `TeacherLinks.unavailable`."""
        return self._links.unavailable

    def measured(self, content_id: str) -> Measured:
        """Return the measurements of the student, and of its teachers, which serve `content_id`."""
        stats = self.stats
        return Measured(stats.t_t_s, stats.answers, stats.t_s_s, stats.steps, content_id)

    def story(self, batch: int) -> list[Step]:
        """Return the latest events and instructions that concern a batch.

        Other instructions of the same steps are left out.
        """
        steps = []
        for event_number, at, event, out in self._steps:
            instructions = tuple(item for item in out if batch in _batches_of(item))
            if instructions or batch in _batches_of(event):
                steps.append(Step(event_number, at, event, instructions))
        return steps

    # --- the stream

    def _on_batch_taken(self, event: events.BatchTaken, now: float) -> None:
        self.waiting_since = None
        if event.step_s is not None:
            self.stats.step(event.step_s, event.samples)
        self.stats.taken(event.samples, now)
        if not self.model_switch.kinds.is_firm:
            self.model_switch.labelled()
        self._apply(ev.BatchConsumed(event.batch))

    def _on_epoch(self, data_epoch: int, now: float) -> None:
        self.teachers.comparisons.clear()
        self.waiting_since = None
        self.source_ended = self._epoch_due = False
        self.calls = 0
        self.stats.begin()
        self._apply(ev.Reset())
        self._follow(self.model_switch.epoch_began(data_epoch, now), now)

    def _on_resumed(self, event: events.EngineResumed, now: float) -> None:
        self.assignment_version = max(self.assignment_version, event.left.assigned.epoch)
        self.source_ended = event.ended
        self.waiting_since = now if event.waiting else None
        self._follow(self.model_switch.resumed(event.data_epoch, event.left, now), now)

    def _on_probed(self, probed: events.Probed, now: float) -> None:
        if not probed.misfit:
            misfit = self.model_switch.record_kinds(probed.teacher, probed.kinds)
            probed = probed._replace(misfit=misfit)
        self.teachers.probed(probed, now)

    def _on_answer(self, answer: events.AnswerCame, now: float) -> None:
        name, teachers = answer.teacher, self.teachers
        if not self._links.record_message(name, answer.link):
            self._emit(Discard(answer.request, name))
            return
        if (assigned := self.model_switch.record_numerics(name, answer.numerics_id)) is not None:
            self._follow((assigned, False), now)
            teachers.cancelled(events.Cancelled(name, answer.request), now)
            return
        if answer.misfit:
            failed = events.RequestFailed(
                name, answer.link, answer.request, "bad answer", answer.misfit
            )
            teachers.failed(failed, now)
            return
        self.stats.answer(name, answer.device_s, answer.samples)
        in_flight = len(self.ledger.in_flight_at(name))
        emitted = len(self._out)
        self._apply(ev.Answered(name, answer.request, answer.row_nbytes, answer.device_s))
        first = self._out[emitted]  # the ledger's first instruction: `Accept` or `Discard`
        spans = first.spans if isinstance(first, ev.Accept) else ()
        if spans:
            self.stats.labelled(name)
            if not self.model_switch.kinds.is_firm:
                self.model_switch.labelled()
        teachers.answered(answer, in_flight, spans, now)
        teachers.close_if_leaving(name, now)

    # --- the teachers

    def _follow(self, change: tuple[events.Assigned, bool] | None, now: float) -> None:
        """Carry out a change of the assignment.

        Args:
            change: teachers to use from now on, and whether to label all batches again that are not
                released; None: no change.
            now: seconds.
        """
        if change is None:
            return
        assigned, again = change
        teachers = self.teachers
        lost, revoked = self._links.update(assigned, now)
        self._update_awaited()
        teachers.breakers.forget_others({peer.teacher_id for peer in assigned.peers} - {*lost})
        for name in (*lost, *revoked):  # before any of their rows are sent again
            self._apply(ev.TeacherRevoked(name))
        teachers.lost(lost, now)
        for name in revoked:
            teachers.revoked(name, now)
        if again:
            self._emit(DropLabels(self.model_switch.state.content_id))
            teachers.comparisons.clear()
            self._apply(ev.Relabel(stored=self.config.stored))

    def _update_awaited(self) -> None:
        """Report to the ledger how many teachers have not answered their first probe."""
        self._awaited = len(self._links.unanswered)
        self._apply(ev.Awaited(self._awaited))

    # --- time

    def _look(self, tick: events.Tick, now: float) -> None:
        """Check for changes that follow from time alone."""
        self._looked_at = now
        if self.stats.tick(now):
            self._load = None
        usable = self.ledger.usable
        self._follow(self.model_switch.tick(now, tick.coordinator_answers, usable), now)
        if self.model_switch.moves_at_epoch and tick.coordinator_answers and not self._epoch_due:
            self._epoch_due = True
            self._emit(EpochDue())
        self.teachers.tick(self.lacks_labels or self.calls > 0, now)

    def _decide(self, tick: events.Tick, now: float) -> None:
        """Run an iteration of Algorithm 1; request a report if something to report has changed."""
        content_id, unavailable = self.model_switch.state.reported, self._links.unavailable
        self.is_cut_off, may_be_cut_off = self.teachers.cut_off(now)
        if (load := self._load) is None:  # most decisions follow from time alone
            load = self._load = self.ledger.load
            measured = self.measured(content_id or tick.store_content)
            self._times = stream_stats.times(self._profile, measured, now + self._wall_ahead_s)
            self._pace_s = self.stats.pace_s(self._times.t_s_s)
        panel = self.teachers.comparisons.panel
        view = FlowView(  # by position: with names, this takes three times as long
            load.volume_bytes,
            load.queued + tick.awaiting_lookup,
            load.unlabelled + tick.awaiting_lookup,
            load.window_batches,
            load.window_room,
            load.idle,
            load.teachers,
            # Or calls wait for room in a window: another teacher would help them.
            self.lacks_labels or (self.calls > 0 and self.ledger.queued > 0),
            self.source_ended,
            self._times.t_t_s,
            self._pace_s,
            len(unavailable),
            load.batch_bytes,
            panel.judges if panel.disputed else 0,
            self._times.presumed,
            may_be_cut_off,
            load.queued_calls + tick.calls_awaiting_lookup,
            load.unlabelled_calls + tick.calls_awaiting_lookup,
        )
        before = self.decision.want
        self.decision, self.memory = flow.decide(view, self.memory, now, self.config.flow)
        if (want := self.decision.want) != before:
            text = f"want {want} teachers of {self.config.service}: {self.decision.reason}"
            self._log("info", text, "")
        self._starvation = self._starvation.after(self.memory.starved_s, now)
        self.starves = starves = self._starvation.starves
        data_epoch = self.model_switch.state.data_epoch
        report = (want, unavailable, self.is_cut_off, data_epoch, content_id)
        if report != self._reported[:-1] or (starves and not self._reported[-1]):
            self._emit(ReportNow())
        self._reported = (*report, starves)

    # --- output

    def _emit(self, instruction: Instruction) -> None:
        self._out.append(instruction)

    def _log(self, level: LogLevel, text: str, teacher: str) -> None:
        self._out.append(LogMessage(level, text, teacher))

    def _apply(self, event: ev.Event) -> None:
        """Apply an event to the ledger, emit its instructions, and send copies for comparisons."""
        self._load = None
        copies: list[ev.Hedge] = []
        for instruction in self.ledger.handle(event):
            if isinstance(instruction, ev.Send):
                send = instruction
                is_copy, more_copies = self.teachers.comparisons.sent(send)
                copies += more_copies
                self._out.append(SendRequest(self._links.number(send.teacher), send, is_copy))
                self.pacing.sent(send.teacher, send.request, self._now)
            else:
                self._out.append(instruction)
        for copy in copies:
            self._apply(copy)


def _batches_of(item: Any) -> Iterator[int]:
    """Yield the batches that an event or an instruction concerns."""
    if isinstance(batch := getattr(item, "batch", None), int):
        yield batch
    for span in getattr(item, "spans", ()):
        yield span.batch
