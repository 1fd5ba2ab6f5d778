"""Measurements of a stream, and a profile of them for the next run of its job.

The first batches of a training are not typical: the student compiles, caches are cold, and one
teacher works where five are needed. With the times of the last run n = ceil(t_t / t_s) is known
before the first batch. Times of the same service and job are used for `BELIEVED_S`; t_t is not used
if the service is known to serve another content. Measured times replace both once they rest on
enough data.

A store of profiles keeps the latest profile, as `facts_of` returns it, under (service, job).
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
    harmonic_mean_t_t,
    teachers_needed,
)

#: The first `WARM_UP` steps are dropped after twice as many steps: cold caches and compilation make
#: them slow.
WARM_UP = 8
#: Steps over which t_s is averaged. With an asynchronous device the training loop runs ahead for
#: some steps and then waits for the device, hence a mean. One pause for an evaluation or a
#: checkpoint is left out.
STEP_WINDOW = 64
#: Number of latest answers over which a teacher's t_t is measured: few, to notice throttling soon.
RECENT_ANSWERS = 5
#: Fewest answers for the t_t of a teacher: the first one may be slow.
FEWEST_ANSWERS = 2
#: Seconds over which rates of samples are measured.
RATE_WINDOW_S = 5.0
#: Batches over which the time of the source is averaged. A loader with workers yields bursts of one
#: batch per worker, hence a mean over several bursts.
PULLS = 64


class StreamStats:
    """Times and counts of one stream and one service.

    `now` is the driver's monotonic time. "Calls" ask for labels outside the training loop.

    Attributes:
        t_t_s: seconds per sample of the average teacher, for computing n; None until measured.
            Speeds add up: teachers at 1x, 1x and 4x label as much as three at 2x. So it is the
            harmonic mean of their times; n is a number of such teachers.
        steps: number of measured steps so far. Calls count too, once their rate is measured.
        answers: number of measured answers so far.
        batches_taken: number of batches that the training loop and calls have taken.
        samples_taken: number of samples in these batches.
    """

    def __init__(self) -> None:
        self._steps = MeanWithoutPause(STEP_WINDOW)
        self._pulls = RecentMean(PULLS)
        self._epoch_begins = False  # the next pull is the first one of a later epoch
        self._answers: dict[str, RecentMedian] = {}  # seconds per sample, by teacher
        self._medians: dict[str, float] = {}  # of teachers with enough answers
        self.t_t_s: float | None = None
        self._taken_rate = RecentRate(RATE_WINDOW_S)
        self._call_rate = RecentRate(RATE_WINDOW_S)
        self._first_call_at: float | None = None
        self._called_per_s = 0.0  # samples of calls; 0 until a whole window is measured
        self._used_answers: dict[str, int] = {}
        self._loop_steps = 0
        self.steps = self.answers = 0
        self.batches_taken = 0
        self.samples_taken = 0

    def step(self, seconds: float, samples: int) -> None:
        """Record the seconds of work of the training loop on a batch of `samples`."""
        if samples and seconds > 0:
            self._steps.add(seconds, samples)
            self.steps += 1
            self._loop_steps += 1
            if self._loop_steps == 2 * WARM_UP:
                self._steps.drop_oldest(WARM_UP)

    def called(self, samples: int, now: float) -> None:
        """Record a call for the labels of `samples`.

        The rate of calls counts from a whole window on: earlier, a burst would look like a lasting
        demand.
        """
        if self._first_call_at is None:
            self._first_call_at = now
        self._call_rate.add(samples, now)
        if now - self._first_call_at >= RATE_WINDOW_S:
            self._called_per_s = self._call_rate.value(now)
            self.steps += 1

    def tick(self, now: float) -> bool:
        """Forget the rate of calls if no more calls come; return whether this changes `t_s_s`."""
        if not self._called_per_s or self._call_rate.value(now):
            return False
        self._called_per_s, self._first_call_at = 0.0, None
        return True

    def begin(self) -> None:
        """Begin an epoch.

        The first pull of a later epoch is ignored: it includes the start of the source.
        """
        self._epoch_begins = len(self._pulls) > 0

    def pulled(self, source_s: float, samples: int) -> None:
        """Record the seconds that the source needed for a batch of `samples`."""
        if samples and not self._epoch_begins:
            self._pulls.add(source_s, samples)
        self._epoch_begins = False

    def answer(self, teacher: str, device_s: float, samples: int) -> None:
        """Record the device time of a teacher for a request of `samples`."""
        if samples and device_s > 0:
            if (known := self._answers.get(teacher)) is None:
                known = self._answers[teacher] = RecentMedian(RECENT_ANSWERS)
            median = known.add(device_s / samples)
            if len(known) >= FEWEST_ANSWERS:
                self._medians[teacher] = median
                self.t_t_s = harmonic_mean_t_t([*self._medians.values()])
            self.answers += 1

    def labelled(self, teacher: str) -> None:
        """Record an answer of a teacher whose labels are used."""
        self._used_answers[teacher] = self._used_answers.get(teacher, 0) + 1

    def served(self, teacher: str) -> int:
        """Return the number of a teacher's answers whose labels were used, since its assignment."""
        return self._used_answers.get(teacher, 0)

    def taken(self, samples: int, now: float) -> None:
        self.batches_taken += 1
        self.samples_taken += samples
        self._taken_rate.add(samples, now)

    def forget_teacher(self, teacher: str) -> None:
        self._answers.pop(teacher, None)
        self._medians.pop(teacher, None)
        self.t_t_s = harmonic_mean_t_t([*self._medians.values()]) if self._medians else None
        self._used_answers.pop(teacher, None)

    @property
    def t_s_s(self) -> float | None:
        """Seconds per sample that the student needs at full speed; None until measured.

        It is the inverse of a sum: the samples per second of the training loop without its waits
        for labels, and the samples per second of calls.
        """
        step_s = self._steps.value
        if not self._called_per_s:
            return step_s
        return 1.0 / (self._called_per_s + (1.0 / step_s if step_s else 0.0))

    def pace_s(self, t_s_s: float | None) -> float | None:
        """Return `t_s_s`, or the time of the source if that is longer.

        n is computed from this time: more teachers do not help if the source is slow.
        """
        if t_s_s is None or not (source_s := self._pulls.value):
            return t_s_s
        return max(t_s_s, 1.0 / (self._called_per_s + 1.0 / source_s))

    def samples_per_s(self, now: float) -> float:
        """Return the samples per second of the last `RATE_WINDOW_S`, taken by the loop or calls."""
        return self._taken_rate.value(now)


#: Longest age of a profile in seconds: machines change, and so do trainings of one name.
BELIEVED_S = 30 * 86400.0
#: Fewest answers, of all teachers, for a measured t_t; fewest steps for a measured t_s.
ANSWERS, STEPS = 5, 8
#: Fewest answers, and fewest steps, for writing a profile.
SETTLED_STEPS = 64
#: A profile is rewritten once a time has changed by this factor or the content has changed, and at
#: this age in seconds.
MOVED, STALE_S = 1.1, 3600.0
#: Shortest time in seconds between two writes.
SPACING_S = 30.0


@dataclass(frozen=True, slots=True)
class StreamProfile:
    """Measurements of one run.

    Attributes:
        t_t_s: seconds per sample of the average teacher (> 0).
        t_s_s: seconds per sample of the student's step, unhindered (> 0).
        content_id: content that the teachers served; empty: unknown.
        saved_at: seconds of the wall clock.
    """

    t_t_s: float
    t_s_s: float
    content_id: str
    saved_at: float

    @property
    def needed(self) -> int:
        """The number of teachers n = ceil(t_t / t_s)."""
        return teachers_needed(self.t_t_s, self.t_s_s)


class Measured(NamedTuple):
    """Measurements of this run so far.

    Attributes:
        t_t_s: as in `StreamProfile`; None until measured.
        answers: number of answers.
        t_s_s: as in `StreamProfile`; None until measured.
        steps: number of steps.
        content_id: content that the teachers serve now; empty: unknown.
    """

    t_t_s: float | None = None
    answers: int = 0
    t_s_s: float | None = None
    steps: int = 0
    content_id: str = ""


class SampleTimes(NamedTuple):
    """The times for decisions, in seconds per sample; None: unknown.

    Attributes:
        t_t_s: of the average teacher.
        t_s_s: of the student's step.
        presumed: at least one of the two times is that of an earlier run.
    """

    t_t_s: float | None
    t_s_s: float | None
    presumed: bool = False


def times(profile: StreamProfile | None, measured: Measured, wall: float) -> SampleTimes:
    """Return the times for decisions.

    Measured times count from `ANSWERS` answers or `STEPS` steps on: a single short step or slow
    answer would make n many times too large. Until then the profile counts; without one, a starving
    student asks for one teacher after the other.

    Args:
        profile: of the same service and job.
        measured: measurements of this run.
        wall: seconds of the wall clock.
    """
    t_t_s = measured.t_t_s if measured.answers >= ANSWERS else None
    t_s_s = measured.t_s_s if measured.steps >= STEPS else None
    if profile is None or not 0 <= wall - profile.saved_at <= BELIEVED_S:
        return SampleTimes(t_t_s, t_s_s)
    presumed = False
    if t_t_s is None and len({profile.content_id, measured.content_id} - {""}) < 2:
        t_t_s, presumed = profile.t_t_s, True
    if t_s_s is None:
        t_s_s, presumed = profile.t_s_s, True
    return SampleTimes(t_t_s, t_s_s, presumed)


def to_save(saved: StreamProfile | None, measured: Measured, wall: float) -> StreamProfile | None:
    """Return the profile to write now; None: `saved` suffices, or measurements are too few.

    Args:
        saved: the stored profile; None: there is none.
        measured: measurements of this run.
        wall: seconds of the wall clock.
    """
    if measured.t_t_s is None or measured.t_s_s is None:
        return None
    if measured.answers < SETTLED_STEPS or measured.steps < SETTLED_STEPS:
        return None
    new = StreamProfile(measured.t_t_s, measured.t_s_s, measured.content_id, wall)
    if saved is None:
        return new
    age_s = abs(wall - saved.saved_at)  # also for a clock that was set back
    differs = (
        _moved(saved.t_t_s, new.t_t_s)
        or _moved(saved.t_s_s, new.t_s_s)
        or saved.content_id != new.content_id
    )
    return new if age_s >= STALE_S or (differs and age_s >= SPACING_S) else None


def facts_of(profile: StreamProfile) -> dict[str, str]:
    """Return the profile as text, for a file or a registry."""
    return {
        "t_t_seconds": repr(profile.t_t_s),
        "t_s_seconds": repr(profile.t_s_s),
        "content_id": profile.content_id,
        "saved_at": repr(profile.saved_at),
    }


def profile_of(facts: Mapping[str, str]) -> StreamProfile | None:
    """Parse the result of `facts_of`; None: `facts` is anything else, as a profile is optional."""
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
