"""Membership and health of the teachers of one service: join, answer, fail, eject, leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from .. import reachability
from ..backoff import RandomLike
from ..canaries import CanaryConfig, ComparisonVerdict
from ..circuit_breakers import CircuitBreakers, Log
from ..ledger import Ledger
from ..ledger import events as ev
from ..reachability import Reachability
from ..stream_stats import StreamStats
from .comparisons import Comparisons
from .events import AnswerCame, PathsTried, Peer, Probed, ProbeFailed, RequestFailed
from .hedging import Lateness
from .instructions import DropCachedLabels, Instruction, RefuseSettings, TryPaths
from .links import TeacherLinks
from .request_pacing import RequestPacing

#: No connection has to be tried.
_REACHABLE: Final[Reachability[Peer]] = Reachability()


class TeacherStates:
    """The teachers of one service.

    Args:
        ledger: the ledger of the service, only read here.
        pacing: windows and request sizes.
        stats: measurements of the stream.
        canaries: settings of comparing answers; None: compare nothing.
        rng: jitters probes, and draws the requests that are compared.
        emit: takes an instruction for the driver.
        apply: applies an event to the ledger.
        log: writes a log message.

    Attributes:
        links: the connections.
        breakers: the circuit breakers.
        lateness: finds late requests and stragglers.
        comparisons: comparisons of labels.
    """

    def __init__(
        self,
        ledger: Ledger,
        pacing: RequestPacing,
        stats: StreamStats,
        canaries: CanaryConfig | None,
        rng: RandomLike,
        emit: Callable[[Instruction], None],
        apply: Callable[[ev.Event], None],
        log: Log,
    ) -> None:
        self._ledger = ledger
        self._pacing = pacing
        self._stats = stats
        self._emit = emit
        self._apply = apply
        self._log = log
        self.links = TeacherLinks(rng, emit, log)
        self.breakers = CircuitBreakers(rng, log)
        self.lateness = Lateness(ledger, pacing, log)
        self._resting: set[str] = set()  # since a request failed, until they answer a probe
        self.comparisons = Comparisons(canaries, ledger, rng, emit, self._resting)
        self._reach = _REACHABLE

    # --- time

    def tick(self, waits: bool, now: float) -> None:
        """Apply changes that follow from time.

        `waits`: the training loop or a call waits for labels.
        """
        ledger, links, usable = self._ledger, self.links, self._ledger.usable
        is_answer_due = not usable or bool(ledger.at_work)
        reach, due = reachability.tick(self._reach, links.wanted.values(), is_answer_due, now)
        self._set_reachability(reach)
        if due:
            self._emit(TryPaths(due, now))
        unusable = self._resting.union(ledger.on_trial)
        for hedge in self.lateness.tick(waits, unusable, now):
            self._apply(hedge)
        silent, names = self.lateness.hedging.silent, ledger.usable_teachers
        for name in self.breakers.record_silence(ledger.teachers, silent, names, now):
            self._eject(name, "does not answer", now)
        if not usable:
            # Without a usable teacher, pauses are shorter than planned.
            for name in self.breakers.half_open(usable, now):
                links.probe_now(name, now)
        if ledger.on_trial:
            self._judge([self.comparisons.panel.tick(self._answering, now)], now)

    @property
    def _answering(self) -> frozenset[str]:
        """Teachers that can be expected to answer now, including those on trial."""
        return frozenset(self._ledger.teachers) - self._resting - self.lateness.hedging.late

    def _pause_s(self, name: str, now: float) -> float:
        return self.breakers.pause_s(name, self._ledger.usable, now)

    # --- reachability

    @property
    def silent_since(self) -> float | None:
        """Since when all teachers are silent, if none can be reached; None: one can, or unknown."""
        return self._reach.silent_since if self._reach.is_cut_off else None

    def cut_off(self, now: float) -> tuple[bool, bool]:
        """Return whether the reader is known to be cut off, and whether it may be.

        It is cut off if no teacher can be reached, or none accepts it: then more teachers do not
        help.
        """
        shut_out, reach = self.links.is_shut_out, self._reach
        return shut_out or reach.is_cut_off, shut_out or reach.may_be_cut_off(now)

    def paths_tried(self, event: PathsTried, now: float) -> None:
        """Handle the results of connection attempts."""
        links, reach = self.links, self._reach
        to_reconnect = []
        for peer, refusal in event.refusals.items():
            reach, reconnects = reachability.attempted(reach, peer, event.began_at, not refusal)
            if refusal:
                links.last_trouble = f"teacher {peer.teacher_id} cannot be reached: {refusal}"
            if reconnects and links.wanted.get(peer.teacher_id) == peer:
                to_reconnect.append(peer.teacher_id)
        self._set_reachability(reach)
        for name in to_reconnect:  # TCP may wait long before it retransmits
            self.lost([name], now)
            links.reconnect_now(name, now)

    def _record_reachable(self, name: str) -> None:
        """Record that the teacher has answered, so it is reachable."""
        if not self._reach.attempts:  # the usual case
            self._reach = _REACHABLE
        else:
            self._set_reachability(reachability.answered(self._reach, self.links.peer(name)))

    def _set_reachability(self, reach: Reachability[Peer]) -> None:
        self._reach = reach
        before = self.links.out_of_reach
        after = frozenset(peer.teacher_id for peer in reach.unreachable)
        if after == before:
            return
        self.links.out_of_reach = after
        for name in sorted(after - before):
            self._log("warning", f"teacher {name} cannot be reached", name)
        for name in sorted((before - after) & self.links.wanted.keys()):
            self._log("info", f"teacher {name} can be reached again", name)

    # --- membership

    def probed(self, event: Probed, now: float) -> None:
        name, links = event.teacher, self.links
        self._record_reachable(name)
        if event.misfit and links.is_assigned(name):
            self._eject_misfit(name, event.misfit, now)
        else:
            self._ready(event, now)
        self.close_if_leaving(name, now)

    def _ready(self, event: Probed, now: float) -> None:
        name, links = event.teacher, self.links
        pause_s = self._pause_s(name, now)
        links.probe_answered(name, is_ejected=pause_s > 0)
        if pause_s > 0:
            links.plan_probe(name, now, pause_s)  # it was ejected after the probe began
            return
        if not links.is_assigned(name):
            return  # it is leaving
        on_trial = self.comparisons.joined(name, links.peer(name).numerics_id)
        has_only_rested = self._has_only_rested(name, event.most_rows)
        self._resting.discard(name)
        self.breakers.probed(name, now)
        if has_only_rested:
            self._apply(ev.Resumed(name))
        else:
            joined = self._pacing.joined(name, now, event.most_rows)
            has_labelled = name in self.breakers.labellers
            self._apply(replace(joined, on_trial=on_trial, has_labelled=has_labelled))
        if on_trial:
            for refuser in sorted(self._ledger.refusers):  # the new teacher may label their batches
                self._judge([self.comparisons.panel.refused(refuser)], now)
            for copy in self.comparisons.copies_for_trials():
                self._apply(copy)

    def _has_only_rested(self, name: str, most_rows: int | None) -> bool:
        """Whether a teacher that rested is still in the pool, with the same limit of rows.

        If so, the ledger keeps the refusals of this teacher. A teacher that has labelled nothing
        then gets all other batches first, before any batch that has crashed its predictor.
        """
        if name not in self._resting or self.breakers.is_open(name):
            return False
        return name in self._ledger.teachers and self._pacing.has_joined(name, most_rows)

    def _eject_misfit(self, name: str, misfit: str, now: float) -> None:
        """Eject a teacher whose model contradicts the reader's settings.

        If the models of all teachers contradict them, the settings are wrong.
        """
        links = self.links
        links.probe_answered(name)
        self._eject_useless(name, f"does not fit: {misfit}", now)
        if links.all_useless and not self._ledger.sent:
            self._emit(RefuseSettings(f"teacher {name}: {misfit}"))

    def probe_failed(self, event: ProbeFailed, now: float) -> None:
        self.links.probe_failed(event, now)
        self.close_if_leaving(event.teacher, now)

    def lost(self, names: Iterable[str], now: float) -> None:
        """Remove dead teachers."""
        names = [*names]
        for name in names:
            self._forget(name)
            self._apply(ev.TeacherGone(name))
        # After all are removed: verdicts must not be about lost teachers, which have no link.
        self._judge(self.comparisons.left(*names), now)

    def revoked(self, name: str, now: float) -> None:
        """Send this teacher no more requests."""
        self._stats.forget_teacher(name)
        self.links.leave(name)
        self._apply(ev.TeacherRevoked(name))
        self._judge(self.comparisons.left(name), now)
        self.close_if_leaving(name, now)

    def close_if_leaving(self, name: str, now: float) -> None:
        """Close the connection of a leaving teacher once it has no request in flight."""
        if not self._ledger.in_flight_at(name) and self.links.close_if_leaving(name, now):
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._stats.forget_teacher(name)  # once more: a leaving teacher may have answered since
        self._resting.discard(name)
        self._pacing.forget(name)

    # --- requests

    def answered(
        self, answer: AnswerCame, in_flight: int, spans: tuple[ev.Span, ...], now: float
    ) -> None:
        """Handle labels of a teacher with `in_flight` requests; `spans` are the accepted rows."""
        self._record_reachable(answer.teacher)
        self.links.record_labels(answer.teacher)
        self.breakers.answered(answer.teacher, now)
        for event in self._pacing.answered(answer, in_flight, now):
            self._apply(event)
        if verdicts := self.comparisons.answered(answer, spans):
            self._judge(verdicts, now)
        if answer.draining:
            self.revoked(answer.teacher, now)

    def failed(self, event: RequestFailed, now: float) -> None:
        name, request, failure, reason = event.teacher, event.request, event.failure, event.reason
        links = self.links
        self._pacing.ended(name, request)
        if failure == "overwritten" or (failure == "bad answer" and event.void):
            # Not the teacher's fault: if the student has left the epoch of the batch, its memory
            # may have been reused while it was sent.
            self._apply(ev.Cancelled(name, request))
        elif failure == "refused":
            # Admit a teacher on trial first: else the ledger may find that all teachers refused.
            self._judge([self.comparisons.panel.refused(name)], now)
            self._apply(ev.Refused(name, request, reason))
            is_in = links.is_assigned(name) and not self.breakers.is_open(name)
            if is_in and self._ledger.is_useless(name):
                self._eject_useless(name, f"has labelled nothing and refuses: {reason}", now)
        elif failure in ("bad answer", "lost"):
            if failure == "bad answer":
                self.breakers.convict(name, "wrong", now)
                links.mark_useless(name)
            self.lost([name], now)
            links.reconnect(event, self._pause_s(name, now), now)
        else:  # the teacher rests, and the rows are sent again
            self._resting.add(name)  # first: requests that are sent again now are not copied to it
            self._apply(ev.AttemptFailed(name, request, reason if failure == "crashed" else ""))
            if failure == "full":
                for change in self._pacing.refused(name, now):
                    self._apply(change)
            others = len(self._answering - self.breakers.ejected.keys())
            counts = failure not in ("full", "shut out")
            if counts and self.breakers.failed(name, others, now):
                self._eject(name, f"failed: {reason}", now)
            links.retry(event, self._pause_s(name, now), now)
        self._judge(self.comparisons.ended(name, request), now)
        self.close_if_leaving(name, now)

    def cancelled(self, event: ev.Cancelled, now: float) -> None:
        """Handle a request that was not sent, or an answer with labels that must not be used."""
        self._pacing.ended(event.teacher, event.request)
        self._apply(event)
        self._judge(self.comparisons.ended(event.teacher, event.request), now)
        self.close_if_leaving(event.teacher, now)

    def _eject_useless(self, name: str, why: str, now: float) -> None:
        self.breakers.convict(name, "refused", now, why)
        self.links.mark_useless(name)
        self._eject(name, why, now)

    def _eject(self, name: str, why: str, now: float) -> None:
        """Take a teacher out of the pool, and probe it after its pause."""
        self._apply(ev.Ejected(name))
        self._judge(self.comparisons.left(name), now)
        self.links.probe_ejected(name, self._pause_s(name, now), why, now)

    def _judge(self, verdicts: Iterable[ComparisonVerdict], now: float) -> None:
        """Carry out verdicts of comparisons: put teachers on trial, readmit or convict them."""
        pending = deque(verdicts)
        while pending:
            verdict = pending.popleft()
            for name in verdict.readmit:
                self._log("info", f"teacher {name} is admitted", name)
                self._apply(ev.Readmitted(name))
            for name in verdict.trial:
                state = "is on trial: its labels contradict those of another teacher"
                self._log("warning", f"teacher {name} {state}", name)
                self._apply(ev.Ejected(name))
            for name in verdict.liars:
                self.breakers.convict(name, "lied", now)
                self._apply(ev.InvalidateTeacher(name))
                pending.extend(self.comparisons.left(name))
                self._emit(DropCachedLabels(name))
                pause_s = self._pause_s(name, now)
                self.links.probe_ejected(
                    name, pause_s, "sent labels that contradict the others", now
                )
