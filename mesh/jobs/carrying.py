"""Asks the rule who gets how many nodes, and carries that out: starts nodes, has them leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...coordinator.jobs import JobBoard
from ...coordinator.queue import Reservation
from ...errors import ProcessFailed
from ...scheduler.elastic import decide
from ...scheduler.elastic_values import ElasticJob, ElasticMemory, Pool
from ...supervise import stop_all
from .account import Account
from .fleet import Fleet
from .looking import look
from .slots import Slots

#: Between two looks at how far a training is.
_LOOK_S: Final = 1.0
#: Stands for the nodes of jobs that are over, and have not ended yet: a name that no job has.
_OVER: Final = "(over)"


class Carrying:
    """Used by the runner's thread alone.

    Args:
        fleet: what there is.
        board: where trainings tell how far they are.
        say: told what happens to a job's nodes.
    """

    def __init__(self, fleet: Fleet, board: JobBoard, say: Callable[[Account, str], None]) -> None:
        self.slots = Slots(fleet.cores)
        self._fleet, self._board, self._say = fleet, board, say
        self._memory = ElasticMemory()
        self._looked_s = float("-inf")

    def reap(self, accounts: Iterable[Account], now_s: float) -> None:
        """Take note of nodes that have ended."""
        for account in accounts:
            for node in account.crew.turn(now_s):
                self.slots.taken.discard(node.slot)
                self._say(account, account.ended(node, now_s))

    def look(self, accounts: Iterable[Account], now_s: float) -> None:
        """See now and then how far trainings are."""
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for account in accounts:
            if account.spec.trains and account.crew.staying:
                account.sight = look(self._board, account.name, len(account.crew.staying))

    def share(
        self, accounts: Sequence[Account], reservations: Sequence[Reservation], now_s: float
    ) -> None:
        """Ask the rule, and do what it says."""
        views = {one.name: view for one in accounts if (view := one.view()) is not None}
        self._decide(accounts, views, reservations, now_s)
        for account in accounts:  # first those that leave
            self._shrink(account, account.name in views, now_s)
        if self.slots.short(reservations):
            for account in accounts:
                account.crew.hurry(now_s, self._fleet.yield_s)
        for account in accounts:
            if account.name in views:
                self._grow(account, now_s)

    def close(self, accounts: Sequence[Account]) -> None:
        """All nodes leave, each at a safe point."""
        self.reap(accounts, time.monotonic())
        grace_s = max((one.spec.grace_s for one in accounts if one.crew.nodes), default=0.0)
        nodes = [node for account in accounts for node in account.crew.nodes]
        for node in nodes:
            node.told, node.deadline_s = True, float("inf")
        stop_all([node.process for node in nodes], grace_s)
        self.reap(accounts, time.monotonic())

    def _decide(
        self,
        accounts: Sequence[Account],
        views: dict[str, ElasticJob],
        reservations: Sequence[Reservation],
        now_s: float,
    ) -> None:
        slots = len(self._fleet.cores)
        reserved = min(slots, sum(one.slots for one in reservations))
        over = sum(one.crew.leaving for one in accounts if one.name not in views)
        # Nodes of jobs that are over hold room for a while: those of a job that can have no other.
        rest = ElasticJob(_OVER, slots + 1, slots + 1, 0, over, submitted_s=float("inf"))
        pool = Pool.of_slots(slots, reserved)
        targets, self._memory = decide(
            pool, [*views.values(), rest], self._memory, now_s, self._fleet.config
        )
        by_name = {account.name: account for account in accounts}
        for target in targets:
            if target.job in by_name:
                by_name[target.job].aim(target)

    def _shrink(self, account: Account, goes_on: bool, now_s: float) -> None:
        staying = len(account.crew.staying)
        count = staying - account.target if goes_on else staying
        if count > 0:
            for node in account.crew.leave(count, now_s, account.spec.grace_s):
                self._say(account, f"node {node.number} is told to leave slot {node.slot}")

    def _grow(self, account: Account, now_s: float) -> None:
        missing = account.target - len(account.crew.staying)
        if not account.life.grows or now_s < account.not_before_s:
            return
        for slot in self.slots.free[: max(0, missing)]:
            cards = self._fleet.cards
            env = {"CUDA_VISIBLE_DEVICES": cards[slot]} if cards else {}
            cores, url = self._fleet.cores[slot], self._fleet.coordinator
            try:
                node = account.crew.start(slot, cores, url, env)
            except ProcessFailed as error:
                account.failed_to_start(str(error), now_s)
                self._say(account, str(error))
                return
            self.slots.taken.add(slot)
            self._say(account, f"node {node.number} starts in slot {slot}")
