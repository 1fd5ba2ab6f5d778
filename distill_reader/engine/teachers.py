"""What teachers do and what becomes of them: they come, answer, fail, lie, are ejected, and go."""

from __future__ import annotations

import time
from collections.abc import Callable

from ... import errors
from ...scheduler.canaries import Verdict
from ...scheduler.ledger import Ledger
from ...scheduler.ledger import events as ev
from ...scheduler.stream_figures import Figures
from ..config import ReaderConfig
from .comparing import Comparing
from .crew import Crew
from .inbox import Inbox
from .outcomes import Done, Job
from .pool import Pool
from .reachability_check import ReachabilityCheck
from .shelf import Shelf
from .teacher_link import TeacherLink
from .verdicts import Verdicts


class Teachers:
    """The teachers of one member. Used by the engine's thread alone.

    Args:
        config: of the member.
        ledger: of the member; it is only read here.
        pool: the links to them.
        crew: how they do.
        figures: what they label.
        shelf: where nothing of a liar is kept; None: nothing of anybody.
        tell: have the ledger hear of something, and what it says carried out.
        inbox: of the engine's thread.

    Attributes:
        comparing: whether what they say agrees.
        reachability: whether they can be reached.
    """

    def __init__(
        self,
        config: ReaderConfig,
        ledger: Ledger,
        pool: Pool,
        crew: Crew,
        figures: Figures,
        shelf: Shelf | None,
        tell: Callable[[ev.Event], None],
        inbox: Inbox,
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._crew = crew
        self._figures = figures
        self._tell = tell
        self.comparing = Comparing(config, ledger)
        self.reachability = ReachabilityCheck(pool, inbox, self._reached_again)
        self._verdicts = Verdicts(self.comparing, crew, pool, shelf)

    def look(self, waits: bool, now: float) -> None:
        """Time goes by, in which the training loop waits or not."""
        self._pool.look(now)
        self.reachability.look(bool(self._ledger.in_flight) or not self._ledger.usable, now)
        for event in self._crew.look(waits, now):
            self._tell(event)
            if isinstance(event, ev.Ejected):
                name = event.teacher
                self._judge(self.comparing.left(name))
                self._pool.probe(name, self._crew.pause_s(name, now), "says nothing")
        if not self._ledger.usable:
            for name in self._crew.overdue(now):
                self._pool.probe_now(name)
        if self._ledger.on_trial:
            self._judge(self.comparing.look(self._crew.answering, now))

    # --- they come and go

    def ready(self, link: TeacherLink, now: float) -> None:
        """One answers a probe."""
        name = link.peer.teacher_id
        if (pause_s := self._crew.pause_s(name, now)) > 0:
            link.connect(pause_s)  # it was ejected after it was probed: once more
            return
        self._pool.answers(name)
        if not self._pool.is_assigned(link):
            return  # it leaves, and is to get nothing more
        on_trial = self.comparing.joined(name, link.peer.numerics_id)
        self._tell(self._crew.answers(name, on_trial, now, link.most_rows))
        if on_trial:
            for refuser in sorted(self._ledger.refusers):  # it is waited for, to be asked that too
                self._judge(self.comparing.refused(refuser))
            for copy in self.comparing.catch_up():
                self._tell(copy)

    def lost(self, name: str) -> None:
        """One is gone, with all that it had."""
        self._figures.forget_teacher(name)
        self._crew.forget(name)
        self._tell(ev.TeacherLost(name))
        self._judge(self.comparing.left(name))

    def _reached_again(self, name: str) -> None:
        """One could not be reached for a while, so that TCP may wait for long to send again."""
        self.lost(name)
        self._pool.connect_anew(name)

    def revoked(self, name: str) -> None:
        """One is to get nothing more."""
        self._figures.forget_teacher(name)
        self._pool.leave(name)
        self._tell(ev.TeacherRevoked(name))
        self._judge(self.comparing.left(name))
        self.let_go(name)

    def let_go(self, name: str) -> None:
        """One that leaves has perhaps answered its last request."""
        if not self._ledger.in_flight_at(name) and self._pool.let_go(name):
            self._crew.forget(name)

    # --- their requests

    def void(self) -> None:
        """What is in flight is of no use any more."""
        self.comparing.clear()

    def answered(self, name: str, done: Done, in_flight: int, accepted: bool) -> None:
        """One has sent labels, when it had so many requests; all of them are used, or not."""
        for event in self._crew.answered(name, done, in_flight, time.monotonic()):
            self._tell(event)
        self._judge(self.comparing.answered(name, done, accepted))

    def broke(self, link: TeacherLink, job: Job, error: errors.EdlError, is_void: bool) -> None:
        """A request came to nothing; it is void where a batch of it is over."""
        name, now = link.peer.teacher_id, time.monotonic()
        self._crew.speeds.ended(name, job.request)
        match error:
            case errors.InputsOverwritten():
                self._tell(ev.Cancelled(name, job.request))
            case errors.BadAnswer() if is_void:
                # Of an epoch that was left: its memory may have been used again while it was sent.
                self._tell(ev.Cancelled(name, job.request))
            case errors.RequestRefused() | errors.VersionMismatch():
                self._judge(self.comparing.refused(name))
                self._tell(ev.Refused(name, job.request, str(error)))
                is_in = self._pool.is_assigned(link) and name not in self._crew.standings.ejected
                if is_in and self._ledger.is_useless(name):
                    self._eject_refuser(name, str(error), now)
            case errors.RetryableError() | errors.AccessError():  # not the batch's fault
                self.comparing.rests(name)
                crash = str(error) if isinstance(error, errors.PredictorCrashed) else ""
                self._tell(ev.Failed(name, job.request, crash))
                for event in self._crew.failed(name, error, now):
                    self._tell(event)
                    self._judge(self.comparing.left(name))
                self._pool.retry(link, error, self._crew.pause_s(name, now))
            case _:
                if isinstance(error, errors.BadAnswer):
                    self._crew.wrong(name, now)
                    self._pool.mark_useless(name)
                self.lost(name)
                self._pool.reopen(link, error, self._crew.pause_s(name, now))
        self._judge(self.comparing.ended(name, job.request))

    def _eject_refuser(self, name: str, reason: str, now: float) -> None:
        """A teacher refuses what it is asked, and has labelled nothing."""
        self._crew.refused(name, now)
        self._pool.mark_useless(name)
        self._tell(ev.Ejected(name))
        self._judge(self.comparing.left(name))
        self._pool.probe(
            name, self._crew.pause_s(name, now), f"has labelled nothing and refuses: {reason}"
        )

    def _judge(self, verdicts: list[Verdict]) -> None:
        for event in self._verdicts.carry_out(verdicts, time.monotonic()):
            self._tell(event)
