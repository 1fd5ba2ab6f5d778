"""Which assignment the engine follows, while a service moves from one model content to another."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ...scheduler import switching
from .numerics import Numerics
from .roster import Assigned

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Legacy:
    """What an engine leaves of a service to the one that goes on after it.

    Attributes:
        content_id: as it was told last: empty if it waited to be moved.
        bound: whether the epoch keeps to that content.
        assigned: the teachers that it sent to, or would have in the end.
        numerics_id: what its labels are pinned to; empty: nothing.
    """

    content_id: str = ""
    bound: bool = False
    assigned: Assigned = field(default_factory=lambda: Assigned(()))
    numerics_id: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "content_id": self.content_id,
            "bound": self.bound,
            "assigned": self.assigned.to_json(),
            "numerics_id": self.numerics_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        assigned = Assigned.from_json(value["assigned"])
        return cls(value["content_id"], value["bound"], assigned, value["numerics_id"])


class Contents:
    """Carries out what `scheduler.switching` decides. Used by the engine's thread alone.

    Args:
        numerics: which of the teachers may be asked besides; pinned anew with each content.

    Attributes:
        switch: where the reader stands.
        legacy: for an engine that may have to go on from here; replaced as a whole.
    """

    def __init__(self, numerics: Numerics) -> None:
        self.switch = switching.Switch()
        self.legacy = Legacy()
        self._numerics = numerics
        self._content_id = ""  # that the numerics are pinned for
        self._latest = self._followed = Assigned(())
        self._away_since: float | None = None

    def assigned(self, assigned: Assigned, now: float) -> tuple[Assigned, bool]:
        """The roster has changed: whom to send to, and whether to label anew first."""
        self._latest = assigned
        self.switch, step = switching.advise(self.switch, assigned.advice, now)
        return self._carry_out(step, assigned.lost)

    def epoch_began(self, data_epoch: int, now: float) -> tuple[Assigned, bool] | None:
        """An epoch begins; None: with the same teachers."""
        if data_epoch == self.switch.data_epoch:
            return None
        self.switch, step = switching.begin(self.switch, data_epoch, now)
        return self._changed(step)

    def resumed(self, data_epoch: int, left: Legacy, now: float) -> tuple[Assigned, bool]:
        """Told where the engine before this one stood: as of `assigned`.

        Its teachers are sent to until the roster says something newer.
        """
        there = left.assigned
        self._content_id, self._numerics.pinned = left.content_id, left.numerics_id
        heard = self._latest.epoch >= there.epoch
        before = switching.Switch(left.content_id, advice=there.advice, bound=left.bound)
        self.switch, step = switching.resume(self.switch, data_epoch, before, heard, now)
        if not heard:
            self._latest = there
        if step == "stay":
            self._followed = there
        return self._carry_out(step, frozenset())

    def hear(self, teacher: str, numerics_id: str) -> Assigned | None:
        """A teacher has answered; if its labels must not be used, whom to send to from now on."""
        before = self._numerics.pinned
        admitted = self._numerics.hear(teacher, numerics_id)
        if admitted and before == self._numerics.pinned:
            return None
        self._settle()
        return None if admitted else self._followed

    def look(
        self, now: float, coordinator_answers: bool, usable: int
    ) -> tuple[Assigned, bool] | None:
        """Time goes by; None: all stays as it is."""
        if coordinator_answers:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        before = self.switch
        self.switch, step = switching.look(before, now, self._away_since, usable)
        if step == "follow":
            log.warning(
                "an epoch begins with content %s: no coordinator answers that could move it to %s",
                self.switch.content_id,
                before.awaited,
            )
        return None if step == "stay" else self._changed(step)

    def _changed(self, step: switching.Step) -> tuple[Assigned, bool] | None:
        before = self._followed
        after, anew = self._carry_out(step, frozenset())
        return (after, anew) if anew or after.peers != before.peers else None

    def _carry_out(self, step: switching.Step, lost: frozenset[str]) -> tuple[Assigned, bool]:
        match step:
            case "follow" | "relabel":
                self._followed = self._latest
            case "hold":
                log.info("an epoch begins: waiting for content %s", self.switch.awaited)
                self._followed = Assigned((), lost, self._latest.live, self._latest.epoch)
            case "stay":
                peers = tuple(p for p in self._followed.peers if p.teacher_id not in lost)
                self._followed = replace(self._followed, peers=peers, lost=lost)
        if step == "relabel":
            log.warning("from here on labels are of content %s", self.switch.content_id)
        self._settle()
        return self._followed, step == "relabel"

    def _settle(self) -> None:
        """Have nobody asked who must not be, and leave word of it all."""
        switch, numerics = self.switch, self._numerics
        if self._content_id not in ("", switch.content_id):
            numerics.pinned = ""
        self._content_id = switch.content_id
        self._followed = replace(self._followed, barred=numerics.barred(self._followed.peers))
        if switch.held_since is None:
            there, pinned = self._followed, numerics.pinned
        else:
            there, pinned = self._latest, ""
        self.legacy = Legacy(switch.told, switch.bound, there, pinned)
