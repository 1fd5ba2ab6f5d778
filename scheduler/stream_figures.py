"""What is measured of a stream: the times of source, step and teachers; counts."""

from __future__ import annotations

from .rates import MeanWithoutPause, RecentMean, RecentMedian, RecentRate
from .ratio import pooled_t_t

#: The first steps of a training are slow (caches, compilers): they count until as many more came.
WARM_UP = 8
#: Steps over which t_s is taken. On an asynchronous device the training loop runs ahead for some
#: steps and then waits for all of them, so it is a mean; an evaluation or a checkpoint is a pause.
STEP_WINDOW = 64
#: Answers of one teacher over which its t_t is taken: few, so that a throttled teacher shows soon.
ANSWERS = 5
#: Of a teacher that has answered less often nothing is known: the first answer may be slow.
FEWEST_ANSWERS = 2
RATE_WINDOW_S = 5.0
#: Batches over which the time of the source is taken. A loader with workers yields in bursts, as
#: many batches as it has workers, so it is a mean, over several bursts.
PULLS = 64


class Figures:
    """Times and counts of one engine. `now` is always the engine's own monotonic time."""

    def __init__(self) -> None:
        self._steps = MeanWithoutPause(STEP_WINDOW)
        self._pulls = RecentMean(PULLS)
        self._begins = False  # an epoch, and not the first
        self._answers: dict[str, RecentMedian] = {}
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
            self._steps.add(seconds / samples)
            self.steps += 1
            if self.steps == 2 * WARM_UP:
                self._steps.forget(WARM_UP)

    def begin(self) -> None:
        """An epoch begins: that the source needs its time for that says nothing of its pace."""
        self._begins = len(self._pulls) > 0

    def pulled(self, source_s: float, samples: int) -> None:
        """The source took so long to yield a batch of `samples`."""
        if samples and not self._begins:
            self._pulls.add(source_s / samples)
        self._begins = False

    def answer(self, teacher: str, device_s: float, samples: int) -> None:
        """A teacher's device worked so long on a batch of `samples`."""
        if samples and device_s > 0:
            self._answers.setdefault(teacher, RecentMedian(ANSWERS)).add(device_s / samples)
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
            known = [one for one in self._answers.values() if len(one) >= FEWEST_ANSWERS]
            times = [one.value for one in known if one.value is not None]
            self._t_t_s = pooled_t_t(times) if times else None
            self._is_t_t_known = True
        return self._t_t_s

    def samples_per_s(self, now: float) -> float:
        """Rows that the training loop took, per second, over the last seconds."""
        return self._rate.value(now)
