"""Times the training steps of a job or a function, without teachers and ranks, in a child process.

`time_steps_in_child` starts `python -m edl.mesh.profile.step_timings`, as libraries read their
number of threads when they are imported. The soft labels are noise of the right shape: their values
do not change the duration of a step.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...distill_reader.structure import map_leaves, take_apart
from ...proto.dataclass_json import from_plain
from ...runtime.errors import UsageError
from ...student.job.assembly import Assembly, assemble
from ...student.job.batches import Parts, batches_of
from ...student.job.spec import is_dataset, load_job
from ...student.losses.step import logits_of
from ...teacher.backends.model_source import import_named, is_factory
from ...teacher.offline import run_task, serve_task
from ...teacher.predictor import prepare_process

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
        device: where the steps ran, in words.
    """

    rows: int
    whole_s: tuple[float, ...]
    half_s: tuple[float, ...]
    source_s: tuple[float, ...]
    samples: int
    sample_bytes: float
    left_out: tuple[str, ...]
    device: str


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
        job: path of the job file, or MODULE:FUNCTION of a step (`_FunctionSteps`).
        batch_size: rows of a batch, if the feed is a data set.
        steps: number of whole batches to time; after each, half a batch is timed, too.
        budget_s: seconds after which no further step begins, if at least five steps were timed.
        cores: cores of the child; empty: any.
        say: called with a line of text.

    Raises:
        EdlError: the job cannot be timed; see `time_steps`.
        ProcessFailed: the child exited without a result.
    """
    settings = {"job": job, "batch_size": batch_size, "steps": steps, "budget_s": budget_s}
    threads = {"OMP_NUM_THREADS": str(len(cores))} if cores else {}
    request, env = {**settings, "cores": list(cores)}, {"GLOG_minloglevel": "2", **threads}
    return from_plain(StepTimings, run_task("steps", __name__, request, env, say))


def time_steps(
    job: str, batch_size: int | None, steps: int, budget_s: float, say: Callable[[str], None]
) -> StepTimings:
    """Time steps of a job in this process; see `time_steps_in_child`.

    Raises:
        UsageError: the job file is invalid, or its feed has no batches.
    """
    say(f"loading {job}")
    student: _Student
    student = _FunctionSteps(job) if is_factory(job) else _JobSteps(job, batch_size, steps)
    rows, sample_bytes = 0, 0.0
    source_s, whole_s, half_s = list[float](), list[float](), list[float]()
    began = reported = time.perf_counter()
    for batch, batch_source_s in _endless(student):
        if not rows:
            rows, sample_bytes = student.rows(batch), student.sample_bytes(batch)
        if student.rows(batch) == rows:  # an epoch may end with a shorter batch
            source_s.append(batch_source_s)
            whole_s.append(student.take(batch))
            if rows > 1:
                half_s.append(student.take(student.half(batch)))
        now = time.perf_counter()
        done = len(whole_s)
        if now - reported > _PROGRESS_INTERVAL_S:
            reported = now
            state = f"step {done - WARM_UP} of {steps}" if done > WARM_UP else "warming up"
            say(f"{state}, {rows / whole_s[-1]:.4g} samples/s")
        if done >= steps + WARM_UP or (done >= 5 + WARM_UP and now - began > budget_s):
            break
    return StepTimings(
        rows=rows,
        whole_s=tuple(whole_s[WARM_UP:]),
        half_s=tuple(half_s[WARM_UP:]),
        source_s=tuple(source_s[WARM_UP:]),
        samples=student.samples(rows),
        sample_bytes=sample_bytes,
        left_out=student.left_out,
        device=student.device,
    )


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
    """Steps of the training in a job file.

    Attributes:
        name: name of the source of batches, for messages.
        left_out: outputs of the teacher for hints, which are not timed.
        device: name of the device.
    """

    def __init__(self, job: str, batch_size: int | None, steps: int) -> None:
        spec = load_job(job)
        self.device = spec.framework.set_device(0)
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
        """Return the bytes of a sample that teachers get: all inputs, or those named in `feeds`."""
        distill, inputs = self._parts.distill, batch.inputs
        feeds = None if distill is None else distill.feeds
        sent: dict[Any, Any] = dict(inputs if isinstance(inputs, Mapping) else enumerate(inputs))
        if isinstance(feeds, Mapping):
            feeds = list(feeds.values())
        if feeds is not None:
            sent = {key: sent[key] for key in feeds if key in sent} or sent
        tensors = [value for value in sent.values() if hasattr(value, "shape")]
        nbytes: float = sum(math.prod(one.shape) * one.element_size() for one in tensors)
        return nbytes / batch.rows

    def samples(self, rows: int) -> int:
        """Return the samples of an epoch with batches of `rows`; 0: unknown."""
        return _samples(self._parts.spec.feed("train"), rows)


class _FunctionSteps:
    """Steps of a function MODULE:FUNCTION, with the interface of `_JobSteps`.

    The function returns a pair: the batches of an epoch, which can be iterated again, and a
    function that trains on one batch and returns when the device has finished, for example because
    it reads the loss.

    Raises:
        UsageError: there is no such function, or it does not return such a pair.
    """

    left_out: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = f"{name}()"
        self.device = f"the device that {self.name} uses"
        pair = import_named(name)()
        if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1])):
            raise UsageError(
                f"{self.name} must return a pair, the batches and a function that trains on one"
                f" batch; it returned a {type(pair).__name__}"
            )
        self._batches, self._step = pair

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


def _noise(parts: Assembly, outputs: Any) -> dict[str, Any]:
    """Make random soft labels in the shape of the student's logits."""
    distill = parts.distill
    if distill is None or not distill.needs_labels:
        return {}
    rng, tensor = np.random.default_rng(0), parts.spec.framework.tensor

    def uniform(*shape: int) -> Any:
        return tensor(rng.random(shape, np.float32))

    shape = list(logits_of(outputs, distill).shape)
    if distill.top_k:
        form = distill.label_form
        text = form if isinstance(form, str) else (form or {}).get(distill.main_output, "")
        k = min(int(text.rpartition(":")[2]), shape[-1])
        values, indices, tail = distill.main_label_names
        return {
            values: uniform(*shape[:-1], k) / k,
            indices: tensor(rng.integers(0, shape[-1], [*shape[:-1], k])),
            tail: uniform(*shape[:-1]),
        }
    noise = uniform(*shape)
    if distill.arriving_kind == "probabilities":
        noise = noise / noise.sum(-1)[..., None]
    return {distill.main_label_names[0]: noise}


def _samples(feed: Any, rows: int) -> int:
    """Return the number of samples of an epoch; 0: unknown."""
    dataset: Any = feed if is_dataset(feed) else getattr(feed, "dataset", None)
    for sized, samples in ((dataset, 1), (feed, rows)):
        # `__len__` of streams and of loaders over them raises errors of several types.
        with contextlib.suppress(Exception):
            return len(sized) * samples
    return 0


def _run_request(
    cores: Sequence[int], say: Callable[[str], None], **settings: Any
) -> dict[str, Any]:
    """Time steps in the child."""
    prepare_process(cores)
    # Paddle warns about its build.
    warnings.filterwarnings("ignore", category=UserWarning, module="paddle")
    return asdict(time_steps(**settings, say=say))


if __name__ == "__main__":
    serve_task(lambda request, say: _run_request(**request, say=say))
