"""The engine's one thread that owns the ledger: events in, the scheduler's decisions carried out.

Everything else (the trainer's messages, the roster, the links) posts to its inbox. What is to
happen is said by `scheduler.ledger` (which batch goes where) and `scheduler.flow` (pull or pause,
how many teachers); this file only translates.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial

from ... import errors
from ...proto.arena import Arena, ArrayRef
from ...proto.channel import Channel, Message
from ...scheduler import ledger_events as ev
from ...scheduler.ledger import Ledger
from ..config import FieldKey, ReaderConfig
from ..structure import rows_of
from . import telling
from .feeding import model_inputs
from .governor import Governor
from .inbox import Inbox
from .pool import Pool
from .roster import Assigned, open_roster
from .teacher_link import Broke, Done, Job, Outcome, Ready, TeacherLink

log = logging.getLogger(__name__)

#: Decisions that depend on time alone are looked at so often.
TICK_S = 0.05
STATS_EVERY_S = 0.2
REPORT_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What the engine knows of a batch in the ring."""

    nbytes: int
    samples: int
    fields: dict[FieldKey, ArrayRef]


class Engine:
    """Labels what lies in `ring`, writing into `labels`, until the trainer's side is gone."""

    def __init__(self, config: ReaderConfig, channel: Channel, ring: Arena, labels: Arena) -> None:
        self._config = config
        self._channel = channel
        self._ring = ring
        self._labels = labels
        self._inbox = Inbox()
        self._ledger = Ledger()
        self._governor = Governor(config)
        self._figures = self._governor.figures
        self._pool = Pool(config, labels, partial(self._inbox.post, self._on_outcome))
        self._roster = open_roster(
            config,
            on_assigned=partial(self._inbox.post, self._on_assigned),
            on_failed=partial(self._inbox.post, self._fail_for_good),
        )
        self._batches: dict[int, Batch] = {}
        self._answers: dict[int, Done] = {}  # labelled, not delivered
        self._pulled = 0  # number of the next batch
        self._allowed = 0
        self._unsent: list[tuple[str, int]] = []  # what the ledger takes to be in flight
        self._failed = False
        self._stream_epoch = 0
        self._epoch = (0, 0)  # of the assignment
        self._stats_at = self._reported_at = 0.0
        self._resends_told = 0

    def run(self) -> None:
        """Work until the trainer's side says stop or is gone."""
        self._inbox.listen(self._channel, self._on_message)
        self._roster.start()
        while (event := self._inbox.next(TICK_S)) is not None:
            event()
            self._decide(time.monotonic())
        self._roster.stop()
        self._pool.close()

    def stop(self) -> None:
        """Let `run` return; may be called by a signal handler."""
        self._inbox.stop()

    # --- the trainer's side

    def _on_message(self, message: Message) -> None:
        for offset in message.get("free", ()):
            self._labels.free(offset)
        match message["kind"]:
            case "batch":
                self._on_batch(message)
            case "held":
                self._pulled = message["number"] + 1
                self._handle(ev.Held(message["number"], message["nbytes"]))
            case "waiting":
                self._governor.waiting_since = time.monotonic()
            case "taken":
                self._on_taken(message)
            case "ended":
                self._governor.source_ended = True
            case "reset":
                self._on_reset(message)
            case "resumed":
                self._on_resumed(message)

    def _on_batch(self, message: Message) -> None:
        number, nbytes = message["number"], message["nbytes"]
        fields = {key: ArrayRef.from_json(ref) for key, ref in message["fields"]}
        self._batches[number] = Batch(nbytes, message["samples"], fields)
        self._pulled = number + 1
        self._governor.source_ended = False
        self._figures.pulled(message["source_s"], message["samples"])
        self._handle(ev.Queued(number, nbytes))

    def _on_taken(self, message: Message) -> None:
        self._governor.waiting_since = None
        if message["step_s"] is not None:
            self._figures.step(message["step_s"], message["samples"])
        self._figures.taken(message["samples"], time.monotonic())
        self._handle(ev.Taken(message["number"]))

    def _on_resumed(self, message: Message) -> None:
        """Told all that the engine before this one knew."""
        self._stream_epoch = message["epoch"]
        self._pulled = message["pulled"]
        self._governor.source_ended = message["ended"]
        self._governor.waiting_since = time.monotonic() if message["waiting"] else None

    def _on_reset(self, message: Message) -> None:
        self._stream_epoch = message["epoch"]
        self._pulled = message["pulled"]
        for done in self._answers.values():
            self._labels.free(done.record.offset)
        self._answers.clear()
        self._batches.clear()
        self._failed = False
        self._governor.waiting_since = None
        self._governor.source_ended = False
        self._handle(ev.Reset())
        for name, number in self._unsent:  # free the windows that these hold
            self._handle(ev.Refused(name, number, "never sent"))
        self._unsent.clear()

    # --- the teachers

    def _on_assigned(self, assigned: Assigned) -> None:
        self._epoch = max(self._epoch, assigned.epoch)
        lost, revoked = self._pool.update(assigned)
        for name in lost:
            self._figures.forget_teacher(name)
            self._handle(ev.TeacherLost(name))
        for name in revoked:
            self._revoke(name)

    def _on_outcome(self, link: TeacherLink, outcome: Outcome) -> None:
        if not self._pool.holds(link):
            if isinstance(outcome, Done):
                self._labels.free(outcome.record.offset)
            return
        name = link.peer.teacher_id
        match outcome:
            case Ready(inputs):
                link.inputs = inputs
                self._pool.answers(name)
                if self._pool.is_assigned(link):  # else it leaves, and is to get nothing more
                    self._handle(ev.TeacherJoined(name, self._config.window))
            case Done():
                self._on_done(name, outcome)
            case Broke(None, error):
                self._pool.is_silent(name, error)
            case Broke(Job() as job, error):
                self._on_broke(link, job, error)
        if not self._ledger.in_flight_at(name):
            self._pool.let_go(name)

    def _on_done(self, name: str, done: Done) -> None:
        number = done.job.number
        self._pool.has_labelled(name)
        if (batch := self._batches.get(number)) is not None:
            self._figures.answer(name, done.device_s, batch.samples)
        out = self._ledger.handle(ev.Answered(name, number, done.record.nbytes, done.device_s))
        if ev.Discard(number, name) in out:
            self._labels.free(done.record.offset)
        else:
            self._answers[number] = done
        self._carry_out(out)
        if done.draining:
            self._revoke(name)

    def _on_broke(self, link: TeacherLink, job: Job, error: errors.EdlError) -> None:
        name = link.peer.teacher_id
        match error:
            case errors.BadAnswer() if job.number not in self._batches:
                # Of an epoch that was left: its memory may have been used again while it was sent.
                self._handle(ev.Refused(name, job.number, str(error)))
            case errors.RequestRefused() | errors.VersionMismatch():
                self._handle(ev.Refused(name, job.number, str(error)))
            case errors.RetryableError() | errors.AccessError():  # not the batch's fault
                self._pool.last_trouble = f"teacher {name} failed: {error}"
                self._handle(ev.Failed(name, job.number))
                self._pool.retry(link)
            case _:
                self._figures.forget_teacher(name)
                self._pool.reopen(link, error)
                self._handle(ev.TeacherLost(name))

    def _revoke(self, name: str) -> None:
        self._figures.forget_teacher(name)
        self._pool.leave(name)
        self._handle(ev.TeacherRevoked(name))
        if not self._ledger.in_flight_at(name):
            self._pool.let_go(name)

    # --- what the ledger says

    def _handle(self, event: ev.Event) -> None:
        self._carry_out(self._ledger.handle(event))

    def _carry_out(self, instructions: list[ev.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ev.Send(number, teacher, attempt):
                    self._send(number, teacher, attempt)
                case ev.Deliver(number):
                    self._deliver(number)
                case ev.Poison(number, reasons):
                    self._batches.pop(number, None)
                    self._channel.send(
                        "poison", number=number, text=telling.poison(number, reasons)
                    )
                case ev.Discard():
                    pass  # its labels were freed where they came in

    def _send(self, number: int, teacher: str, attempt: int) -> None:
        batch = self._batches[number]
        if attempt > 1:
            log.info("batch %d goes to %s, attempt %d", number, teacher, attempt)
        try:
            refs = model_inputs(batch.fields, self._pool.link(teacher).inputs, self._config.feeds)
        except errors.UsageError as error:
            self._unsent.append((teacher, number))
            self._fail(error)
            return
        inputs = {name: self._ring.get(ref) for name, ref in refs.items()}
        rows = rows_of(inputs.values())
        self._pool.send(teacher, Job(number, inputs, self._config.fetches, rows))

    def _deliver(self, number: int) -> None:
        done = self._answers.pop(number)
        del self._batches[number]
        self._channel.send(
            "labelled",
            number=number,
            offset=done.record.offset,
            nbytes=done.record.nbytes,
            labels=[
                [name, ref.to_json()]
                for name, ref in zip(done.names, done.record.arrays, strict=True)
            ],
        )

    def _fail(self, error: errors.EdlError) -> None:
        if self._failed:
            return
        self._failed = True  # for this epoch: another one is another try
        self._send_fatal(error, self._stream_epoch)

    def _fail_for_good(self, error: errors.EdlError) -> None:
        self._send_fatal(error, None)

    def _send_fatal(self, error: errors.EdlError, epoch: int | None) -> None:
        self._channel.send("fatal", epoch=epoch, error=type(error).__name__, text=str(error))

    # --- what the flow says

    def _decide(self, now: float) -> None:
        before = self._governor.decision
        decision = self._governor.decide(self._ledger, self._pool.unreachable, now)
        if self._pulled + decision.pull > self._allowed:
            self._allowed = self._pulled + decision.pull
            self._channel.send("allow", limit=self._allowed)
        if self._governor.gives_up(self._ledger, now):
            self._fail(
                errors.NoTeacherAvailable(
                    f"no teacher of service {self._config.service!r} for"
                    f" {self._config.wait_timeout_s:g} s: {self._waiting_for()}"
                )
            )
        if decision.want != before.want:
            log.info("want %d teachers: %s", decision.want, decision.reason)
        self._tell(now, changed=decision.want != before.want)

    def _tell(self, now: float, *, changed: bool) -> None:
        # A resend is told at once: so the trainer's count is right when the batch arrives there.
        resent = self._ledger.resends != self._resends_told
        if changed or resent or now - self._stats_at >= STATS_EVERY_S:
            self._stats_at, self._resends_told = now, self._ledger.resends
            stats = telling.stats(self._ledger, self._governor)
            self._channel.send("stats", **stats, waiting_for=self._waiting_for())
        if changed or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._roster.report(
                telling.report(self._config, self._ledger, self._governor, now, self._epoch)
            )

    def _waiting_for(self) -> str:
        trouble = self._roster.why() or self._pool.last_trouble
        return telling.waiting_for(self._governor, self._ledger, len(self._pool), trouble)
