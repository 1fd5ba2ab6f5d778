"""The engine's one thread that owns the ledger: events in, the scheduler's decisions carried out.

Everything else (the trainer's messages, the roster, the links) posts to its inbox. What is to
happen is said by `scheduler.ledger` (which batch goes where), `scheduler.flow` (pull or pause, how
many teachers) and `scheduler.switching` (of which model content); this file only translates.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial

from ... import errors
from ...proto.arena import Arena, ArrayRef
from ...proto.channel import Channel, Message
from ...proto.lent_arena import LentArena
from ...scheduler import ledger_events as ev
from ...scheduler.ledger import Ledger
from ..config import FieldKey, ReaderConfig
from ..structure import rows_of
from .contents import Contents
from .feeding import model_inputs
from .governor import Governor
from .inbox import Inbox
from .labels import Labels
from .outcomes import Broke, Done, Job, Outcome, Ready
from .pool import Pool
from .roster import Assigned, open_roster
from .teacher_link import TeacherLink
from .telling import Teller, View
from .words import poison

log = logging.getLogger(__name__)

#: Decisions that depend on time alone are looked at so often.
TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Batch:
    """What the engine knows of a batch in the ring."""

    nbytes: int
    samples: int
    fields: dict[FieldKey, ArrayRef]


class Engine:
    """Labels what lies in `ring`, writing into `labels`, until the trainer's side is gone."""

    def __init__(
        self, config: ReaderConfig, channel: Channel, ring: LentArena, labels: Arena
    ) -> None:
        self._config = config
        self._channel = channel
        self._ring = ring
        self._labels = Labels(labels)
        self._inbox = Inbox()
        self._ledger = Ledger()
        self._governor = Governor(config)
        self._figures = self._governor.figures
        self._pool = Pool(config, ring, labels, partial(self._inbox.post, self._on_outcome))
        self._roster = open_roster(
            config,
            on_assigned=partial(self._inbox.post, self._on_assigned),
            on_failed=partial(self._inbox.post, self._on_failed_for_good),
        )
        self._contents = Contents()
        self._teller = Teller(config, channel, self._roster)
        self._batches: dict[int, Batch] = {}
        self._pulled = 0  # number of the next batch
        self._allowed = 0
        self._unsent: list[tuple[str, int]] = []  # what the ledger takes to be in flight
        self._stream_epoch = 0
        self._epoch = (0, 0)  # of the assignment

    def run(self) -> None:
        """Work until the trainer's side says stop or is gone."""
        self._inbox.listen(self._channel, self._on_message)
        try:
            self._teller.start()
        except errors.EdlError as error:
            self._teller.fail(error, None)
        self._roster.start()
        while (event := self._inbox.next(TICK_S)) is not None:
            event()
            self._decide(time.monotonic())
        self._roster.stop()
        self._pool.close()
        self._teller.close()

    def stop(self) -> None:
        """Let `run` return; may be called by a signal handler."""
        self._inbox.stop()

    # --- the trainer's side

    def _on_message(self, message: Message) -> None:
        for offset in message.get("free", ()):
            self._labels.arena.free(offset)
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
        now = time.monotonic()
        self._governor.waiting_since = now if message["waiting"] else None
        self._follow(self._contents.resumed(message["data_epoch"], message["content_id"], now))

    def _on_reset(self, message: Message) -> None:
        self._stream_epoch = message["epoch"]
        self._pulled = message["pulled"]
        self._labels.clear()
        self._batches.clear()
        self._teller.forgive()
        self._governor.waiting_since = None
        self._governor.source_ended = False
        self._handle(ev.Reset())
        for name, number in self._unsent:  # free the windows that these hold
            self._handle(ev.Refused(name, number, "never sent"))
        self._unsent.clear()
        self._follow(self._contents.epoch_began(message["data_epoch"], time.monotonic()))

    # --- the teachers

    def _on_assigned(self, assigned: Assigned) -> None:
        self._epoch = max(self._epoch, assigned.epoch)
        self._follow(self._contents.assigned(assigned, time.monotonic()))

    def _follow(self, change: tuple[Assigned, bool] | None) -> None:
        """Send to these teachers from now on; and label anew, by them, what is not delivered."""
        if change is None:
            return
        assigned, anew = change
        lost, revoked = self._pool.update(assigned)
        for name in lost:
            self._figures.forget_teacher(name)
            self._handle(ev.TeacherLost(name))
        for name in revoked:
            self._revoke(name)
        if anew:
            self._labels.clear()
            self._handle(ev.Relabel())

    def _on_failed_for_good(self, error: errors.EdlError) -> None:
        self._teller.fail(error, None)

    def _on_outcome(self, link: TeacherLink, outcome: Outcome) -> None:
        if not self._pool.holds(link):
            if isinstance(outcome, Done):
                self._labels.discard(outcome)
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
        self._teller.answered(done.seconds)
        out = self._ledger.handle(ev.Answered(name, number, done.record.nbytes, done.device_s))
        if ev.Discard(number, name) in out:
            self._labels.discard(done)
        else:
            self._labels.keep(done)
            self._figures.labelled(name)
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
                self._handle(ev.Failed(name, job.number))
                self._pool.retry(link, error)
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
                    self._channel.send("poison", number=number, text=poison(number, reasons))
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
            self._teller.fail(error, self._stream_epoch)
            return
        inputs = {name: self._ring.get(ref) for name, ref in refs.items()}
        config, rows = self._config, rows_of(inputs.values())
        self._pool.send(teacher, Job(number, inputs, config.fetches, rows, config.labels))

    def _deliver(self, number: int) -> None:
        del self._batches[number]
        self._labels.hand_over(number, self._channel)

    # --- what the flow says

    def _decide(self, now: float) -> None:
        answers, usable = self._roster.answers(), self._ledger.usable
        self._follow(self._contents.look(now, answers, usable))
        before = self._governor.decision
        decision = self._governor.decide(self._ledger, self._pool.unreachable, now)
        if self._pulled + decision.pull > self._allowed:
            self._allowed = self._pulled + decision.pull
            self._channel.send("allow", limit=self._allowed)
        view = self._view()
        if self._governor.gives_up(self._ledger, now):
            self._teller.give_up(view, self._stream_epoch)
        if decision.want != before.want:
            log.info("want %d teachers: %s", decision.want, decision.reason)
        self._teller.tell(view, now)

    def _view(self) -> View:
        return View(
            self._ledger, self._governor, self._pool, self._contents, self._labels, self._epoch
        )
