"""Runs the comparisons of answers that `scheduler.canaries` decides about.

While several teachers label a request, the driver keeps the labels of each, and reports with each
answer which kept ones agree with it. It drops them once every teacher has answered or will not
answer. The windows bound the number of such requests.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """A request whose answers are compared.

    Attributes:
        working: teachers that have the request in flight.
        planned: teachers that will get a copy.
        copied: teachers that got a copy; its rows are in separate memory.
        answered: teachers that have answered.
        agreeing: pairs of teachers that agree.
        judged: teachers that had answered at the latest judgement.
        is_kept: the driver keeps answers to the request.
    """

    working: set[str]
    planned: set[str]
    copied: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    agreeing: set[frozenset[str]] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)
    is_kept: bool = False

    @property
    def copying(self) -> set[str]:
        """Teachers with a copy that is not judged yet."""
        return self.planned | self.copied & (self.working | self.answered - self.judged)


class Comparisons:
    """The comparisons of one service.

    Methods that may lead to verdicts return them; the caller carries them out in order.

    Args:
        config: the settings; None: compare nothing.
        ledger: the ledger of the service, only read here.
        rng: draws the sample of requests.
        emit: takes an instruction for the driver.
        resting: teachers that get no copies, because a request failed there; the caller updates
            the set.

    Attributes:
        panel: knows which teachers are trusted.
    """

    def __init__(
        self,
        config: CanaryConfig | None,
        ledger: Ledger,
        rng: RandomLike,
        emit: Callable[[Instruction], None],
        resting: set[str],
    ) -> None:
        self._config = config
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
        if self._config is None:
            return False
        if (known := self.panel.members.get(name)) is not None:
            return known.trial
        self._numerics[name] = numerics_id
        return self.panel.join(name)

    def left(self, *names: str) -> list[ComparisonVerdict]:
        """Remove teachers and their answers.

        Pass all teachers that leave together. Otherwise the answers of those not yet removed would
        be judged.
        """
        verdicts = [self.panel.leave(*names)]
        for name in names:
            self._numerics.pop(name, None)
        for case in self._cases.values():
            for teachers in (case.working, case.planned, case.answered, case.judged):
                teachers.difference_update(names)
            case.agreeing = {pair for pair in case.agreeing if pair.isdisjoint(names)}
        for request, case in list(self._cases.items()):
            verdicts += self._close(request, case)
        return verdicts

    def tolerance(self, name: str, numerics_id: str, other: str) -> float:
        """Return the tolerated difference between `name`, with this numerics_id, and `other`."""
        assert self._config is not None
        numerics_id = numerics_id or self._numerics.get(name, "")
        return self._config.tolerance(numerics_id, self._numerics.get(other, ""))

    # --- requests

    def copies_for_trials(self) -> list[ev.Hedge]:
        """Return copies of one request in flight, for teachers on trial.

        Without these copies they would wait for the next new request, which may take long.
        """
        for name in self.panel.trusted:
            for sent in self._ledger.requests_at(name):
                if sent.attempt == 1 and name in sent.teachers and sent.request not in self._cases:
                    return self._copies(sent.request, name)
        return []

    def sent(self, send: ev.Send) -> tuple[bool, list[ev.Hedge]]:
        """Record a sent request; return whether it is a copy for a comparison, and copies to send.

        A copy gets memory of its own, because the memory of the batch may be reused before the copy
        is answered: the first answer is delivered without waiting for the comparison.
        """
        if self._config is None:
            return False, []
        if (case := self._cases.get(send.request)) is None:
            if send.attempt > 1 or len(self.panel.members) < 2:
                return False, []
            return False, self._copies(send.request, send.teacher)
        case.working.add(send.teacher)
        if is_copy := send.teacher in case.planned:
            case.planned.discard(send.teacher)
            case.copied.add(send.teacher)
        return is_copy, []

    def answered(
        self, answer: AnswerCame, accepted: tuple[ev.Span, ...]
    ) -> list[ComparisonVerdict]:
        """Record an answer, and compare it unless it may be about other samples.

        If part of an answer was not accepted, it may be about other samples: the memory of a batch
        is reused once no answer is needed, and a late teacher then reads the inputs of another
        batch. Copies have their own memory.
        """
        name, request = answer.teacher, answer.request
        if (case := self._cases.get(request)) is None:
            return []
        if answer.numerics_id:
            self._numerics[name] = answer.numerics_id
        case.working.discard(name)
        is_whole = sum(span.rows for span in accepted) == answer.rows
        if name not in self.panel.members or not (is_whole or name in case.copied):
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
        case.working.discard(name)
        return self._close(request, case)

    def clear(self) -> None:
        """Forget all comparisons, because answers to requests in flight are no longer used."""
        if self._cases:
            self._emit(DropAllAnswers())
        self._cases.clear()

    # --- internal

    def _copies(self, request: int, teacher: str) -> list[ev.Hedge]:
        assert self._config is not None
        copying = {name for case in self._cases.values() for name in case.copying}
        chosen = self.panel.copies(teacher, self._rng, self._config, copying)
        if names := [name for name in chosen if name not in self._resting]:
            self._cases[request] = _ComparedRequest({teacher}, set(names))
        return [ev.Hedge(request, name) for name in names]

    def _close(self, request: int, case: _ComparedRequest) -> list[ComparisonVerdict]:
        """Judge a request once nothing more is expected, and forget it."""
        in_flight = self._ledger.request(request)
        # If it is answered or not wanted any more, the ledger sends no more copies.
        if in_flight is None or not in_flight.teachers:
            case.planned.clear()
        if case.working or case.planned or self._cases.get(request) is not case:
            return []
        del self._cases[request]
        verdicts: list[ComparisonVerdict] = []
        if case.answered != case.judged and len(case.answered) > 1:
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
