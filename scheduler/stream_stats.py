"""What is measured of a stream, and what of it a reader remembers for the next start of its job.

Measured are the times of source, step and teachers, and counts. The first batches of a training say
little: the student compiles, caches are cold, and one teacher is asked while five are needed. With
the times of the last run n = ceil(t_t / t_s) is known before the first batch. Times of the same
service and job are believed for `BELIEVED_S`; t_t only while the service serves the same content.
Each is replaced by what is measured, as soon as that stands on enough.

Whoever keeps profiles keeps the facts of `facts_of` under (service, job), the latest alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from .rates import (
    MeanWithoutPause,
    RecentMean,
    RecentMedian,
    RecentRate,
    pooled_t_t,
    teachers_needed,
)

#: The first steps of a training are slow (caches, compilers): they count until as many more came.
WARM_UP = 8
#: Steps over which t_s is taken. On an asynchronous device the training loop runs ahead for some
#: steps and then waits for all of them, so it is a mean; an evaluation or a checkpoint is a pause.
STEP_WINDOW = 64
#: Answers of one teacher over which its t_t is taken: few, so that a throttled teacher shows soon.
RECENT_ANSWERS = 5
#: Of a teacher that has answered less often nothing is known: the first answer may be slow.
FEWEST_ANSWERS = 2
RATE_WINDOW_S = 5.0
#: Batches over which the time of the source is taken. A loader with workers yields in bursts, as
#: many batches as it has workers, so it is a mean, over several bursts.
PULLS = 64


class StreamStats:
    """Times and counts of one engine. `now` is always the engine's own monotonic time."""

    def __init__(self) -> None:
        self._steps = MeanWithoutPause(STEP_WINDOW)
        self._pulls = RecentMean(PULLS)
        self._begins = False  # an epoch, and not the first
        self._answers: dict[str, RecentMedian] = {}
        self._medians: dict[str, float] = {}  # of those that have answered often enough
        self._t_t_s: float | None = None
        self._is_t_t_known = True  # it is of the latest answers
        self._rate = RecentRate(RATE_WINDOW_S)
        self._served: dict[str, int] = {}
        self.steps = self.answers = 0  # measurements, of all there were
        self.batches_taken = 0
        self.samples_taken = 0

    def step(self, seconds: float, samples: int) -> None:
        """The training loop worked so long on a batch of `samples`."""
        if samples and seconds > 0:
            self._steps.add(seconds, samples)
            self.steps += 1
            if self.steps == 2 * WARM_UP:
                self._steps.forget(WARM_UP)

    def begin(self) -> None:
        """An epoch begins: that the source needs its time for that says nothing of its pace."""
        self._begins = len(self._pulls) > 0

    def pulled(self, source_s: float, samples: int) -> None:
        """The source took so long to yield a batch of `samples`."""
        if samples and not self._begins:
            self._pulls.add(source_s, samples)
        self._begins = False

    def answer(self, teacher: str, device_s: float, samples: int) -> None:
        """A teacher's device worked so long on a batch of `samples`."""
        if samples and device_s > 0:
            if (known := self._answers.get(teacher)) is None:
                known = self._answers[teacher] = RecentMedian(RECENT_ANSWERS)
            known.add(device_s / samples)
            if (median := known.value) is not None and len(known) >= FEWEST_ANSWERS:
                self._medians[teacher] = median
            self._is_t_t_known = False
            self.answers += 1

    def labelled(self, teacher: str) -> None:
        """Labels that a teacher sent are used."""
        self._served[teacher] = self._served.get(teacher, 0) + 1

    def served(self, teacher: str) -> int:
        """Batches whose labels came from a teacher, since it was assigned."""
        return self._served.get(teacher, 0)

    def taken(self, samples: int, now: float) -> None:
        self.batches_taken += 1
        self.samples_taken += samples
        self._rate.add(samples, now)

    def forget_teacher(self, teacher: str) -> None:
        self._answers.pop(teacher, None)
        self._medians.pop(teacher, None)
        self._is_t_t_known = False
        self._served.pop(teacher, None)

    @property
    def t_s_s(self) -> float | None:
        """Seconds per sample of the training step: of the time that was not waited for labels."""
        return self._steps.value

    def pace_s(self, t_s_s: float | None) -> float | None:
        """Seconds per sample that the stream needs: the step's, or the source's if it is slower.

        This is what teachers have to keep up with: a slow source is not cured by more of them.
        """
        return None if t_s_s is None else max(t_s_s, self._pulls.value or 0.0)

    @property
    def t_t_s(self) -> float | None:
        """Seconds per sample of the average teacher, from which n is computed.

        Speeds add up: teachers at 1x, 1x and 4x label as much as three at 2x. So their speeds are
        averaged, which is the harmonic mean of their times; n is a number of such teachers.
        """
        if not self._is_t_t_known:
            self._t_t_s = pooled_t_t([*self._medians.values()]) if self._medians else None
            self._is_t_t_known = True
        return self._t_t_s

    def samples_per_s(self, now: float) -> float:
        """Rows that the training loop took, per second, over the last seconds."""
        return self._rate.value(now)


#: How old a profile may be. Machines change, and so do trainings of one name.
BELIEVED_S = 30 * 86400.0
#: Measurements after which a time counts: answers over all teachers, and steps. A low quantile of
#: fewer steps is the shortest of them, whatever made it so.
ANSWERS, STEPS = 5, 8
#: Measurements after which times are worth being remembered.
SETTLED_STEPS = 64
#: A time that has moved by this factor, or a profile that is so old, is written anew.
MOVED, STALE_S = 1.1, 3600.0
#: But never more often.
SPACING_S = 30.0


@dataclass(frozen=True, slots=True)
class StreamProfile:
    """What one run has measured.

    Attributes:
        t_t_s: seconds per sample of the average teacher (> 0).
        t_s_s: seconds per sample of the student's step, unhindered (> 0).
        content_id: of the model that the teachers served; empty where it is not known.
        saved_at: seconds of the wall clock.
    """

    t_t_s: float
    t_s_s: float
    content_id: str
    saved_at: float

    @property
    def needed(self) -> int:
        """How many teachers that asks for: n = ceil(t_t / t_s)."""
        return teachers_needed(self.t_t_s, self.t_s_s)


class Measured(NamedTuple):
    """What this run has measured so far.

    Attributes:
        t_t_s: as in `StreamProfile`; None before the first answer.
        answers: how many it stands on.
        t_s_s: as in `StreamProfile`; None before the first step.
        steps: how many it stands on.
        content_id: what the teachers serve now; empty where it is not known.
    """

    t_t_s: float | None = None
    answers: int = 0
    t_s_s: float | None = None
    steps: int = 0
    content_id: str = ""


class SampleTimes(NamedTuple):
    """What is decided by, in seconds per sample; None where nothing is known.

    Attributes:
        t_t_s: of the average teacher.
        t_s_s: of the student's step.
        presumed: one of them, or both, is remembered and not measured yet.
    """

    t_t_s: float | None
    t_s_s: float | None
    presumed: bool = False


def times(profile: StreamProfile | None, measured: Measured, wall: float) -> SampleTimes:
    """The times to decide by.

    What is measured counts once it stands on `ANSWERS` or `STEPS` of them: a step that was too
    short, or an answer that was late, would else make n many times what it is. Until then what is
    remembered counts; without that a student that starves asks for one teacher after the other.

    Args:
        profile: what was remembered of the same service and job.
        measured: what is known by now.
        wall: seconds of the wall clock.
    """
    t_t_s = measured.t_t_s if measured.answers >= ANSWERS else None
    t_s_s = measured.t_s_s if measured.steps >= STEPS else None
    if profile is None or not 0 <= wall - profile.saved_at <= BELIEVED_S:
        return SampleTimes(t_t_s, t_s_s)
    presumed = t_t_s is None or t_s_s is None
    if t_t_s is None and len({profile.content_id, measured.content_id} - {""}) < 2:
        t_t_s = profile.t_t_s
    return SampleTimes(t_t_s, profile.t_s_s if t_s_s is None else t_s_s, presumed)


def to_save(saved: StreamProfile | None, measured: Measured, wall: float) -> StreamProfile | None:
    """What is to be written now; None: nothing, it is not settled or stands there already.

    Args:
        saved: what is remembered now.
        measured: what is known by now.
        wall: seconds of the wall clock.
    """
    if measured.t_t_s is None or measured.t_s_s is None:
        return None
    if measured.answers < SETTLED_STEPS or measured.steps < SETTLED_STEPS:
        return None
    new = StreamProfile(measured.t_t_s, measured.t_s_s, measured.content_id, wall)
    if saved is None:
        return new
    age_s = abs(wall - saved.saved_at)  # of a clock that was put back, too
    differs = (
        _moved(saved.t_t_s, new.t_t_s)
        or _moved(saved.t_s_s, new.t_s_s)
        or saved.content_id != new.content_id
    )
    return new if age_s >= STALE_S or (differs and age_s >= SPACING_S) else None


def facts_of(profile: StreamProfile) -> dict[str, str]:
    """The profile as text, for a file or a registry."""
    return {
        "t_t_seconds": repr(profile.t_t_s),
        "t_s_seconds": repr(profile.t_s_s),
        "content_id": profile.content_id,
        "saved_at": repr(profile.saved_at),
    }


def profile_of(facts: Mapping[str, str]) -> StreamProfile | None:
    """The profile that `facts_of` wrote; None for anything else, as nobody depends on it."""
    try:
        t_t_s, t_s_s = float(facts["t_t_seconds"]), float(facts["t_s_seconds"])
        saved_at, content_id = float(facts["saved_at"]), facts["content_id"]
    except (KeyError, TypeError, ValueError):
        return None
    if not (0 < t_t_s < inf and 0 < t_s_s < inf and 0 < t_t_s / t_s_s < inf):
        return None
    return StreamProfile(t_t_s, t_s_s, str(content_id), saved_at) if 0 <= saved_at < inf else None


def _moved(old: float, new: float) -> bool:
    return not 1 / MOVED <= new / old <= MOVED
