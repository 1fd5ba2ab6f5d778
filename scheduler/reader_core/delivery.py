"""Delivery of batches to the training loop: order, number released ahead, batches without labels.

A batch is complete once each service has labelled it or left it unlabelled. Then it is offered to
the trainer in order, so that its labels survive a restart of the engine. The training loop may take
a batch once it is released. Only as many are released as the loop may consume before the engine
learns of it. All others can be withdrawn if a teacher turns out to lie or the model is exchanged.
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
from ..stream_stats import STEP_WINDOW
from . import instructions as do
from .events import DeliverUnlabelled, InvalidateBatch, LoopWaiting, Released

#: Seconds of work released ahead of the training loop, and bounds of that in batches.
AHEAD_S: Final = 0.1
FEWEST_AHEAD, MOST_AHEAD = 2, 64

_WAIT_FOR_EVER: Final = Policy()
#: The state while no student waits without a teacher.
_NOT_WAITING: Final = no_teacher.NoTeacherWait()


def look_ahead(batch_s: float | None) -> int:
    """Return how many batches to release ahead of a loop; `batch_s` None: unknown."""
    if not batch_s:
        return FEWEST_AHEAD
    return max(rounded_up(min(AHEAD_S / batch_s, MOST_AHEAD)), FEWEST_AHEAD)


class Delivery:
    """The batches of one stream that the training loop has not taken. Use it from one thread.

    The driver reports the stream, and what the ledgers say about batches (`handle`). Carry out the
    returned instructions at once, in order.

    Args:
        ledgers: of the services that label each batch; only read.
        ordered: batches are delivered in the order of the source; else when they are complete.
        policy: what to do while a service has no teacher.
        ensemble: how labels of several services are mixed; None: there is one service.
        loop_delivery: delivery of the training loop's batches, if this is the delivery of calls;
            call its `look` first. For a call the trainer uses an offer at once, so a batch is
            offered only when it is released. None: this one is the training loop's.

    Attributes:
        unlabelled_by_service: number of batches released without labels of a service, by service.
        partial: number of batches released with labels of some services.
        unlabelled: number of batches released without any labels.
    """

    def __init__(
        self,
        ledgers: Mapping[str, Ledger],
        *,
        ordered: bool = True,
        policy: Policy = _WAIT_FOR_EVER,
        ensemble: Ensemble | None = None,
        loop_delivery: Delivery | None = None,
    ) -> None:
        self.unlabelled_by_service = Counter[str]()
        self.partial = self.unlabelled = 0
        self._services = tuple(ledgers)
        self._ordered = ordered
        self._at_once = loop_delivery is not None
        self._ensemble = ensemble or Ensemble(dict.fromkeys(ledgers, 1.0))
        self._whole: Mixture | None = Mixture(self._ensemble.shares, 1.0)
        watch = None if loop_delivery is None else loop_delivery._no_teacher
        self._no_teacher: NoTeacherPolicy = NoTeacherPolicy(ledgers, policy, self._ensemble, watch)
        #: Batches that are not offered, in order, with the services that have not labelled them.
        self._lacking: dict[int, set[str]] = {}
        self._without: dict[int, set[str]] = {}  # services that a batch goes without
        self._poison: dict[int, tuple[str, ...]] = {}  # reasons, by poison batch
        self._restored: set[int] = set()  # batches that an earlier engine has offered
        #: Complete and not released, in order; None: restored.
        self._complete: dict[int, do.OfferBatch | do.OfferPoison | None] = {}
        self._released: set[int] = set()  # and not taken
        self._batch_s = RecentMean(STEP_WINDOW)  # a pause raises it for a while

    # ------------------------------------------------------------------------ the trainer's side

    def queue(self, batch: int) -> None:
        """Add a batch that is to be labelled; numbers grow."""
        self._lacking[batch] = set(self._services)

    def restore(self, batch: int, *, released: bool) -> list[do.StreamInstruction]:
        """Add a batch that an earlier engine has offered; numbers grow. The ledgers know it."""
        self._restored.add(batch)
        if not released:
            self._complete[batch] = None
            return []
        self._released.add(batch)
        return [do.ForwardEvent(service, Released(batch)) for service in self._services]

    def wait(self, *, waits: bool = True) -> None:
        """Record whether the training loop waits for a batch."""
        self._no_teacher.loop_waits = waits

    def taken(self, batch: int, step_s: float | None) -> None:
        """Record that the training loop took a batch; `step_s`: its work on the previous one."""
        if step_s:
            self._batch_s.add(step_s)
        self._no_teacher.loop_waits = False
        self._released.discard(batch)
        self._restored.discard(batch)
        self._poison.pop(batch, None)

    def reset(self) -> None:
        """Forget every batch, because the student left the epoch."""
        self._no_teacher.loop_waits = False
        for kept in (self._lacking, self._without, self._poison, self._complete):
            kept.clear()
        self._restored.clear()
        self._released.clear()

    # ------------------------------------------------------------------------------ the services

    def handle(self, service: str, settled: do.BatchSettled) -> list[do.StreamInstruction]:
        """Handle an instruction of a service's ledger about a batch."""
        batch = settled.batch
        match settled:
            case do.LabelsRevoked():
                return self._relabelled(service, batch)
            case do.Poison(_, reasons):
                return self._condemn(service, batch, reasons)
        if batch in self._poison:  # by another service
            return [do.DropBatch(batch)]
        if (lacking := self._lacking.get(batch)) is None:
            return []
        if isinstance(settled, do.GoesUnlabelled):
            self._without.setdefault(batch, set()).add(service)
        lacking.discard(service)
        return [] if lacking else self._offer(batch)

    def _condemn(
        self, service: str, batch: int, reasons: tuple[str, ...]
    ) -> list[do.StreamInstruction]:
        """Offer an error in place of a batch that will never be labelled by one service."""
        if batch in self._poison or (lacking := self._lacking.get(batch)) is None:
            return []
        lacking.clear()
        self._poison[batch] = reasons
        offers = self._offer(batch)
        return [do.DropBatch(batch), *offers, *self._others(service, DeliverUnlabelled(batch))]

    def _relabelled(self, service: str, batch: int) -> list[do.StreamInstruction]:
        """Withdraw a batch, because a service labels it again.

        All other services do too if the batch is poison, or if its labels cannot be separated by
        service.
        """
        out: list[do.StreamInstruction] = []
        if batch in self._complete:
            if not self._at_once:
                out.append(do.Withdraw(batch))
            del self._complete[batch]
            self._lacking[batch] = set()
            self._lacking = dict(sorted(self._lacking.items()))
        elif batch not in self._lacking:
            return out
        if batch in self._restored or batch in self._poison:
            self._restored.discard(batch)
            self._poison.pop(batch, None)
            self._without.pop(batch, None)
            self._lacking[batch].update(self._services)
            return [*out, *self._others(service, InvalidateBatch(batch))]
        self._lacking[batch].add(service)
        if batch in self._without:
            self._without[batch].discard(service)
        return out

    def _offer(self, batch: int) -> list[do.StreamInstruction]:
        """Record a complete batch and offer it; in order, once those before it are complete."""
        complete: list[int] = []
        if self._ordered:
            for number, lacking in self._lacking.items():
                if lacking:
                    break
                complete.append(number)
        else:
            complete.append(batch)
        last = next(reversed(self._complete), -1)
        out: list[do.StreamInstruction] = []
        for number in complete:
            del self._lacking[number]
            offer: do.OfferBatch | do.OfferPoison
            if (reasons := self._poison.get(number)) is not None:
                offer = do.OfferPoison(number, reasons)
            else:
                mixed = self._whole
                if without := self._without.get(number):
                    gone = dict.fromkeys(without, -inf)  # missing for long enough
                    mixed = mixture(self._ensemble, set(self._services) - without, gone, 0.0)
                offer = do.OfferBatch(number, mixed)
            self._complete[number] = offer
            if not self._at_once:
                out.append(offer)
        if self._ordered and complete and complete[0] < last:  # it had been withdrawn
            self._complete = dict(sorted(self._complete.items()))
        return out

    # ---------------------------------------------------------------------------- what follows

    def look(self, now: float) -> list[do.StreamInstruction]:
        """Decide what follows from the latest events or from time.

        Args:
            now: seconds of a clock that does not go back.
        """
        out = self.release()
        has_next = bool(self._released)
        return out + self._no_teacher.look(self._lacking, self._without, has_next, now)

    def release(self) -> list[do.StreamInstruction]:
        """Release the next batches, unless the loop has more than half of its quota."""
        if not self._complete:
            return []
        ahead = len(self._complete) if self._at_once else look_ahead(self._batch_s.value)
        if 2 * len(self._released) > ahead:
            return []
        batches: list[int] = []
        room = ahead - len(self._released)
        barrier = next(iter(self._lacking), inf) if self._ordered else inf
        for number in self._complete:
            if len(batches) == room or number > barrier:
                break
            batches.append(number)
        if not batches:
            return []
        out: list[do.StreamInstruction] = []
        for number in batches:
            offer = self._complete.pop(number)
            self._released.add(number)
            if self._at_once and offer is not None:
                out.append(offer)
            without = self._without.pop(number, None)
            if without and isinstance(offer, do.OfferBatch):
                self.unlabelled_by_service.update(without)
                self.partial += offer.mixture is not None
                self.unlabelled += offer.mixture is None
            for service in self._services:
                out.append(do.ForwardEvent(service, Released(number)))
        out.append(do.Release(tuple(batches)))
        return out

    def _others(
        self, service: str, event: InvalidateBatch | DeliverUnlabelled
    ) -> list[do.StreamInstruction]:
        """Forward an event to the cores of all other services."""
        return [do.ForwardEvent(other, event) for other in self._services if other != service]


class NoTeacherPolicy:
    """Applies `scheduler.no_teacher`: lets batches go without labels of a service without teachers.

    Args:
        ledgers: of the services, by name; only read.
        policy: the user's choice.
        ensemble: the services, and what to do without one of several.
        watch: another policy, which records since when services have no teacher; None: this one
            records it.

    Attributes:
        loop_waits: the training loop waits for a batch.
    """

    def __init__(
        self,
        ledgers: Mapping[str, Ledger],
        policy: Policy,
        ensemble: Ensemble,
        watch: NoTeacherPolicy | None,
    ) -> None:
        self.loop_waits = False
        self._ledgers = ledgers
        self._policy = policy
        self._ensemble = ensemble
        self._patience = _NOT_WAITING
        self._watches = watch is None
        self._alone_since: dict[str, float] = {} if watch is None else watch._alone_since
        self._lacked: set[str] = set()  # services that had no teacher lately
        self._accepted: dict[str, int] = {}  # used answers of each service, at the latest decision
        self._answers = 0  # those of services that had no teacher then

    def look(
        self,
        lacking: Mapping[int, Set[str]],
        without: Mapping[int, Set[str]],
        has_next: bool,
        now: float,
    ) -> list[do.StreamInstruction]:
        """Let batches go that should not wait any longer, or give up.

        Args:
            lacking: services that have not labelled each batch, in order of the batches; none: the
                batch waits for those before it.
            without: services that each batch goes without.
            has_next: the loop may take a batch that is released.
            now: seconds of a clock that does not go back.
        """
        for service, ledger in self._ledgers.items() if self._watches else ():
            if ledger.usable:
                self._alone_since.pop(service, None)
            else:
                self._alone_since.setdefault(service, now)
        if not self._alone_since and self._patience == _NOT_WAITING:
            return []
        out: list[do.StreamInstruction] = []
        head = None
        for batch, services in lacking.items():
            if services and self._is_tolerated(batch, services, without.get(batch, ()), now):
                out += [do.ForwardEvent(service, DeliverUnlabelled(batch)) for service in services]
            elif services and head is None and not out:  # else the loop gets the one before it
                head = batch
        return out + self._decide(None if has_next else head, now)

    def _is_tolerated(
        self, batch: int, lacking: Set[str], without: Collection[str], now: float
    ) -> bool:
        """Whether a batch goes without the labels of missing services."""
        if self._ensemble.missing == "wait" or not self._alone_since:
            return False
        if any(self._ledgers[service].awaits_store(batch) for service in lacking):
            return False  # the label store may still have labels
        labelled = self._ledgers.keys() - lacking - set(without)
        return mixture(self._ensemble, labelled, self._alone_since, now) is not None

    def _decide(self, head: int | None, now: float) -> list[do.StreamInstruction]:
        """Apply the policy to the first batch that a service has not labelled, if any."""
        ledgers = self._ledgers.values()
        accepted = {service: ledger.accepted for service, ledger in self._ledgers.items()}
        self._answers += sum(accepted[name] - self._accepted[name] for name in self._lacked)
        self._accepted = accepted
        self._lacked = {*self._alone_since} or self._lacked
        usable = [ledger.usable for ledger in ledgers]
        action, self._patience = no_teacher.decide(
            min(usable) if self._ensemble.missing == "wait" else max(usable),
            self.loop_waits
            and head is not None
            and not any(ledger.awaits_store(head) for ledger in ledgers),
            self._answers,
            self._patience,
            now,
            self._policy,
        )
        if action == "give_up":
            return [do.GiveUp()]
        if action == "wait" or head is None:
            return []
        self.loop_waits = False  # its batch is complete now
        return [
            do.LogMessage("warning", f"batch {head} goes without soft labels: there is no teacher"),
            *(do.ForwardEvent(service, DeliverUnlabelled(head)) for service in self._ledgers),
            *(do.ForwardEvent(service, LoopWaiting(False)) for service in self._ledgers),
        ]
