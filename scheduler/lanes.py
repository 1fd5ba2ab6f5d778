"""The devices of one teacher as its dispatcher sees them: who is done first, when there is room.

A lane is one device with the jobs that were handed to it. It holds at least two at once: while the
device works on the first, the second already lies in its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Lane:
    """One device.

    Attributes:
        room: jobs that may be handed to it now; 0 while it restarts.
        samples: handed to it and not answered yet.
        t_t_s: seconds per sample (> 0).
    """

    room: int
    samples: int
    t_t_s: float

    def finish_s(self, samples: int) -> float:
        """Seconds until it would be done with `samples` more."""
        return (self.samples + samples) * self.t_t_s

    def given(self, samples: int) -> Lane:
        """The lane once it was handed a job of `samples`."""
        return replace(self, room=self.room - 1, samples=self.samples + samples)


def soonest(lanes: Sequence[Lane], samples: int) -> int | None:
    """The index of the lane with room that would finish `samples` first; None: no lane has room.

    Of equals it is the first. A lane without room is not waited for, however fast it is: a device
    that can work shall work.
    """
    open_lanes = [index for index, lane in enumerate(lanes) if lane.room > 0]
    return min(open_lanes, key=lambda index: lanes[index].finish_s(samples), default=None)


def promise_s(now: float, promised: float, interval_s: float, slots: int) -> float:
    """When one that is refused now should come back: there will likely be room then.

    Those who are refused one after another are told times one after another, so that they do not
    all come back at the first free slot.

    Args:
        now: seconds.
        promised: what the one before was told, on the same clock.
        interval_s: between two slots that become free.
        slots: after as many intervals all that is here now has gone, and nobody is told to wait
            longer.
    """
    return min(max(now, promised) + interval_s, now + slots * interval_s)
