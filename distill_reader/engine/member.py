"""One service at work: its ledger, its teachers, and the labels that they give to each batch.

An engine has one member, or several whose labels it averages. A member belongs to the engine's
thread; what comes from elsewhere (its roster, its links) is posted to that thread's inbox.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Final

from ... import errors
from ...proto.arena import Arena
from ...proto.lent_arena import LentArena
from ...scheduler.ledger import Ledger
from ...scheduler.ledger import events as ev
from ..config import ReaderConfig
from .asking import misfit_of_settings
from .batches import Batch, Batches
from .carrying import Carrying
from .contents import Contents, Legacy
from .crew import Crew
from .governor import Governor
from .inbox import Inbox
from .labels import Labels
from .numerics import Numerics
from .outcomes import Broke, Done, Job, Outcome, Ready
from .pool import Pool
from .remembering import Remembering
from .roster import Assigned, open_roster
from .says import Says
from .sending import Sending
from .shelf import Shelf
from .stored import NOTHING, Stocked
from .teacher_link import TeacherLink
from .teachers import Teachers

log = logging.getLogger(__name__)

#: What follows from time alone is looked for so often at most.
LOOK_EVERY_S: Final = 0.01


class Member:
    """Has batches labelled by the teachers of `config.service`.

    Args:
        config: of this service alone.
        inbox: of the engine's thread.
        batches: that lie in the ring.
        ring: where they lie.
        arena: where labels are put.
        says: who hears of it.

    Attributes:
        ledger: where each row is.
        governor: what the flow control of this service says.
        pool: the links to its teachers.
        roster: who names them.
        crew: how these do.
        comparing: whether they agree.
        reachability: whether they can be reached.
        contents: which model's labels count.
        labels: those that are here.
        shelf: where labels are kept; None: nowhere.
        carrying: does what the ledger says.
        epoch: the highest (term, counter) of an assignment seen.
        forgone: batches that went without labels of this service.
        relabelled: batches whose labels were thrown away.
    """

    def __init__(
        self,
        config: ReaderConfig,
        inbox: Inbox,
        batches: Batches,
        ring: LentArena,
        arena: Arena,
        says: Says,
    ) -> None:
        self.config = config
        self.ledger = Ledger(ordered=config.ordered)
        self.governor = Governor(config)
        self._remembering = Remembering(config, inbox, self.governor)
        self.pool = Pool(config, ring, partial(inbox.post, self._on_outcome), inbox)
        self.roster = open_roster(
            config,
            on_assigned=partial(inbox.post, self._on_assigned),
            on_failed=partial(inbox.post, self._on_failed_for_good),
        )
        self.crew = Crew(config, self.ledger)
        numerics = Numerics(config.deterministic)
        self.contents = Contents(numerics)
        self.labels = Labels(arena, batches)
        self.shelf = None
        if config.store is not None:
            self.shelf = Shelf(config, inbox, ring, numerics, self._enqueue, says.failed)
        sending = Sending(config, batches, ring, self.pool, self.crew.speeds)
        self.carrying = Carrying(self, batches, sending, says)
        self._teachers = Teachers(
            config,
            self.ledger,
            self.pool,
            self.crew,
            self.governor.figures,
            self.shelf,
            self.carrying.handle,
            inbox,
        )
        self.reachability = self._teachers.reachability
        self.comparing = self._teachers.comparing
        self.epoch = (0, 0)
        self.forgone = self.relabelled = 0
        self._batches = batches
        self._says = says
        self._looked_at = -inf
        self._awaited = 0  # teachers, as the ledger was told

    def start(self) -> None:
        """Look for teachers, as many as the last run needed."""
        self._remembering.start()
        self.roster.start()

    def close(self) -> None:
        """Give the teachers back, and write what is to be kept."""
        self._remembering.close(self.content_id)
        self.roster.stop()
        self.pool.close()
        if self.shelf is not None:
            self.shelf.close()

    # --- the stream

    def queue(self, batch: Batch) -> None:
        """Have a batch labelled that lies in the ring."""
        self.crew.speeds.batch(batch.rows)
        if self.shelf is None:
            self._enqueue(batch, NOTHING)
        else:
            self.shelf.queue(batch, time.monotonic())

    def _enqueue(self, batch: Batch, stocked: Stocked) -> None:
        """Have what a batch lacks labelled; what the store had is in its record."""
        missing, row_nbytes = None, 0
        if stocked.places:
            self.labels.fill(batch, stocked.places, stocked.labels)
            missing = stocked.missing(batch.rows)
            row_nbytes = stocked.row_nbytes
        if batch.number in self.ledger.withheld:
            self.carrying.handle(ev.Found(batch.number, missing, row_nbytes))
            return
        self.carrying.handle(
            ev.Queued(batch.number, batch.nbytes, batch.rows, missing, row_nbytes, batch.kind)
        )

    def hold(self, batch: Batch, labels_nbytes: int, makers: Sequence[str]) -> None:
        """The trainer has the labels of this batch, made by these teachers for another engine."""
        row_nbytes = -(-labels_nbytes // max(batch.rows, 1))
        self.carrying.handle(
            ev.Held(batch.number, batch.nbytes, batch.rows, batch.kind, tuple(makers), row_nbytes)
        )

    def doubt(self, number: int) -> None:
        """A batch that the trainer has is to come back, whoever has made its labels."""
        self.carrying.handle(ev.Doubt(number))

    def taken(self, number: int) -> None:
        """The training loop has consumed a batch."""
        if self.shelf is not None:
            self.shelf.forget(number)
        self.carrying.handle(ev.Taken(number))

    def take_back(self, number: int) -> None:
        """A batch that was handed over comes back, as `says.recall` asked."""
        self.relabelled += 1
        self.labels.take_back(number)
        self.carrying.handle(ev.Recalled(number))

    def forgo(self, number: int) -> None:
        """Go without the labels of a batch, unless it has them all; it is not on the shelf."""
        before = self.ledger.unlabelled
        out = self.ledger.handle(ev.Forgo(number))
        if self.ledger.unlabelled < before:
            self.labels.drop(number)
            self.forgone += 1
        self.carrying.carry_out(out)

    def reset(self, data_epoch: int, now: float) -> None:
        """Forget every batch; the teachers stay, if they may label `data_epoch`."""
        self.labels.clear()
        self._teachers.void()
        if self.shelf is not None:
            self.shelf.reset()
        self.governor.begin()
        self.carrying.reset()
        self._follow(self.contents.epoch_began(data_epoch, now))

    def resume(self, data_epoch: int, left: Legacy, now: float) -> None:
        """Go on where the engine before this one was."""
        self.epoch = max(self.epoch, left.assigned.epoch)
        self.roster.remember(left.assigned)
        self._follow(self.contents.resumed(data_epoch, left, now))

    def look(self, now: float) -> None:
        """Something has happened, or time has gone by: what follows from that."""
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._look_around(now)
        on_shelf = 0
        if self.shelf is not None:
            switch = self.contents.switch
            self.shelf.look(switch.awaited or switch.content_id, self.ledger.usable, now)
            on_shelf = len(self.shelf)
        content, unreachable = self.content_id, self.pool.unreachable
        judges = self.comparing.judges
        cut_off = self.pool.is_shut_out or self.reachability.may_be_cut_off(now)
        self.governor.decide(self.ledger, unreachable, now, on_shelf, content, judges, cut_off)

    @property
    def is_cut_off(self) -> bool:
        """Whether no teacher can be reached, or none lets the reader in: more would not help."""
        return self.pool.is_shut_out or self.reachability.cut_off_since is not None

    def _look_around(self, now: float) -> None:
        """Time goes by: what follows from that alone."""
        self._follow(self.contents.look(now, self.roster.answers(), self.ledger.usable))
        self._teachers.look(self.governor.waiting_since is not None, now)
        self._remembering.look(self.content_id, now)

    @property
    def content_id(self) -> str:
        """Of the model that labels come from now; empty while that is not known."""
        return self.contents.switch.told or ("" if self.shelf is None else self.shelf.content_id)

    def is_on_shelf(self, number: int) -> bool:
        """Whether a batch has not come to the teachers, as its labels may be in the store."""
        return self.shelf is not None and self.shelf.has(number)

    # --- the teachers

    def _on_assigned(self, assigned: Assigned) -> None:
        self.epoch = max(self.epoch, assigned.epoch)
        self._follow(self.contents.assigned(assigned, time.monotonic()))

    def _follow(self, change: tuple[Assigned, bool] | None) -> None:
        """Send to these teachers from now on; and label anew, by them, what is not delivered."""
        if change is None:
            return
        assigned, anew = change
        lost, revoked = self.pool.update(assigned)
        self._count_awaited()
        there = {peer.teacher_id for peer in assigned.peers}
        self.crew.standings.keep(there.difference(lost))
        for name in (*lost, *revoked):  # before any of their rows go to others
            self.carrying.handle(ev.TeacherRevoked(name))
        for name in lost:
            self._teachers.lost(name)
        for name in revoked:
            self._teachers.revoked(name)
        if anew:
            self.relabelled += len(self.labels)
            self.labels.clear()
            self._teachers.void()
            if self.shelf is not None:
                self.shelf.follow(self.contents.switch.content_id)
            self.carrying.handle(ev.Relabel(stored=self.shelf is not None))

    def _on_failed_for_good(self, error: errors.EdlError) -> None:
        self._says.failed(error, True)

    def _on_outcome(self, link: TeacherLink, outcome: Outcome) -> None:
        self._says.came(link.peer.teacher_id, outcome, time.monotonic())
        if not self.pool.holds(link):
            self.labels.discards += isinstance(outcome, Done)
            return
        name = link.peer.teacher_id
        self.pool.hear(link)
        match outcome:
            case Done():  # as nearly always
                self._on_done(link, outcome)
            case Ready(inputs):
                link.met(inputs)
                self.reachability.heard(link.peer)
                words = misfit_of_settings(self.config, link.peer, link.found)
                if words and self.pool.is_assigned(link):
                    self._on_misfit(link, words)
                else:
                    if self.shelf is not None:
                        self.shelf.meet(link.peer, inputs)
                    self._teachers.ready(link, time.monotonic())
            case Broke(None, error):
                self.pool.is_silent(name, error)
            case Broke(Job() as job, error):
                self._on_broke(link, job, error)
        self._teachers.let_go(name)
        self._count_awaited()

    def _on_misfit(self, link: TeacherLink, words: str) -> None:
        """A teacher's model is not what the reader's settings are for: it gets nothing.

        Where that is so of every teacher, the settings are wrong.
        """
        name, now = link.peer.teacher_id, time.monotonic()
        self.crew.refused(name, now)
        self.pool.mark_useless(name)
        self.pool.probe(name, self.crew.pause_s(name, now), f"does not fit: {words}")
        if self.pool.all_useless and not self.ledger.sent:
            self._on_failed_for_good(errors.UsageError(f"teacher {name}: {words}"))

    def _count_awaited(self) -> None:
        """Let the ledger know, where it is news, how many may yet join any moment."""
        if (awaited := self.pool.awaited) != self._awaited:
            self._awaited = awaited
            self.carrying.handle(ev.Awaited(awaited))

    def _on_done(self, link: TeacherLink, done: Done) -> None:
        if (without := self.contents.hear(link.peer.teacher_id, done.numerics_id)) is not None:
            self._follow((without, False))
            self.carrying.handle(ev.Cancelled(link.peer.teacher_id, done.job.request))
            return
        try:
            self.labels.check(done)
        except errors.BadAnswer as error:
            self._on_broke(link, done.job, error)
            return
        name, job = link.peer.teacher_id, done.job
        self.reachability.heard(link.peer)
        if log.isEnabledFor(logging.DEBUG):
            about = {"service": self.config.service, **job.about(name)}
            log.debug("%s answers after %.6f s", name, done.seconds, extra=about)
        self.pool.has_labelled(name)
        self.governor.figures.answer(name, done.device_s, job.samples)
        self._says.answered(self, name, done)
        in_flight = len(self.ledger.in_flight_at(name))
        out = self.ledger.handle(ev.Answered(name, job.request, done.row_nbytes, done.device_s))
        accepted = False
        for instruction in out:
            match instruction:
                case ev.Accept(job.request, spans):
                    self.labels.write(done, spans)
                    if self.shelf is not None:
                        self.shelf.keep(done, spans, link.inputs, self._batches)
                    self.governor.figures.labelled(name)
                    accepted = len(spans) == len(job.spans)
                case ev.Discard(job.request):
                    self.labels.discards += 1
        self.carrying.carry_out(out)
        self._teachers.answered(name, done, in_flight, accepted)
        if done.draining:
            self._teachers.revoked(name)

    def _on_broke(self, link: TeacherLink, job: Job, error: errors.EdlError) -> None:
        name = link.peer.teacher_id
        about = {"service": self.config.service, **job.about(name)}
        log.debug("%s does not label a request: %s", name, error, extra=about)
        is_void = any(span.batch not in self._batches for span in job.spans)
        self._teachers.broke(link, job, error, is_void)
