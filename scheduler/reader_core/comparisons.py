"""Runs the comparisons of answers that `scheduler.canaries` decides about.

While several teachers label a request, the driver keeps its labels and says which of them agree,
until each teacher has answered, or is known not to answer. The windows bound the number of such
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import combinations

from ..backoff import RandomLike
from ..canaries import CanaryConfig, ComparisonPanel, ComparisonVerdict
from ..ledger import Ledger
from ..ledger import events as ev
from .events import AnswerCame
from .instructions import Disputed, DropAllAnswers, DropAnswers, Instruction, KeepAnswer


@dataclass(slots=True)
class _ComparedRequest:
    """A request that is compared.

    Attributes:
        asked: teachers that work on it.
        planned: teachers that will get a copy.
        copied: teachers that got a copy in memory of its own.
        answered: teachers that have answered.
        agreeing: pairs of teachers that agree.
        judged: teachers that had answered at the latest judgement.
        is_kept: the driver keeps answers to it.
    """

    asked: set[str]
    planned: set[str]
    copied: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    agreeing: set[frozenset[str]] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)
    is_kept: bool = False


class Comparisons:
    """The comparisons of one service.

    Methods that may lead to verdicts return them; carry them out in order.

    Args:
        rule: the settings; None: compare nothing.
        ledger: the ledger of the service, only read here.
        rng: draws the sample.
        emit: takes an instruction for the driver.
        resting: teachers that get no copies, as a request failed there; the caller changes it.

    Attributes:
        panel: knows which teachers are trusted.
    """

    def __init__(
        self,
        rule: CanaryConfig | None,
        ledger: Ledger,
        rng: RandomLike,
        emit: Callable[[Instruction], None],
        resting: set[str],
    ) -> None:
        self._rule = rule
        self._ledger = ledger
        self._rng = rng
        self._emit = emit
        self._resting = resting
        self.panel = ComparisonPanel()
        self._numerics: dict[str, str] = {}
        self._cases: dict[int, _ComparedRequest] = {}

    # --- teachers

    def joined(self, name: str, numerics_id: str) -> bool:
        """Add a teacher unless it is known; return whether it is on trial."""
        if self._rule is None:
            return False
        if (known := self.panel.members.get(name)) is not None:
            return known.trial
        self._numerics[name] = numerics_id
        return self.panel.join(name)

    def left(self, *names: str) -> list[ComparisonVerdict]:
        """Remove teachers and their answers, so those that leave together are not compared."""
        verdicts = [self.panel.leave(*names)]
        for name in names:
            self._numerics.pop(name, None)
        for case in self._cases.values():
            for known in (case.asked, case.planned, case.answered, case.judged):
                known.difference_update(names)
            case.agreeing = {pair for pair in case.agreeing if pair.isdisjoint(names)}
        for request, case in list(self._cases.items()):
            verdicts += self._close(request, case)
        return verdicts

    def tolerance(self, name: str, numerics_id: str, other: str) -> float:
        """Return the tolerated difference between `name`, with this numerics_id, and `other`."""
        assert self._rule is not None
        numerics_id = numerics_id or self._numerics.get(name, "")
        return self._rule.tolerance(numerics_id, self._numerics.get(other, ""))

    # --- requests

    def copies_for_trials(self) -> list[ev.Hedge]:
        """Return copies of one request in flight for teachers on trial.

        Without it they would wait for the next request, which may take long to come.
        """
        for name in self.panel.trusted:
            for one in self._ledger.requests_at(name):
                if one.attempt == 1 and name in one.teachers and one.request not in self._cases:
                    return self._copies(one.request, name)
        return []

    def sent(self, send: ev.Send) -> tuple[bool, list[ev.Hedge]]:
        """Record a sent request; return whether it is a copy for a comparison, and further copies.

        A copy gets memory of its own, because the memory of the batch may be reused before it is
        answered: the first answer is delivered without waiting for the comparison.
        """
        if self._rule is None:
            return False, []
        if (case := self._cases.get(send.request)) is None:
            if send.attempt > 1 or len(self.panel.members) < 2:
                return False, []
            return False, self._copies(send.request, send.teacher)
        case.asked.add(send.teacher)
        if is_copy := send.teacher in case.planned:
            case.planned.discard(send.teacher)
            case.copied.add(send.teacher)
        return is_copy, []

    def answered(
        self, answer: AnswerCame, accepted: tuple[ev.Span, ...]
    ) -> list[ComparisonVerdict]:
        """Record an answer, and compare it unless it may be about other samples.

        An answer of which a part was not accepted may be about other samples: the memory of a batch
        is reused once no answer is needed, and a late teacher reads what is there then. Copies have
        their own memory.
        """
        name, request = answer.teacher, answer.request
        if (case := self._cases.get(request)) is None:
            return []
        if answer.numerics_id:
            self._numerics[name] = answer.numerics_id
        case.asked.discard(name)
        is_whole = sum(span.rows for span in accepted) == answer.rows
        if name not in self.panel.members or not (is_whole or name in case.copied):
            self.panel.ended(name)
            return self._close(request, case)
        agreeing = {frozenset((name, other)) for other in answer.agrees & case.answered}
        self._emit(KeepAnswer(request, name))
        case.is_kept = True
        case.answered.add(name)
        case.agreeing |= agreeing
        verdicts = self._judge(request, case) if agreeing else []
        return verdicts + self._close(request, case)

    def ended(self, name: str, request: int) -> list[ComparisonVerdict]:
        """Record that a teacher will not answer a request."""
        if (case := self._cases.get(request)) is None:
            return []
        case.asked.discard(name)
        self.panel.ended(name)
        return self._close(request, case)

    def clear(self) -> None:
        """Forget all comparisons, because requests in flight are of no use any more."""
        for case in self._cases.values():
            self._release_copies({*case.asked, *case.planned, *case.answered})
        if self._cases:
            self._emit(DropAllAnswers())
        self._cases.clear()

    # --- within

    def _copies(self, request: int, teacher: str) -> list[ev.Hedge]:
        assert self._rule is not None
        chosen = self.panel.copies(teacher, self._rng, self._rule)
        if not chosen:  # the usual case
            return []
        self._release_copies(self._resting.intersection(chosen))
        if names := [name for name in chosen if name not in self._resting]:
            self._cases[request] = _ComparedRequest({teacher}, set(names))
        return [ev.Hedge(request, name) for name in names]

    def _close(self, request: int, case: _ComparedRequest) -> list[ComparisonVerdict]:
        """Judge a request once nothing more is expected, and forget it."""
        found = self._ledger.request(request)
        # It is answered or not wanted any more, so the ledger sends no more copies.
        if found is None or not found.teachers:
            self._release_copies(case.planned)
            case.planned.clear()
        if case.asked or case.planned or self._cases.get(request) is not case:
            return []
        del self._cases[request]
        verdicts: list[ComparisonVerdict] = []
        if case.answered == case.judged or len(case.answered) < 2:
            self._release_copies(case.answered)
        else:
            verdicts = self._judge(request, case)
        if case.is_kept:
            self._emit(DropAnswers(request))
        return verdicts

    def _judge(self, request: int, case: _ComparedRequest) -> list[ComparisonVerdict]:
        case.judged = set(case.answered)
        answers = sorted(case.answered)
        verdict = self.panel.judge(answers, case.agreeing)
        if disputed := verdict.disputed:
            pairs = combinations(disputed, 2)
            pair = next(pair for pair in pairs if frozenset(pair) not in case.agreeing)
            self._emit(Disputed(request, disputed, pair))
        return [verdict]

    def _release_copies(self, names: Collection[str]) -> None:
        for name in names:
            self.panel.ended(name)
