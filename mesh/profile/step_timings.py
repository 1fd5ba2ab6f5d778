"""Times the training steps of a job or a function, without teachers and ranks, in a child process.

`time_steps_in_child` starts `python -m edl.mesh.profile.step_timings`, as libraries read their
number of threads when they are imported. The soft labels are noise of the right shape: their values
do not change the duration of a step. The child sends these messages:

```
progress  text             for the operator
refused   message          the job cannot be timed
done      result           JSON of `StepTimings`
```
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...distill_reader.structure import map_leaves, take_apart
from ...proto.channel import Channel
from ...runtime import supervise
from ...runtime.errors import EdlError, JobError, ProcessFailed, UsageError
from ...student.job.assembly import Assembly, assemble
from ...student.job.batches import Parts, batches_of
from ...student.job.spec import is_dataset, load_job
from ...student.losses.step import logits_of
from ...teacher.backends.model_source import import_named, is_factory

_EXIT_TIMEOUT_S = 5.0
#: Number of first steps that do not count, as they select kernels and fill caches.
WARM_UP = 3
_PROGRESS_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Timings of a job's steps.

    Attributes:
        rows: rows of a batch.
        whole_s: seconds of each step with a whole batch.
        half_s: seconds of each step with half a batch, one after each whole batch; empty: batches
            have one row.
        source_s: seconds to get each batch from the feed.
        samples: number of samples of an epoch; 0: unknown.
        sample_bytes: bytes of a sample that are sent to teachers.
        left_out: outputs of the teacher for hints, which are not timed, as they need a real
            teacher.
    """

    rows: int
    whole_s: tuple[float, ...]
    half_s: tuple[float, ...]
    source_s: tuple[float, ...]
    samples: int
    sample_bytes: float
    left_out: tuple[str, ...]


def time_steps_in_child(
    job: str,
    batch_size: int | None,
    steps: int,
    budget_s: float,
    cores: Sequence[int],
    say: Callable[[str], None],
) -> StepTimings:
    """Time steps of a job in a child process.

    Args:
        job: path of the job file, or MODULE:FUNCTION of a step (`function_steps`).
        batch_size: rows of a batch, if the feed is a data set.
        steps: number of steps with a whole batch; the number with half a batch is the same.
        budget_s: seconds after which no further step begins, once five steps count.
        cores: cores of the child; empty: any.
        say: called with a line of text.

    Raises:
        JobError: the job cannot be timed.
        ProcessFailed: the child exited without a result.
    """
    channel, child_end = Channel.pair()
    settings = {"job": job, "batch": batch_size, "steps": steps, "budget": budget_s}
    process = _start({**settings, "cores": list(cores)}, child_end)
    try:
        for message in channel:
            match message["kind"]:
                case "progress":
                    say(message["text"])
                case "refused":
                    raise JobError(message["message"])
                case "done":
                    return _steps_of(message["result"])
        process.wait(_EXIT_TIMEOUT_S)
        raise ProcessFailed(f"timing the steps failed: {' | '.join(process.tail(3))}")
    finally:
        process.stop(0.0)
        channel.close()


def _start(settings: Mapping[str, Any], child_end: int) -> supervise.Process:
    cores = settings["cores"]
    threads = {"OMP_NUM_THREADS": str(len(cores))} if cores else {}
    command = supervise.python_command(
        "steps",
        __name__,
        child_end,
        json.dumps(settings),
        pass_fds=(child_end,),
        env={"GLOG_minloglevel": "2", **threads},
    )
    try:
        return supervise.start(command)
    finally:
        os.close(child_end)


def _steps_of(result: Mapping[str, Any]) -> StepTimings:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in result.items()
    }
    return StepTimings(**fields)


def time_steps(
    job: str, batch_size: int | None, steps: int, budget_s: float, say: Callable[[str], None]
) -> StepTimings:
    """Time steps of a job in this process; see `time_steps_in_child`.

    Raises:
        UsageError: the job file is invalid, or its feed has no batches.
    """
    say(f"loading {job}")
    student: _Student
    student = function_steps(job) if is_factory(job) else _JobSteps(job, batch_size, steps)
    timer = _StepTimer(student)
    began = reported = time.perf_counter()
    for batch, source_s in _endless(student):
        timer.add(batch, source_s)
        now = time.perf_counter()
        done = len(timer.whole_s)
        if now - reported > _PROGRESS_INTERVAL_S:
            reported = now
            place = f"step {done - WARM_UP} of {steps}" if done > WARM_UP else "warming up"
            say(f"{place}, {timer.rows / timer.whole_s[-1]:.4g} samples/s")
        if done >= steps + WARM_UP or (done >= 5 + WARM_UP and now - began > budget_s):
            break
    return StepTimings(
        rows=timer.rows,
        whole_s=tuple(timer.whole_s[WARM_UP:]),
        half_s=tuple(timer.half_s[WARM_UP:]),
        source_s=tuple(timer.source_s[WARM_UP:]),
        samples=student.samples(timer.rows),
        sample_bytes=timer.sample_bytes,
        left_out=student.left_out,
    )


class _StepTimer:
    """Takes steps and records their durations."""

    def __init__(self, student: _Student) -> None:
        self._student = student
        self.rows = 0
        self.sample_bytes = 0.0
        self.whole_s: list[float] = []
        self.half_s: list[float] = []
        self.source_s: list[float] = []

    def add(self, batch: Any, source_s: float) -> None:
        """Take a step with a batch, and one with half of the batch."""
        student = self._student
        rows = student.rows(batch)
        if not self.rows:
            self.rows, self.sample_bytes = rows, student.sample_bytes(batch)
        if rows != self.rows:  # the last batch of an epoch
            return
        self.source_s.append(source_s)
        self.whole_s.append(student.take(batch))
        if rows > 1:
            self.half_s.append(student.take(student.half(batch)))


def _endless(student: _Student) -> Iterator[tuple[Any, float]]:
    """Yield batches, epoch after epoch, with the seconds to get each."""
    while True:
        any_batch = False
        began = time.perf_counter()
        for batch in student.batches():
            yield batch, time.perf_counter() - began
            any_batch, began = True, time.perf_counter()
        if not any_batch:
            raise UsageError(f"{student.name} has no batches")


class _JobSteps:
    """The steps of a job file.

    Attributes:
        name: name of the source of batches, for messages.
        left_out: outputs of the teacher for hints, which are not timed.
    """

    def __init__(self, job: str, batch_size: int | None, steps: int) -> None:
        spec = load_job(job)
        spec.framework.set_device(0)
        self._parts = assemble(spec, steps_total=2 * (steps + WARM_UP))
        self._parts.model.train()
        self.name = f"feed('train') of {spec.path}"
        distill = self._parts.distill
        self.left_out = () if distill is None else tuple(h.teacher for h in distill.hints)
        self._batch_size = batch_size
        self._step = 0

    def batches(self) -> Iterator[Parts]:
        """Yield the batches of an epoch."""
        return batches_of(self._parts.spec, "train", self._batch_size)

    def rows(self, batch: Parts) -> int:
        return batch.rows

    def half(self, batch: Parts) -> Parts:
        """Return the first half of a batch."""
        return batch.part(0, batch.rows // 2)

    def take(self, batch: Parts) -> float:
        """Take a step; return its seconds."""
        parts = self._parts
        began = time.perf_counter()
        with parts.spec.job_errors("model"):
            outputs = batch.forward(parts.model)
        noise_began = time.perf_counter()
        soft = _noise(parts, outputs)
        noise_s = time.perf_counter() - noise_began
        terms = parts.loss(outputs, batch.labels, soft, self._step)
        terms.total.backward()
        with parts.spec.job_errors("optimizer"):
            parts.optimizer.step()
            parts.optimizer.clear_grad()
        terms.total.item()  # wait for a device that computes asynchronously
        self._step += 1
        return time.perf_counter() - began - noise_s

    def sample_bytes(self, batch: Parts) -> float:
        """Return the bytes of a sample for teachers."""
        return _sample_bytes(self._parts, batch)

    def samples(self, rows: int) -> int:
        """Return the samples of an epoch with batches of `rows`; 0: unknown."""
        return _samples(self._parts.spec.feed("train"), rows)


class _FunctionSteps:
    """The steps of a function, in the form of `_JobSteps`; see `function_steps`."""

    left_out: tuple[str, ...] = ()

    def __init__(self, name: str, batches: Iterable[Any], step: Callable[[Any], Any]) -> None:
        self.name = f"{name}()"
        self._batches = batches
        self._step = step

    def batches(self) -> Iterator[Any]:
        return iter(self._batches)

    def rows(self, batch: Any) -> int:
        return take_apart(batch).samples

    def half(self, batch: Any) -> Any:
        rows = self.rows(batch)

        def cut(leaf: Any) -> Any:
            return leaf[: rows // 2] if list(getattr(leaf, "shape", ()))[:1] == [rows] else leaf

        return map_leaves(batch, cut)

    def take(self, batch: Any) -> float:
        began = time.perf_counter()
        self._step(batch)
        return time.perf_counter() - began

    def sample_bytes(self, batch: Any) -> float:
        parts = take_apart(batch)
        return sum(array.nbytes for array in parts.arrays) / parts.samples

    def samples(self, rows: int) -> int:
        return _samples(self._batches, rows)


_Student = _JobSteps | _FunctionSteps


def function_steps(name: str) -> _FunctionSteps:
    """Return the steps of a function MODULE:FUNCTION.

    It returns a pair: the batches of an epoch, which can be iterated again, and a function that
    trains on one and returns when the device has done so, as after reading the loss.

    Raises:
        UsageError: there is no such function, or it returns something else.
    """
    made = import_named(name)()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[1])):
        raise UsageError(
            f"{name}() must return a pair, the batches and a function that trains on one; it"
            f" returned a {type(made).__name__}"
        )
    return _FunctionSteps(name, *made)


def _noise(parts: Assembly, outputs: Any) -> dict[str, Any]:
    """Make random soft labels in the shape of the student's logits."""
    distill = parts.distill
    if distill is None or not distill.needs_labels:
        return {}
    draw, tensor = np.random.default_rng(0), parts.spec.framework.tensor

    def uniform(*shape: int) -> Any:
        return tensor(draw.random(shape, np.float32))

    shape = list(logits_of(outputs, distill).shape)
    if distill.top_k:
        form = distill.label_form
        text = form if isinstance(form, str) else (form or {}).get(distill.main_output, "")
        k = min(int(text.rpartition(":")[2]), shape[-1])
        values, indices, tail = distill.parts_of_main
        return {
            values: uniform(*shape[:-1], k) / k,
            indices: tensor(draw.integers(0, shape[-1], [*shape[:-1], k])),
            tail: uniform(*shape[:-1]),
        }
    noise = uniform(*shape)
    if distill.labels_are == "probabilities":
        noise = noise / noise.sum(-1)[..., None]
    return {distill.parts_of_main[0]: noise}


def _sample_bytes(parts: Assembly, batch: Parts) -> float:
    """Return the bytes of a sample for teachers: those of all inputs, or of those in `feeds`."""
    feeds = None if parts.distill is None else parts.distill.feeds
    given = batch.inputs
    wanted: dict[Any, Any] = dict(given if isinstance(given, Mapping) else enumerate(given))
    if isinstance(feeds, Mapping):
        feeds = list(feeds.values())
    if feeds is not None:
        chosen = {key: wanted[key] for key in feeds if key in wanted}
        wanted = chosen or wanted
    tensors = [value for value in wanted.values() if hasattr(value, "shape")]
    nbytes: float = sum(math.prod(one.shape) * one.element_size() for one in tensors)
    return nbytes / batch.rows


def _samples(feed: Any, rows: int) -> int:
    """Return the number of samples of an epoch; 0: unknown."""
    if is_dataset(feed):
        return len(feed)
    dataset = getattr(feed, "dataset", None)
    if dataset is not None and hasattr(dataset, "__len__"):
        return len(dataset)
    return len(feed) * rows if hasattr(feed, "__len__") else 0


def main() -> None:
    """Run the child."""
    supervise.end_with_parent(at_once=True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("channel", type=int, help="file descriptor of the channel")
    parser.add_argument("settings", help="job, batch, steps, budget and cores as JSON")
    arguments = parser.parse_args()
    settings = json.loads(arguments.settings)
    if settings["cores"]:
        os.sched_setaffinity(0, settings["cores"])  # before a framework starts threads
    sys.path.append(os.getcwd())
    channel = Channel.attach(arguments.channel)
    # Paddle warns about its build.
    warnings.filterwarnings("ignore", category=UserWarning, module="paddle")

    def say(text: str) -> None:
        channel.send("progress", text=text)

    try:
        steps = time_steps(
            settings["job"], settings["batch"], settings["steps"], settings["budget"], say
        )
    except EdlError as error:
        channel.send("refused", message=str(error))
    else:
        channel.send("done", result=asdict(steps))


if __name__ == "__main__":
    main()
