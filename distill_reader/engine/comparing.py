"""Answers of several teachers to one request, kept until they can be compared.

What is compared, and who lies, is said by `scheduler.canaries`; whether two say the same, by
`agreement`. This keeps the labels meanwhile: of each request that more than one teacher is to
label, until all of them have answered or will not. These are never more than windows have room for.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ...proto.arena import Array
from ...scheduler import canaries
from ...scheduler.canaries import Panel, Verdict
from ...scheduler.ledger import Ledger
from ...scheduler.ledger import events as ev
from ..config import ReaderConfig
from .agreement import agree, furthest
from .outcomes import Done


@dataclass(slots=True)
class _Case:
    """One request that is compared.

    Attributes:
        asked: who is at work on it.
        planned: who is to get a copy, and has not been sent it.
        copied: who got a copy in memory of its own.
        answers: the labels, by who gave them.
        agreeing: the pairs of those that agree.
        judged: how many answers there were when it was judged last.
    """

    asked: set[str]
    planned: set[str]
    copied: set[str] = field(default_factory=set)
    answers: dict[str, Mapping[str, Array]] = field(default_factory=dict)
    agreeing: set[frozenset[str]] = field(default_factory=set)
    judged: int = 0


class Comparing:
    """The panel of one member's teachers. Used by the engine's thread alone.

    Every method that may lead to a verdict gives those that there are, to be carried out in order.

    Args:
        config: of the member.
        ledger: of the member; it is only read here.
    """

    def __init__(self, config: ReaderConfig, ledger: Ledger) -> None:
        self._dispute = ""  # the latest, in words
        self._service = config.service
        self._rule = None if config.canaries is None else config.canaries.rule()
        self._forms = config.labels
        self._ledger = ledger
        self._panel = Panel()
        self._numerics: dict[str, str] = {}
        self._cases: dict[int, _Case] = {}
        self._resting: set[str] = set()  # since a request failed there

    # --- teachers

    def joined(self, name: str, numerics_id: str) -> bool:
        """A teacher can be asked; whether it is on trial. One that is known stays what it is."""
        if self._rule is None:
            return False
        self._resting.discard(name)
        if (known := self._panel.members.get(name)) is not None:
            return known.trial
        self._numerics[name] = numerics_id
        self._panel, trial = canaries.join(self._panel, name)
        return trial

    def left(self, name: str) -> list[Verdict]:
        """A teacher cannot be asked any more, and what it has said counts no more."""
        self._panel, verdict = canaries.leave(self._panel, name)
        self._numerics.pop(name, None)
        self._resting.discard(name)
        verdicts = [verdict]
        for request, case in list(self._cases.items()):
            case.asked.discard(name)
            case.planned.discard(name)
            if case.answers.pop(name, None) is not None:
                case.agreeing = {pair for pair in case.agreeing if name not in pair}
                case.judged = min(case.judged, len(case.answers))
            verdicts += self._close(request, case)
        return verdicts

    def look(self, answering: Collection[str], now: float) -> list[Verdict]:
        """Time goes by, and these teachers would answer."""
        self._panel, verdict = canaries.look(self._panel, answering, now)
        return [verdict]

    @property
    def disputed(self) -> tuple[str, ...]:
        """Teachers that contradict each other, while nobody can tell who is wrong."""
        return self._panel.disputed

    @property
    def dispute(self) -> str:
        """The same in words, with how far they lie apart; empty: there are none."""
        return self._dispute if self._panel.disputed else ""

    @property
    def judges(self) -> int:
        """Teachers that are wanted besides, for that."""
        return self._panel.judges

    # --- requests

    def catch_up(self) -> list[ev.Hedge]:
        """Copies of what is in flight, for those on trial: the next may be long in coming."""
        for name in self._panel.trusted:
            for told in self._ledger.requests_at(name):
                if told.attempt == 1 and name in told.teachers and told.request not in self._cases:
                    return self._copies(told.request, name)
        return []

    def is_copy(self, send: ev.Send) -> bool:
        """Whether a request that is to be sent is a copy, made to be compared.

        It goes in memory of its own, as that of the batch may be used again before it is answered:
        what it is compared with is delivered, and not held up.
        """
        case = self._cases.get(send.request)
        return case is not None and send.teacher in case.planned

    def sent(self, send: ev.Send) -> list[ev.Hedge]:
        """A request goes out; who is to get it as well."""
        if self._rule is None:
            return []
        if (case := self._cases.get(send.request)) is None:
            return self._copies(send.request, send.teacher) if send.attempt == 1 else []
        case.asked.add(send.teacher)
        if send.teacher in case.planned:
            case.planned.discard(send.teacher)
            case.copied.add(send.teacher)
        return []

    def answered(self, name: str, done: Done, accepted: bool) -> list[Verdict]:
        """A teacher has answered; where its answer was not accepted, it may be of other samples.

        Batches are overwritten once nobody needs them, and somebody who is late is sent whatever
        lies there then. A copy in memory of its own is what it was.
        """
        request, labels = done.job.request, done.labels
        if (case := self._cases.get(request)) is None:
            return []
        if done.numerics_id:
            self._numerics[name] = done.numerics_id
        case.asked.discard(name)
        if name not in self._panel.members or not (accepted or name in case.copied):
            self._panel = canaries.ended(self._panel, name)
            return self._close(request, case)
        agreeing = {
            frozenset((name, other))
            for other, said in case.answers.items()
            if agree(labels, said, self._tolerance(name, other), self._forms)
        }
        case.answers[name] = labels
        case.agreeing |= agreeing
        verdicts = self._judge(case) if agreeing else []
        return verdicts + self._close(request, case)

    def rests(self, name: str) -> None:
        """A request failed at a teacher: it gets no copies until it has answered a probe."""
        self._resting.add(name)

    def refused(self, name: str) -> list[Verdict]:
        """A teacher refuses a request, which the ledger is told next."""
        self._panel, verdict = canaries.refused(self._panel, name)
        return [verdict]

    def ended(self, name: str, request: int) -> list[Verdict]:
        """A request came to nothing at a teacher."""
        if (case := self._cases.get(request)) is None:
            return []
        case.asked.discard(name)
        self._panel = canaries.ended(self._panel, name)
        return self._close(request, case)

    def clear(self) -> None:
        """What is in flight is of no use any more."""
        for case in self._cases.values():
            self._end({*case.asked, *case.planned, *case.answers})
        self._cases.clear()

    # --- within

    def _copies(self, request: int, teacher: str) -> list[ev.Hedge]:
        assert self._rule is not None
        self._panel, chosen = canaries.copies(self._panel, teacher, random, self._rule)
        if not chosen:  # as nearly always
            return []
        self._end(self._resting.intersection(chosen))
        if names := [name for name in chosen if name not in self._resting]:
            self._cases[request] = _Case({teacher}, set(names))
        return [ev.Hedge(request, name) for name in names]

    def _tolerance(self, name: str, other: str) -> float:
        assert self._rule is not None
        return self._rule.tolerance(self._numerics.get(name, ""), self._numerics.get(other, ""))

    def _close(self, request: int, case: _Case) -> list[Verdict]:
        """Judge a case once nothing more is to come, and forget it."""
        told = self._ledger.request(request)
        if told is None or not told.teachers:  # it has its labels: the ledger copies it no more
            self._end(case.planned)
            case.planned.clear()
        if case.asked or case.planned or self._cases.get(request) is not case:
            return []
        del self._cases[request]
        if case.judged == len(case.answers) or len(case.answers) < 2:
            self._end(case.answers)
            return []
        return self._judge(case)

    def _judge(self, case: _Case) -> list[Verdict]:
        case.judged = len(case.answers)
        self._panel, verdict = canaries.judge(self._panel, list(case.answers), case.agreeing)
        if verdict.disputed:
            first, second, *_ = verdict.disputed
            output, apart = furthest(case.answers[first], case.answers[second])
            self._dispute = (
                f"teachers {', '.join(verdict.disputed)} of {self._service!r} disagree by {apart}"
                f" on output {output!r}; another one is needed to tell who is wrong"
            )
        return [verdict]

    def _end(self, names: Collection[str]) -> None:
        for name in names:
            self._panel = canaries.ended(self._panel, name)
