"""In which order batches go to the training loop, how far ahead of it, and which without labels.

A batch is complete once every service has labelled it, or goes without. Then it is offered to the
trainer, in its turn, so that its labels outlive the engine. The training loop may take it once it
is released. Released are only so many as the loop may consume before the engine hears of it: all
others can still be withdrawn, as a teacher may turn out to lie, and the model may be exchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from math import inf
from typing import Final

from .. import no_teacher
from ..ledger import Ledger
from ..no_teacher import Ensemble, Mixture, Policy, mixture
from ..rates import RecentMean, rounded_up
from .events import DeliverUnlabelled, InvalidateBatch, LoopWaiting, Released
from .instructions import (
    BatchLabelled,
    DropBatch,
    ForwardEvent,
    GiveUp,
    GoesUnlabelled,
    LabelsRevoked,
    LogMessage,
    OfferBatch,
    OfferPoison,
    Poison,
    Release,
    StreamInstruction,
    Withdraw,
)

#: The training loop has so much work at hand, in released batches; and so many at least, at most.
AHEAD_S: Final = 0.1
FEWEST_AHEAD, MOST_AHEAD = 2, 64
#: Steps over which the time of a batch is taken. A loop whose device is asynchronous runs ahead for
#: some steps and then waits for all of them, so it is a mean; a pause makes it longer for a while.
STEPS: Final = 64

_WAIT_FOR_EVER: Final = Policy()
#: Nobody waits without a teacher, and nobody has.
_CALM: Final = no_teacher.NoTeacherWait()


def look_ahead(batch_s: float | None) -> int:
    """Batches to release ahead of a loop that needs so long for one; None: not known."""
    if not batch_s:
        return FEWEST_AHEAD
    return max(rounded_up(min(AHEAD_S / batch_s, MOST_AHEAD)), FEWEST_AHEAD)


class Delivery:
    """The batches of one stream that the training loop has not taken. One thread owns it.

    A driver tells it of the stream, and passes on what the ledgers say of batches (`heard`). What
    comes back is to be done at once, in order.

    Args:
        ledgers: of the services that label each batch; they are only read.
        ordered: batches are taken in the order of the source; else as they are completed.
        policy: what is done while a service has no teacher.
        ensemble: how labels of several services are mixed; None: there is one service.

    Attributes:
        forgone: batches that were to go without labels of a service, by service.
        partial: batches that were released with labels of some services.
        unlabelled: batches that were released without any labels.
    """

    def __init__(
        self,
        ledgers: Mapping[str, Ledger],
        *,
        ordered: bool = True,
        policy: Policy = _WAIT_FOR_EVER,
        ensemble: Ensemble | None = None,
    ) -> None:
        self.forgone = Counter[str]()
        self.partial = self.unlabelled = 0
        self._services = tuple(ledgers)
        self._ordered = ordered
        self._ensemble = ensemble or Ensemble(dict.fromkeys(ledgers, 1.0))
        self._whole: Mixture | None = Mixture(self._ensemble.shares, 1.0)
        self._no_teacher = NoTeacherPolicy(ledgers, policy, self._ensemble)
        #: Services that have not labelled a batch which is not offered, in order.
        self._lacking: dict[int, set[str]] = {}
        self._without: dict[int, set[str]] = {}  # services whose labels a batch goes without
        self._poison: dict[int, tuple[str, ...]] = {}  # why a batch will never be labelled
        self._held: set[int] = set()  # batches that an engine before this one has offered
        #: Not released, in the order of their release; None: poison, or held.
        self._offered: dict[int, OfferBatch | None] = {}
        self._released: set[int] = set()  # and not taken
        self._batch_s = RecentMean(STEPS)

    # ------------------------------------------------------------------------ the trainer's side

    def queue(self, batch: int) -> None:
        """A batch is to be labelled; numbers grow."""
        self._lacking[batch] = set(self._services)

    def hold(self, batch: int, *, released: bool) -> list[StreamInstruction]:
        """An engine before this one has offered a batch; numbers grow. The ledgers know of it."""
        self._held.add(batch)
        if not released:
            self._offered[batch] = None
            return []
        self._released.add(batch)
        return [ForwardEvent(service, Released(batch)) for service in self._services]

    def wait(self, *, waits: bool = True) -> None:
        """The training loop waits for a batch; or it does not."""
        self._no_teacher.loop_waits = waits

    def taken(self, batch: int, step_s: float | None) -> None:
        """The training loop has a batch, after `step_s` of work on the one before."""
        if step_s:
            self._batch_s.add(step_s)
        self._no_teacher.loop_waits = False
        self._released.discard(batch)
        self._held.discard(batch)
        self._poison.pop(batch, None)

    def reset(self) -> None:
        """The epoch was left: every batch is forgotten."""
        self._no_teacher.loop_waits = False
        for kept in (self._lacking, self._without, self._poison, self._offered):
            kept.clear()
        self._held.clear()
        self._released.clear()

    # ------------------------------------------------------------------------------ the services

    def heard(
        self, service: str, said: BatchLabelled | GoesUnlabelled | LabelsRevoked | Poison
    ) -> list[StreamInstruction]:
        """The ledger of a service has said what became of a batch."""
        batch = said.batch
        match said:
            case LabelsRevoked():
                return self._undone(service, batch)
            case Poison(_, reasons):
                return self._condemn(service, batch, reasons)
        if batch in self._poison:  # by another service
            return [DropBatch(batch)]
        if (lacking := self._lacking.get(batch)) is None:
            return []
        if isinstance(said, GoesUnlabelled):
            self.forgone[service] += 1
            self._without.setdefault(batch, set()).add(service)
        lacking.discard(service)
        return [] if lacking else self._offer(batch)

    def _condemn(
        self, service: str, batch: int, reasons: tuple[str, ...]
    ) -> list[StreamInstruction]:
        """A batch will never be labelled, whatever other services make of it."""
        if batch in self._poison or (lacking := self._lacking.get(batch)) is None:
            return []
        lacking.clear()
        self._poison[batch] = reasons
        offers = self._offer(batch)
        return [DropBatch(batch), *offers, *self._others(service, DeliverUnlabelled(batch))]

    def _undone(self, service: str, batch: int) -> list[StreamInstruction]:
        """Labels of a service are void: it labels the batch anew.

        So do all others, where it is poison, or labels of several services cannot be told apart.
        """
        out: list[StreamInstruction] = []
        if batch in self._offered:
            out.append(Withdraw(batch))
            del self._offered[batch]
            self._lacking[batch] = set()
            self._lacking = dict(sorted(self._lacking.items()))
        elif batch not in self._lacking:
            return out
        if batch in self._held or batch in self._poison:
            self._held.discard(batch)
            self._poison.pop(batch, None)
            self._lacking[batch].update(self._services)
            return [*out, *self._others(service, InvalidateBatch(batch))]
        self._lacking[batch].add(service)
        if batch in self._without:
            self._without[batch].discard(service)
        return out

    def _offer(self, batch: int) -> list[StreamInstruction]:
        """A batch is complete: offer it; in order, once those before it are."""
        complete: list[int] = []
        if self._ordered:
            for number, lacking in self._lacking.items():
                if lacking:
                    break
                complete.append(number)
        else:
            complete.append(batch)
        last = next(reversed(self._offered), -1)
        out: list[StreamInstruction] = []
        for number in complete:
            del self._lacking[number]
            if (reasons := self._poison.get(number)) is not None:
                self._offered[number] = None
                out.append(OfferPoison(number, reasons))
            else:
                mixed = self._whole
                if without := self._without.get(number):
                    gone = dict.fromkeys(without, -inf)  # since when they are missing
                    mixed = mixture(self._ensemble, set(self._services) - without, gone, 0.0)
                offer = self._offered[number] = OfferBatch(number, mixed)
                out.append(offer)
        if self._ordered and complete and complete[0] < last:  # it was withdrawn
            self._offered = dict(sorted(self._offered.items()))
        return out

    # ---------------------------------------------------------------------------- what follows

    def look(self, now: float) -> list[StreamInstruction]:
        """Something has happened, or time has passed: decide what follows.

        Args:
            now: seconds of a clock that does not go back.
        """
        return self._no_teacher.look(self._lacking, self._without, now) + self.release()

    def release(self) -> list[StreamInstruction]:
        """Let the loop take what follows; nothing while it has half of what it may have at hand."""
        if not self._offered:
            return []
        ahead = look_ahead(self._batch_s.value)
        if 2 * len(self._released) > ahead:
            return []
        batches: list[int] = []
        room = ahead - len(self._released)
        barrier = next(iter(self._lacking), inf) if self._ordered else inf
        for number in self._offered:
            if len(batches) == room or number > barrier:
                break
            batches.append(number)
        if not batches:
            return []
        out: list[StreamInstruction] = []
        for number in batches:
            offer = self._offered.pop(number)
            self._released.add(number)
            if self._without.pop(number, None) and offer is not None:
                self.partial += offer.mixture is not None
                self.unlabelled += offer.mixture is None
            for service in self._services:
                out.append(ForwardEvent(service, Released(number)))
        out.append(Release(tuple(batches)))
        return out

    def _others(
        self, service: str, event: InvalidateBatch | DeliverUnlabelled
    ) -> list[StreamInstruction]:
        """Have the cores of all other services hear of something."""
        return [ForwardEvent(other, event) for other in self._services if other != service]


class NoTeacherPolicy:
    """Which batches go without labels of a service that has no teacher; see `scheduler.no_teacher`.

    Args:
        ledgers: of the services, by name; they are only read.
        policy: what the user wants to happen.
        ensemble: the services, and what to do without one of several.

    Attributes:
        loop_waits: the training loop waits for a batch.
    """

    def __init__(self, ledgers: Mapping[str, Ledger], policy: Policy, ensemble: Ensemble) -> None:
        self.loop_waits = False
        self._ledgers = ledgers
        self._policy = policy
        self._ensemble = ensemble
        self._patience = _CALM
        self._alone_since: dict[str, float] = {}
        self._lacked: list[Ledger] = []  # those of the services that had no teacher lately

    def look(
        self, lacking: Mapping[int, Set[str]], without: Mapping[int, Set[str]], now: float
    ) -> list[StreamInstruction]:
        """Let batches go that are not to wait any more, or give up.

        Args:
            lacking: services that have not labelled a batch, in order; none: it waits for others.
            without: services whose labels a batch goes without.
            now: seconds of a clock that does not go back.
        """
        for service, ledger in self._ledgers.items():
            if ledger.usable:
                self._alone_since.pop(service, None)
            else:
                self._alone_since.setdefault(service, now)
        if not self._alone_since and self._patience == _CALM:
            return []
        out: list[StreamInstruction] = []
        head = None
        for batch, services in lacking.items():
            if services and self._is_tolerated(batch, services, without.get(batch, ()), now):
                out += [ForwardEvent(service, DeliverUnlabelled(batch)) for service in services]
            elif services and head is None:
                head = batch
        return out + self._decide(head, now)

    def _is_tolerated(
        self, batch: int, lacking: Set[str], without: Collection[str], now: float
    ) -> bool:
        """Whether a batch goes without labels of services that are missing."""
        if self._ensemble.missing == "wait" or not self._alone_since:
            return False
        if any(self._ledgers[service].awaits_store(batch) for service in lacking):
            return False  # a label store may have what teachers do not give
        labelled = self._ledgers.keys() - lacking - set(without)
        return mixture(self._ensemble, labelled, self._alone_since, now) is not None

    def _decide(self, head: int | None, now: float) -> list[StreamInstruction]:
        """Apply the policy to the first batch that a service has not labelled; None: to none."""
        ledgers = self._ledgers.values()
        self._lacked = [self._ledgers[service] for service in self._alone_since] or self._lacked
        usable = [ledger.usable for ledger in ledgers]
        action, self._patience = no_teacher.decide(
            min(usable) if self._ensemble.missing == "wait" else max(usable),
            self.loop_waits
            and head is not None
            and not any(ledger.awaits_store(head) for ledger in ledgers),
            sum(ledger.accepted for ledger in self._lacked),
            self._patience,
            now,
            self._policy,
        )
        if action == "give_up":
            return [GiveUp()]
        if action == "wait" or head is None:
            return []
        self.loop_waits = False  # it has what it waits for
        return [
            LogMessage("warning", f"batch {head} goes without soft labels: there is no teacher"),
            *(ForwardEvent(service, DeliverUnlabelled(head)) for service in self._ledgers),
            *(ForwardEvent(service, LoopWaiting(False)) for service in self._ledgers),
        ]
