"""Delivery of batches to the training loop: order, number released ahead, batches without labels.

A batch is complete once each service has labelled it or left it unlabelled. Complete batches are
offered to the trainer, in order if the stream is ordered. The trainer receives their labels, so the
labels survive a restart of the engine. The training loop may take a batch once it is released. Only
as many batches are released as the loop may consume before the engine learns of it. All others can
be withdrawn if a teacher turns out to lie or the model is exchanged.
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

#: Seconds of the loop's work that are released ahead, and bounds of this look-ahead in batches.
AHEAD_S: Final = 0.1
FEWEST_AHEAD, MOST_AHEAD = 2, 64

_WAIT_FOR_EVER: Final = Policy()
#: The state while the student does not wait for lack of teachers.
_NOT_WAITING: Final = no_teacher.NoTeacherWait()


def look_ahead(batch_s: float | None) -> int:
    """Return how many batches to release ahead of a loop.

    `batch_s` is the loop's seconds per batch; None: unknown.
    """
    if not batch_s:
        return FEWEST_AHEAD
    return max(rounded_up(min(AHEAD_S / batch_s, MOST_AHEAD)), FEWEST_AHEAD)


class Delivery:
    """The batches of one stream that the training loop has not taken. Use it from one thread.

    The driver reports events of the stream, and the ledgers' instructions about batches (`handle`).
    It carries out the returned instructions at once, in order.

    Args:
        ledgers: ledgers of the services that label each batch; only read.
        ordered: batches are delivered in the order of the source; else when they are complete.
        policy: what to do while a service has no teacher.
        ensemble: how labels of several services are mixed; None: there is one service.
        loop_delivery: None: this object delivers the training loop's batches. Else it delivers the
            batches of calls, and `loop_delivery` is the object for the loop; call the `tick` of
            `loop_delivery` first. For a call the trainer uses an offer at once, so a batch is
            offered only when it is released.

    Attributes:
        unlabelled_by_service: by service, the number of batches released without its labels.
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
        self._is_for_calls = loop_delivery is not None
        self._ensemble = ensemble or Ensemble(dict.fromkeys(ledgers, 1.0))
        self._full_mixture: Mixture | None = Mixture(self._ensemble.shares, 1.0)
        of_loop = None if loop_delivery is None else loop_delivery._no_teacher
        self._no_teacher: NoTeacherPolicy = NoTeacherPolicy(
            ledgers, policy, self._ensemble, of_loop
        )
        #: Batches that are not offered, in order, with the services that have not labelled them.
        self._lacking: dict[int, set[str]] = {}
        self._without: dict[int, set[str]] = {}  # services that a batch goes without
        self._poison: dict[int, tuple[str, ...]] = {}  # reasons, by poison batch
        self._restored: set[int] = set()  # batches that an earlier engine has offered
        #: Batches that are complete and not released, in order, each with its offer; None: an
        #: earlier engine has offered the batch.
        self._complete: dict[int, do.OfferBatch | do.OfferPoison | None] = {}
        self._released: set[int] = set()  # released and not taken
        self._batch_s = RecentMean(STEP_WINDOW)  # the loop's seconds per batch

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
        """Record that the training loop took a batch; `step_s`: seconds of the previous step."""
        if step_s:
            self._batch_s.add(step_s)
        self._no_teacher.loop_waits = False
        self._released.discard(batch)
        self._restored.discard(batch)
        self._poison.pop(batch, None)

    def reset(self) -> None:
        """Forget every batch, because the student left the epoch."""
        self._no_teacher.loop_waits = False
        for batches in (self._lacking, self._without, self._poison, self._complete):
            batches.clear()
        self._restored.clear()
        self._released.clear()

    # ------------------------------------------------------------------------------ the services

    def handle(self, service: str, change: do.LabelChange) -> list[do.StreamInstruction]:
        """Handle an instruction of a service's ledger about a batch."""
        batch = change.batch
        match change:
            case do.LabelsRevoked():
                return self._relabelled(service, batch)
            case do.Poison(_, reasons):
                return self._on_poison(service, batch, reasons)
        if batch in self._poison:  # for another service
            return [do.DropBatch(batch)]
        if (lacking := self._lacking.get(batch)) is None:
            return []
        if isinstance(change, do.GoesUnlabelled):
            self._without.setdefault(batch, set()).add(service)
        lacking.discard(service)
        return [] if lacking else self._offer(batch)

    def _on_poison(
        self, service: str, batch: int, reasons: tuple[str, ...]
    ) -> list[do.StreamInstruction]:
        """Offer an error in place of a batch that will never be labelled by one service."""
        if batch in self._poison or (lacking := self._lacking.get(batch)) is None:
            return []
        lacking.clear()
        self._poison[batch] = reasons
        offers = self._offer(batch)
        return [
            do.DropBatch(batch),
            *offers,
            *self._forward_to_others(service, DeliverUnlabelled(batch)),
        ]

    def _relabelled(self, service: str, batch: int) -> list[do.StreamInstruction]:
        """Withdraw a batch, because a service labels it again.

        All other services label it again too if the batch is poison, or if its labels cannot be
        separated by service.
        """
        out: list[do.StreamInstruction] = []
        if batch in self._complete:
            if not self._is_for_calls:
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
            return [*out, *self._forward_to_others(service, InvalidateBatch(batch))]
        self._lacking[batch].add(service)
        if batch in self._without:
            self._without[batch].discard(service)
        return out

    def _offer(self, batch: int) -> list[do.StreamInstruction]:
        """Offer a complete batch; if batches are ordered, once all earlier ones are complete."""
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
                mixed = self._full_mixture
                if without := self._without.get(number):
                    missing = dict.fromkeys(without, -inf)  # for longer than any limit
                    mixed = mixture(self._ensemble, set(self._services) - without, missing, 0.0)
                offer = do.OfferBatch(number, mixed)
            self._complete[number] = offer
            if not self._is_for_calls:
                out.append(offer)
        if self._ordered and complete and complete[0] < last:  # it was withdrawn before
            self._complete = dict(sorted(self._complete.items()))
        return out

    # ---------------------------------------------------------------------------- what follows

    def tick(self, now: float) -> list[do.StreamInstruction]:
        """Release batches, and apply the policy for missing teachers.

        Args:
            now: seconds of a clock that does not go back.
        """
        out = self.release()
        has_next = bool(self._released)
        return out + self._no_teacher.tick(self._lacking, self._without, has_next, now)

    def release(self) -> list[do.StreamInstruction]:
        """Release the next batches, unless the loop still has more than half of its look-ahead."""
        if not self._complete:
            return []
        ahead = len(self._complete) if self._is_for_calls else look_ahead(self._batch_s.value)
        if 2 * len(self._released) > ahead:
            return []
        batches: list[int] = []
        room = ahead - len(self._released)
        first_incomplete = next(iter(self._lacking), inf) if self._ordered else inf
        for number in self._complete:
            if len(batches) == room or number > first_incomplete:
                break
            batches.append(number)
        if not batches:
            return []
        out: list[do.StreamInstruction] = []
        for number in batches:
            offer = self._complete.pop(number)
            self._released.add(number)
            if self._is_for_calls and offer is not None:
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

    def _forward_to_others(
        self, service: str, event: InvalidateBatch | DeliverUnlabelled
    ) -> list[do.StreamInstruction]:
        """Forward an event to the cores of all other services."""
        return [do.ForwardEvent(other, event) for other in self._services if other != service]


class NoTeacherPolicy:
    """Applies `scheduler.no_teacher`: delivers batches without labels while teachers are missing.

    Args:
        ledgers: ledgers of the services, by name; only read.
        policy: the user's choice.
        ensemble: the services, and what to do if one of several is missing.
        of_loop: the policy object of the training loop's batches, if this is the one of calls. The
            loop's object records since when services have no teacher. None: this is the loop's
            object.

    Attributes:
        loop_waits: the training loop waits for a batch.
    """

    def __init__(
        self,
        ledgers: Mapping[str, Ledger],
        policy: Policy,
        ensemble: Ensemble,
        of_loop: NoTeacherPolicy | None,
    ) -> None:
        self.loop_waits = False
        self._ledgers = ledgers
        self._policy = policy
        self._ensemble = ensemble
        self._wait = _NOT_WAITING
        self._records_alone_since = of_loop is None
        #: Since when each service without a usable teacher has none.
        self._alone_since: dict[str, float] = {} if of_loop is None else of_loop._alone_since
        self._last_alone: set[str] = set()  # the latest services without a usable teacher
        self._accepted: dict[str, int] = {}  # used answers of each service, at the latest decision
        self._answers = 0  # used answers of the services in `_last_alone`, summed over time

    def tick(
        self,
        lacking: Mapping[int, Set[str]],
        without: Mapping[int, Set[str]],
        has_next: bool,
        now: float,
    ) -> list[do.StreamInstruction]:
        """Deliver batches without labels that should not wait any longer, or give up.

        Args:
            lacking: for each batch, in order, the services that have not labelled it; empty: the
                batch waits for earlier batches.
            without: for each batch, the services whose labels it is delivered without.
            has_next: the loop can take a released batch.
            now: seconds of a clock that does not go back.
        """
        for service, ledger in self._ledgers.items() if self._records_alone_since else ():
            if ledger.usable:
                self._alone_since.pop(service, None)
            else:
                self._alone_since.setdefault(service, now)
        if not self._alone_since and self._wait == _NOT_WAITING:
            return []
        out: list[do.StreamInstruction] = []
        head = None
        for batch, services in lacking.items():
            if services and self._is_tolerated(batch, services, without.get(batch, ()), now):
                out += [do.ForwardEvent(service, DeliverUnlabelled(batch)) for service in services]
            elif services and head is None and not out:  # else the loop gets an earlier batch
                head = batch
        return out + self._decide(None if has_next else head, now)

    def _is_tolerated(
        self, batch: int, lacking: Set[str], without: Collection[str], now: float
    ) -> bool:
        """Whether a batch is delivered without the labels of missing services."""
        if self._ensemble.missing == "wait" or not self._alone_since:
            return False
        if any(self._ledgers[service].awaits_store(batch) for service in lacking):
            return False  # the label store may still have labels
        labelled = self._ledgers.keys() - lacking - set(without)
        return mixture(self._ensemble, labelled, self._alone_since, now) is not None

    def _decide(self, head: int | None, now: float) -> list[do.StreamInstruction]:
        """Apply the policy; `head` is the loop's next batch if it lacks labels, else None."""
        ledgers = self._ledgers.values()
        accepted = {service: ledger.accepted for service, ledger in self._ledgers.items()}
        self._answers += sum(accepted[name] - self._accepted[name] for name in self._last_alone)
        self._accepted = accepted
        self._last_alone = {*self._alone_since} or self._last_alone
        usable = [ledger.usable for ledger in ledgers]
        action, self._wait = no_teacher.decide(
            min(usable) if self._ensemble.missing == "wait" else max(usable),
            self.loop_waits
            and head is not None
            and not any(ledger.awaits_store(head) for ledger in ledgers),
            self._answers,
            self._wait,
            now,
            self._policy,
        )
        if action == "give_up":
            return [do.GiveUp()]
        if action == "wait" or head is None:
            return []
        self.loop_waits = False  # the batch is complete now
        services = ", ".join(sorted(self._alone_since))
        return [
            do.LogMessage(
                "warning",
                f"batch {head} is delivered without soft labels:"
                f" no teacher of {services} is usable",
            ),
            *(do.ForwardEvent(service, DeliverUnlabelled(head)) for service in self._ledgers),
            *(do.ForwardEvent(service, LoopWaiting(False)) for service in self._ledgers),
        ]
