"""Which assignment the engine follows, while a service moves from one model content to another."""

from __future__ import annotations

import logging
from dataclasses import replace

from ...scheduler import switching
from .roster import Assigned

log = logging.getLogger(__name__)


class Contents:
    """Carries out what `scheduler.switching` decides. Used by the engine's thread alone.

    Attributes:
        switch: where the reader stands.
    """

    def __init__(self) -> None:
        self.switch = switching.Switch()
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

    def resumed(self, data_epoch: int, content_id: str, now: float) -> tuple[Assigned, bool] | None:
        """Told what the engine before this one knew; None: with the same teachers."""
        self.switch, step = switching.resume(self.switch, data_epoch, content_id, now)
        return self._changed(step)

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
        return self._followed, step == "relabel"
