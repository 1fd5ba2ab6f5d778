"""The driver of one service's `ReaderCore`: passes events to it and executes its instructions.

An engine has a member for each service, so one if there is no ensemble, and averages the labels of
several members. All methods belong to the engine's thread; the roster and the links post tasks to
that thread's inbox.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from ...proto.arena import Arena
from ...proto.shared_buffer import SharedBuffer
from ...runtime import errors
from ...scheduler.flow import FlowConfig
from ...scheduler.reader_core import CoreConfig, ReaderCore
from ...scheduler.reader_core import events as ev
from ...scheduler.reader_core import instructions as do
from ...scheduler.reader_core.windows import WindowConfig
from ...scheduler.stream_stats import StreamProfile
from ..config import ReaderConfig
from .connection_attempts import ConnectionAttempts
from .inbox import Inbox
from .label_cache import LabelCache
from .label_cache_thread import NO_LABELS, CachedLabels
from .label_comparison import KeptLabels
from .label_records import LabelRecords
from .profiles import ProfileRecorder
from .requests import BatchMetadata, KnownBatches, RequestSender
from .roster import open_roster
from .teacher_link import TeacherLink
from .teacher_requests import (
    Outcome,
    RequestDone,
    RequestOrProbeFailure,
    TeacherReady,
    TeacherRequest,
    failure_of,
    misfit_of_settings,
    published_kinds,
)

log = logging.getLogger(__name__)

#: Minimum interval between checks of deadlines, the profile and the coordinator's connection.
CHECK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class MemberListener:
    """Callbacks of a member into its engine, in the engine's thread.

    Attributes:
        on_label_change: a batch has labels, goes without them, must be labelled again, or is
            poison.
        on_outcome: a teacher's link has posted an outcome. Called with the member, the teacher, the
            outcome, the time, and whether the outcome has valid labels from an open link.
        on_failed: the stream has failed. Called with the error, and with True if it fails in every
            epoch, not only in this one.
        on_call_failed: the batch of a call cannot be labelled. Called with its number and an error.
        on_epoch_due: teachers of another content wait for the next epoch.
    """

    on_label_change: Callable[[EnsembleMember, do.LabelChange], None]
    on_outcome: Callable[[EnsembleMember, str, Outcome, float, bool], None]
    on_failed: Callable[[errors.EdlError, bool], None]
    on_call_failed: Callable[[int, errors.EdlError], None]
    on_epoch_due: Callable[[], None]


class EnsembleMember:
    """Has batches labelled by the teachers of `config.service`.

    Args:
        config: settings with this service only.
        inbox: inbox of the engine's thread.
        batches: known batches by number.
        ring: holds the batches.
        arena: holds the labels.
        mixed: labels are averaged with those of other members.
        listener: callbacks of the engine.

    Attributes:
        config: settings with this service only.
        core: makes all decisions. Other objects only read it, except that the label cache may set
            `core.numerics.pinned`, to the numerics_id of stored labels.
        ledger: the core's ledger, with the state of each row.
        roster: source of the teachers.
        labels: the label records.
        label_cache: finds labels in a store; None: no store is configured.
        relabelled: number of times that the labels of a batch were revoked.
        links: open links to teachers, by number.
        poisoned: number of batches that were given up: teachers refused them or crashed on them.
        report_due: the core requests a report to the coordinator at once.
        reported_at: time of the latest report.
    """

    def __init__(
        self,
        config: ReaderConfig,
        inbox: Inbox,
        batches: KnownBatches,
        ring: SharedBuffer,
        arena: Arena,
        listener: MemberListener,
        *,
        mixed: bool,
    ) -> None:
        self.config = config
        self.core = core = ReaderCore(core_config(config), random)
        self.ledger = core.ledger
        self._profile_recorder = ProfileRecorder(
            config, inbox, lambda: core.measured(self.content_id), self._on_profile_loaded
        )
        self.roster = open_roster(
            config,
            on_assigned=partial(inbox.post, self.handle),
            on_failed=partial(inbox.post, self._on_fatal),
        )
        self.labels = LabelRecords(arena, batches, mixed=mixed)
        self.label_cache = None
        if config.store is not None:
            self.label_cache = LabelCache(
                config,
                inbox,
                ring,
                core.numerics,
                self._enqueue,
                self._on_fatal,
                self._on_unfit,
            )
        self.relabelled = self.poisoned = 0
        self.report_due, self.reported_at = False, 0.0
        self._batches = batches
        self._inbox = inbox
        self._ring = ring if config.shared_memory else None
        self._listener = listener
        self.links: dict[int, TeacherLink] = {}
        self._connection_attempts = ConnectionAttempts(inbox, self.handle)
        self._sender = RequestSender(config, batches, ring, self.links, core.teachers.links)
        #: Requests that could not be sent. The ledger counts them as in flight until
        #: `_free_windows`.
        self._unsent: list[ev.Cancelled] = []
        #: Batches of the training loop that could not be sent: the epoch fails, so they must not be
        #: delivered without labels.
        self._unfit: set[int] = set()
        #: Batches that still wait for their lookup in the label store, and will be delivered
        #: without labels of this service.
        self._unwanted: set[int] = set()
        self._kept = KeptLabels(config.labels)
        self._dispute = ""  # describes the latest dispute
        self._checked_at = -inf
        self._coordinator_connected = True

    def start(self) -> None:
        """Load the profile of the last run, and start to receive teachers."""
        self._profile_recorder.start()
        self.roster.start()

    def close(self) -> None:
        """Release the teachers, save the profile, and flush the label store."""
        self._profile_recorder.close()
        self.roster.stop()
        for link in self.links.values():
            link.close()
        if self.label_cache is not None:
            self.label_cache.close()

    # --- read access

    @property
    def content_id(self) -> str:
        """The content_id of the model that makes the labels; empty: unknown."""
        return self.core.content_id or (
            "" if self.label_cache is None else self.label_cache.content_id
        )

    @property
    def output_kinds(self) -> dict[str, str]:
        """The kinds of outputs that teachers publish, by name."""
        return {kind.output: kind.kind for kind in self.core.model_switch.kinds.settled.values()}

    @property
    def dispute(self) -> str:
        """Describes which teachers contradict each other, and by how much; empty: no dispute."""
        return self._dispute if self.core.teachers.comparisons.panel.disputed else ""

    # --- the stream

    def queue(self, batch: BatchMetadata, source_s: float, now: float) -> None:
        """Have a batch labelled; the source took `source_s` seconds to yield it."""
        if batch.is_call:
            self.handle(ev.Called(batch.samples, batch.rows), now)
        else:
            self.handle(ev.Pulled(source_s, batch.samples, batch.rows), now)
        if self.label_cache is not None:
            self.label_cache.queue(batch, now)
        else:
            self._enqueue(batch, NO_LABELS)

    def _enqueue(self, batch: BatchMetadata, cached: CachedLabels) -> None:
        """Copy the cached labels of a batch, and have its other rows labelled."""
        number, nbytes, rows, layout_id = batch.number, batch.nbytes, batch.rows, batch.layout_id
        missing: tuple[tuple[int, int], ...] | None = None
        row_nbytes = 0
        if number in self._unwanted:
            self._unwanted.remove(number)
            missing = ()
        elif cached.rows:
            self.labels.fill(batch, cached.rows, cached.labels)
            missing, row_nbytes = cached.missing(rows), cached.row_nbytes
        if number in self.ledger.withheld:
            self.handle(ev.StoreSearched(number, missing, row_nbytes))
        else:
            self.handle(
                ev.Queued(number, nbytes, rows, missing, row_nbytes, layout_id, batch.is_call)
            )

    def restore(self, batch: BatchMetadata, labels_nbytes: int, makers: Sequence[str]) -> None:
        """Add a batch that an earlier engine has offered to the trainer, labelled by `makers`."""
        row_nbytes = -(-labels_nbytes // max(batch.rows, 1))
        # Batches enter the ledger in order: first those that still wait for their lookup.
        for prior in () if self.label_cache is None else self.label_cache.enter_ledger():
            about = (prior.number, prior.nbytes, prior.rows, None, 0, prior.layout_id)
            self.handle(ev.Queued(*about, prior.is_call, is_withheld=True))
        self.handle(
            ev.BatchRestored(
                batch.number, batch.nbytes, batch.rows, batch.layout_id, tuple(makers), row_nbytes
            )
        )

    def taken(self, number: int, samples: int, step_s: float | None, now: float) -> None:
        """Record that the loop took a batch, after `step_s` seconds of work on the previous one."""
        self._forget(number)
        self.handle(ev.BatchTaken(number, samples, step_s), now)

    def drop_call(self, number: int) -> None:
        """Stop labelling the batch of a call that was cancelled, is late, or has failed."""
        if self.label_cache is not None and self.label_cache.remove(number):
            self._listener.on_label_change(self, do.GoesUnlabelled(number))
        else:
            self.handle(ev.DeliverUnlabelled(number))

    def end_call(self, number: int, samples: int) -> None:
        """Record that a call has ended, with labels of `samples` rows; 0: without labels."""
        self._forget(number)
        self.handle(ev.CallEnded(number, samples))

    def _forget(self, number: int) -> None:
        if self.label_cache is not None:
            self.label_cache.forget(number)
        self.labels.forget(number)

    def reset(self, data_epoch: int, now: float) -> None:
        """Forget every batch; keep the teachers that may label `data_epoch`."""
        self.labels.reset()
        self._unwanted.clear()
        self._unfit.clear()
        if self.label_cache is not None:
            self.label_cache.reset()
        self.handle(ev.EpochBegan(data_epoch), now)
        self._free_windows()

    def resume(self, resumed: ev.EngineResumed, now: float) -> None:
        """Continue in the state of an earlier engine."""
        self.roster.remember(resumed.left.assigned)
        self.handle(resumed, now)

    def tick(self, now: float) -> None:
        """Have the core decide, after new events or because time has passed."""
        if now - self._checked_at >= CHECK_EVERY_S:
            self._checked_at = now
            self._coordinator_connected = self.roster.is_connected()
            self._profile_recorder.save_if_due(now)
            for link in self.links.values():
                link.check_deadlines(now)
        is_connected = self._coordinator_connected
        tick = ev.Tick(coordinator_answers=is_connected)
        if (cache := self.label_cache) is not None:
            cache.tick(self.core.model_switch.state.awaited, self.ledger.usable, now)
            tick = ev.Tick(len(cache), cache.content_id, is_connected, cache.calls)
        self._free_windows()
        self.handle(tick, now)

    # --- the teachers

    def _on_profile_loaded(self, profile: StreamProfile | None) -> None:
        self.handle(ev.ProfileLoaded(profile, time.time()))

    def _on_unfit(self, batch: BatchMetadata, error: errors.UsageError) -> None:
        """Report a batch that does not fit the settings."""
        if batch.is_call:
            self._listener.on_call_failed(batch.number, error)
        else:
            self._listener.on_failed(error, False)

    def _on_fatal(self, error: errors.EdlError) -> None:
        self._listener.on_failed(error, True)

    def on_outcome(self, link: TeacherLink, outcome: Outcome) -> None:
        """Handle what a link reports; links post it to the engine's inbox."""
        name, now = link.peer.teacher_id, time.monotonic()
        if isinstance(outcome, RequestDone):  # the usual case
            self._on_done(link, outcome, now)
            return
        self._listener.on_outcome(self, name, outcome, now, False)
        match outcome:
            case TeacherReady(inputs):
                link.inputs = inputs
                self._connection_attempts.resolve(link.peer.address)
                misfit = misfit_of_settings(self.config, link.peer, link.model)
                if self.label_cache is not None and not misfit:
                    self.label_cache.on_teacher_ready(link.peer, inputs)
                kinds = published_kinds(self.config, link.peer, link.model)
                self.handle(ev.Probed(name, link.number, link.model.most_rows, misfit, kinds))
            case RequestOrProbeFailure(None, error):
                self.handle(ev.ProbeFailed(name, link.number, *failure_of(error)))
            case RequestOrProbeFailure(TeacherRequest() as request, error):
                log_fields = {"service": self.config.service, **request.about(name)}
                log.debug("%s does not label a request: %s", name, error, extra=log_fields)
                is_void = any(span.batch not in self._batches for span in request.spans)
                failure = failure_of(error)
                self.handle(
                    ev.RequestFailed(name, link.number, request.number, *failure, void=is_void)
                )

    def _on_done(self, link: TeacherLink, done: RequestDone, now: float) -> None:
        name, request = link.peer.teacher_id, done.request
        is_open, misfit = link.number in self.links, ""
        if is_open:
            try:
                self.labels.check(done)
            except errors.BadAnswer as error:
                misfit = str(error)
        self._listener.on_outcome(self, name, done, now, is_open and not misfit)
        if log.isEnabledFor(logging.DEBUG):
            log_fields = {"service": self.config.service, **request.about(name)}
            log.debug("%s answers after %.6f s", name, done.seconds, extra=log_fields)
        rows, nbytes = request.span_rows, sum([label.nbytes for label in done.labels.values()])
        answer = ev.AnswerCame(
            name,
            link.number,
            request.number,
            rows,
            -(-nbytes // rows),
            done.device_s,
            request.samples,
            done.numerics_id,
            done.draining,
            misfit,
            self._kept.agreeing(
                request.number,
                done.labels,
                partial(self.core.teachers.comparisons.tolerance, name, done.numerics_id),
            ),
        )
        self._execute(self.core.handle(answer, now), done, link)

    def handle(self, event: ev.Event, now: float | None = None) -> None:
        """Pass an event to the core and execute the resulting instructions."""
        if instructions := self.core.handle(event, time.monotonic() if now is None else now):
            self._execute(instructions)

    def forward(
        self, event: ev.Released | ev.DeliverUnlabelled | ev.InvalidateBatch | ev.LoopWaiting
    ) -> None:
        """Pass an event of the delivery to the core.

        While the event's batch waits for its lookup, the ledger does not have it: then only note
        the event.
        """
        cache = self.label_cache
        if cache is None or isinstance(event, ev.LoopWaiting) or not cache.holds(event.batch):
            self.handle(event)
        elif isinstance(event, ev.DeliverUnlabelled):
            self._unwanted.add(event.batch)
        else:  # the batch needs labels again, or it is released
            self._unwanted.discard(event.batch)
            if isinstance(event, ev.Released):
                cache.remove(event.batch)

    def _execute(
        self,
        instructions: list[do.Instruction],
        done: RequestDone | None = None,
        link: TeacherLink | None = None,
    ) -> None:
        """Execute instructions; `done` is the response that led to them, received over `link`."""
        for instruction in instructions:  # the most frequent cases come first
            match instruction:
                case do.SendRequest():
                    self._send(instruction)
                case do.Accept(_, spans):
                    assert done is not None
                    assert link is not None
                    self.labels.write(done, spans)
                    if self.label_cache is not None:
                        self.label_cache.insert(done, spans, link.inputs, self._batches)
                case do.BatchLabelled(number):
                    if log.isEnabledFor(logging.DEBUG):
                        log.debug("batch %d has its labels", number, extra={"batches": [number]})
                    self._listener.on_label_change(self, instruction)
                case do.KeepAnswer(request, name):
                    assert done is not None
                    self._kept.keep(request, name, done.labels)
                case do.Discard():
                    self.labels.discarded_responses += 1
                case do.ReportNow():
                    self.report_due = True
                case do.EpochDue():
                    self._listener.on_epoch_due()
                case do.LogMessage():
                    log_message(instruction)
                case do.OpenConnection(number, peer):
                    self._open(number, peer)
                case do.CloseConnection(number):
                    self.links.pop(number).close()
                case do.Probe(number):
                    self.links[number].probe()
                case do.TryPaths(peers, began_at):
                    for peer in peers:
                        self._connection_attempts.attempt(peer, began_at)
                case do.DropAnswers(request):
                    self._kept.drop(request)
                case do.DropAllAnswers():
                    self._kept.clear()
                case do.Disputed():
                    self._on_disputed(instruction)
                case do.DropCachedLabels(name):
                    if self.label_cache is not None:
                        self.label_cache.delete_rows_of(name)
                case do.DropLabels(content_id):
                    self.labels.clear()
                    if self.label_cache is not None:
                        self.label_cache.use_content(content_id)
                case do.GoesUnlabelled(number):
                    self.labels.drop(number)
                    if self.label_cache is not None:
                        self.label_cache.remove(number)
                    if number not in self._unfit:
                        self._listener.on_label_change(self, instruction)
                case do.LabelsRevoked(number, whole):
                    self.relabelled += 1
                    self.labels.withdraw(number, whole=whole)
                    self._listener.on_label_change(self, instruction)
                case do.LookUp(number):
                    assert self.label_cache is not None
                    self.label_cache.requeue(self._batches[number], time.monotonic())
                case do.Poison(number):
                    self.poisoned += 1
                    if self.label_cache is not None:
                        self.label_cache.forget(number)
                    self._listener.on_label_change(self, instruction)
                case do.RefuseSettings(reason):
                    self._on_fatal(errors.UsageError(reason))

    def _open(self, number: int, peer: ev.Peer) -> None:
        post = partial(self._inbox.post, self.on_outcome)
        self.links[number] = TeacherLink(peer, self.config, post, self._inbox, self._ring, number)

    def _send(self, instruction: do.SendRequest) -> None:
        try:
            self._sender.send(instruction)
        except errors.UsageError as error:
            send = instruction.send
            self._unsent.append(ev.Cancelled(send.teacher, send.request))
            for span in send.spans:
                batch = self._batches[span.batch]
                self._on_unfit(batch, error)
                if not batch.is_call:
                    self._unfit.add(batch.number)
                    self.handle(ev.DeliverUnlabelled(batch.number))  # send no row of it again

    def _free_windows(self) -> None:
        """Free the windows of requests that could not be sent; their successors may fail, too."""
        while self._unsent:
            self.handle(self._unsent.pop())

    def _on_disputed(self, disputed: do.Disputed) -> None:
        output, difference = self._kept.difference(disputed.request, disputed.pair)
        self._dispute = (
            f"teachers {', '.join(disputed.teachers)} of {self.config.service!r} disagree on output"
            f" {output!r} by {difference}; a third teacher has to decide which is wrong"
        )
        log.warning("%s", self._dispute)


def core_config(config: ReaderConfig) -> CoreConfig:
    """Convert the reader's settings to those of the core."""
    limits = config.limits
    window_max = limits.window if config.deterministic else max(limits.window, limits.window_max)
    return CoreConfig(
        config.service,
        FlowConfig(
            upper_bytes=config.upper_bytes,
            lower_bytes=config.lower_bytes,
            buffer_bytes=config.buffer_bytes,
            teachers_min=config.teachers_min,
            teachers_max=config.teachers_max,
        ),
        WindowConfig(limits.window, window_max),
        limits.request_rows,
        ordered=config.ordered,
        deterministic=config.deterministic,
        canaries=config.canaries,
        stored=config.store is not None,
    )


def log_message(message: do.LogMessage) -> None:
    """Log a message of the core."""
    level = logging.INFO if message.level == "info" else logging.WARNING
    log.log(level, message.text, extra={"teacher": message.teacher} if message.teacher else {})
