"""The class of a teacher's speed in force: a speed that flickers must not move anyone.

A time per sample that is taken on a loaded machine is off by half, to either side. So a class gives
way when every speed of the last `HOLD_S` lay on the same side, outside of it: then to their mean.
It gives way at once where it stands on no measurement, and to a speed that is no noise any more. A
speed stands until the next one comes, so time alone can bring a lasting one into force.
"""

from __future__ import annotations

from dataclasses import dataclass

from .power import FASTEST, is_known, power_class

#: Seconds that a speed must stay outside of its class to be of another one.
HOLD_S = 30.0
#: A speed off by this factor is no noise.
FAR = 4.0


@dataclass(frozen=True, slots=True)
class Doubt:
    """Speeds in a row that all lie on one side of the class in force, as parts of the usual one.

    Attributes:
        since: when the first of them was told.
        latest: the last one, which still stands.
        time: the sum of 1 / speed: the mean is that of the time that a sample takes.
        count: how many there are.
    """

    since: float
    latest: float
    time: float
    count: int

    @property
    def due(self) -> float:
        """When they have lasted long enough."""
        return self.since + HOLD_S


@dataclass(frozen=True, slots=True)
class Pace:
    """A class of speed in force, and what speaks against it.

    Attributes:
        power: how many of the service's usual teachers it is worth.
        measured: whether it stands on a measurement.
    """

    power: float = 1.0
    measured: bool = False
    doubt: Doubt | None = None


def follow(pace: Pace, speed: float, anchor: float, now: float) -> Pace:
    """Take in a speed, in samples per second; `anchor` is that of the usual teacher."""
    pace = elapse(pace, now)  # what stood until now comes into force first
    if not (is_known(speed) and is_known(anchor)):
        return pace
    if not pace.measured:
        return Pace(power_class(speed, anchor), measured=True)
    return _weigh(pace, min(max(speed / anchor, 1 / FASTEST), FASTEST), now)


def elapse(pace: Pace, now: float) -> Pace:
    """Bring into force what has lasted long enough by `now`."""
    doubt = pace.doubt
    if doubt is None or now < doubt.due:
        return pace
    return _weigh(Pace(power_class(doubt.count / doubt.time, 1.0), True), doubt.latest, now)


def _weigh(pace: Pace, speed: float, now: float) -> Pace:
    """Count a speed to those that lie on the same side of the class, or drop them."""
    power = power_class(speed, 1.0, pace.power)
    if power == pace.power:
        return Pace(pace.power, True) if pace.doubt else pace
    if max(speed / pace.power, pace.power / speed) >= FAR:
        return Pace(power, True)
    doubt = pace.doubt
    if doubt is None or (doubt.latest > pace.power) != (speed > pace.power):
        doubt = Doubt(now, speed, 0.0, 0)
    elif doubt.latest == speed:
        return pace  # nothing new
    return Pace(
        pace.power, True, Doubt(doubt.since, speed, doubt.time + 1 / speed, doubt.count + 1)
    )
