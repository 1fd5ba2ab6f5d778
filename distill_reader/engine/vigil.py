"""Looks whether the training loop waits in vain, and has done what the policies say of that."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ...scheduler import no_teacher
from ..config import ReaderConfig
from .handing import Handing
from .member import Member

log = logging.getLogger(__name__)

#: Nobody waits without a teacher, and nobody has.
_CALM: Final = no_teacher.Patience()


class Vigil:
    """One look each time that something has changed, or time has gone by.

    Args:
        config: of the reader.
        members: who labels.
        handing: where their labels go.
    """

    def __init__(self, config: ReaderConfig, members: Sequence[Member], handing: Handing) -> None:
        self._policy = config.policy()
        self._needs_all = config.mixing is None or config.mixing.policy.missing == "wait"
        self._members = members
        self._handing = handing
        self._patience = no_teacher.Patience()
        self._alone_since: dict[str, float] = {}
        self._lacking: list[Member] = []  # who had no teacher lately

    def look(self, now: float) -> bool:
        """Let batches go that are not to wait any more; whether to give up instead."""
        for member in self._members:
            if member.ledger.usable:
                self._alone_since.pop(member.config.service, None)
            else:
                self._alone_since.setdefault(member.config.service, now)
        if not self._alone_since and self._patience == _CALM:
            return False
        self._handing.go_on_without(self._alone_since, now)
        usable = [member.ledger.usable for member in self._members]
        alone = [one for one in self._members if one.config.service in self._alone_since]
        self._lacking = alone or self._lacking
        need = no_teacher.Need(
            usable=min(usable) if self._needs_all else max(usable),
            waits=self._loop_waits() and self._head_lacks_teachers(),
            answers=sum(member.labels.accepted for member in self._lacking),
        )
        action, self._patience = no_teacher.decide(need, self._patience, now, self._policy)
        if action == "go_unlabelled":
            self._go_unlabelled(now)
        return action == "give_up"

    def _head_lacks_teachers(self) -> bool:
        head = self._handing.head
        return head is not None and not any(one.is_on_shelf(head) for one in self._members)

    def _loop_waits(self) -> bool:
        return any(member.core.waiting_since is not None for member in self._members)

    def _go_unlabelled(self, now: float) -> None:
        head = self._handing.head
        assert head is not None  # as the training loop waits for it
        log.warning("batch %d goes without soft labels: there is no teacher", head)
        for member in self._members:
            member.forgo(head)
            member.waits(now, waits=False)  # it has what it waits for
