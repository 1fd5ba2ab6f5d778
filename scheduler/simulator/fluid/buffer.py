"""The batches of one student as a fluid: so many unlabelled, so many labelled, at which rates.

Amounts are batches, rates batches per second. What a fluid has none of is put in: the first answers
of teachers that stood idle come one whole device time later, all at once; a teacher that dies
leaves a hole in the order, behind which nothing is delivered until another one has filled it.
"""

from __future__ import annotations

from math import ceil, floor, inf
from typing import Final

from ..scenario import StudentGroup
from .crew import Crew

#: Below this, an amount of batches is none.
EPS: Final = 1e-6


class Buffer:
    """What lies between a student's source and its training loop.

    Args:
        group: what the student is like.
        batches: that its source yields; None: no end.

    Attributes:
        volume: labelled and not taken.
        unlabelled: pulled and not labelled.
        taken: that the student has trained, or is at.
        most_volume: the greatest volume that there was.
        labels, pulls, takes: the rates.
        hole_until: until then only what lies before a hole is delivered.
    """

    def __init__(self, group: StudentGroup, batches: int | None) -> None:
        self.volume = self.unlabelled = self.taken = self.most_volume = 0.0
        self.labels = self.pulls = self.takes = 0.0
        self.hole_until = -inf
        self._source = 1 / group.source_s if group.source_s else inf
        self._batches = inf if batches is None else float(batches)
        # The volume is a whole number that steps up beyond `ut`, and down below `lt`.
        self._pause_at = floor(group.upper) + 0.5 + EPS
        self._resume_at = max(ceil(group.lower) - 0.5, 0.5) - EPS
        self._level = 0.0  # unlabelled batches that pulling goes up to
        self._ahead = 0.0  # batches that lie before a hole
        self._ready_at = -inf  # before that, teachers that stood idle have not answered

    # -- time

    def advance(self, span_s: float) -> float:
        """Let the rates run for so long; returns how many batches were labelled."""
        made, used = self.labels * span_s, self.takes * span_s
        self.volume = max(self.volume + made - used, 0.0)
        self.unlabelled = max(self.unlabelled + self.pulls * span_s - made, 0.0)
        self._ahead = max(self._ahead - used, 0.0)
        self.taken += used
        self.most_volume = max(self.most_volume, self.volume)
        return made

    def answer_first(self, now: float, crew: Crew) -> float:
        """Teachers that came, or stood idle, have made their first batch: half of it is added now.

        The other half is in the rate from now on: as the next answers come one device time later,
        a rate alone would be half a batch behind, on average.
        """
        first, crew.first = crew.first, 0.0
        if self._ready_at > -inf and now >= self._ready_at:
            self._ready_at = -inf
            first += crew.busy / 2
        first = min(first, self.unlabelled)
        self.volume += first
        self.unlabelled -= first
        return first

    # -- what happens

    def pull(self, count: int) -> None:
        """So many more may be pulled now."""
        self._level = min(self.unlabelled + count, self.unlabelled + self.left)
        if self._source == inf:
            self.unlabelled = self._level

    def pause(self, windows: int) -> None:
        """Nothing more is pulled: what there was room for beyond the windows lies in the volume."""
        self.unlabelled = min(self.unlabelled, float(windows))

    def wake(self, now: float, crew: Crew) -> None:
        """Teachers that stood idle have something to do again."""
        if self._source == inf:
            self._ready_at = now + crew.lag_s + crew.travel_s

    def tear(self, now: float, until: float, crew: Crew) -> None:
        """A teacher has died with what it had: a hole, until another has labelled that."""
        if now >= self.hole_until:
            # Of what the others have under way, half was sent before.
            self._ahead = self.volume + max(crew.busy - 1, 0.0) / 2
        self.hole_until = max(self.hole_until, until)

    # -- what is the case

    @property
    def left(self) -> float:
        """Batches that the source has still."""
        return max(self._batches - self.taken - self.volume - self.unlabelled, 0.0)

    @property
    def ended(self) -> bool:
        """Whether the source has nothing more."""
        return self.left <= EPS

    @property
    def is_done(self) -> bool:
        """Whether all is trained."""
        return self.taken >= self._batches - EPS

    def deliverable(self, now: float) -> float:
        """Batches that the student could take now."""
        return min(self._ahead, self.volume) if now < self.hole_until else self.volume

    def source_use(self, capacity: float) -> float:
        """The part of a capacity that the source can keep busy (at most 1)."""
        return min(self._source / capacity, 1.0) if capacity > 0 else 1.0

    # -- the rates

    def flow(self, now: float, crew: Crew, pulling: bool, unhindered: float) -> float:
        """Labels come and batches are pulled at these rates from now on.

        Returns:
            Batches per second that the student could take, where `unhindered` is its most.
        """
        capacity = crew.capacity if now >= self._ready_at else 0.0
        if not pulling or self.ended:
            self.pulls = 0.0
            self.labels = capacity if self.unlabelled > EPS else 0.0
        elif self._source == inf:
            self.labels = self.pulls = capacity if self.unlabelled > EPS else 0.0
        else:
            self._flow_slowly(capacity, self._busy(crew))
        if self.deliverable(now) > EPS:
            return unhindered
        return min(unhindered, self.labels) if now >= self.hole_until else 0.0

    def _flow_slowly(self, capacity: float, busy: float) -> None:
        """The same with a source that takes its time: teachers work on what it has yielded."""
        self.pulls = self._source
        if self.unlabelled < busy - EPS:
            self.labels = 0.0
        elif self.unlabelled <= busy + EPS:
            self.labels = min(capacity, self._source)
        else:
            self.labels = capacity
        if self.unlabelled >= self._level - EPS:
            self.pulls = min(self.pulls, self.labels)

    def _busy(self, crew: Crew) -> float:
        """Batches under way with which labels come as fast as source and teachers allow."""
        return min(self._source, crew.capacity) * crew.lag_s

    def due(self, now: float, crew: Crew, pulling: bool) -> float:
        """When one of the amounts comes to where something is to be decided."""
        soonest = min(
            self._volume_due_s(pulling), self._pulled_due_s(crew, pulling), self._end_due_s()
        )
        if now < self._ready_at:
            soonest = min(soonest, self._ready_at - now)
        if now < self.hole_until:
            soonest = min(soonest, self.hole_until - now)
            if self.takes > 0 and self._ahead > EPS:
                soonest = min(soonest, self._ahead / self.takes)
        return now + soonest

    def _volume_due_s(self, pulling: bool) -> float:
        rising, volume = self.labels - self.takes, self.volume
        if rising > 0:
            far = pulling and volume < self._pause_at
            return (self._pause_at - volume) / rising if far else inf
        if rising == 0:
            return inf
        goals = [volume] if volume > EPS else []
        if not pulling and volume > self._resume_at:
            goals.append(volume - self._resume_at)
        return min(goals, default=inf) / -rising

    def _pulled_due_s(self, crew: Crew, pulling: bool) -> float:
        growing, busy = self.pulls - self.labels, self._busy(crew)
        if growing < 0 and self.unlabelled > EPS:
            slow = pulling and self._source < inf and not self.ended
            over = self.unlabelled - busy if slow else self.unlabelled
            return over / -growing if over > EPS else inf
        if growing > 0:
            lacking = busy if self.unlabelled < busy - EPS else self._level
            short = lacking - self.unlabelled
            return short / growing if short > EPS else inf
        return inf

    def _end_due_s(self) -> float:
        """Until the source has yielded all, or all is trained."""
        if self._batches == inf:
            return inf
        due_s = max(self._batches - self.taken, 0.0) / self.takes if self.takes > 0 else inf
        gone = self.takes + (self.labels - self.takes) + (self.pulls - self.labels)
        return min(due_s, self.left / gone) if gone > 0 and self.left > EPS else due_s
