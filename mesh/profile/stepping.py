"""A process that takes steps of a job without teachers and ranks, and times them.

`python -m edl.mesh.profile.stepping`, started by `take_steps`: libraries read how many threads they
may use when they are loaded. The soft labels are noise of the right shape, as no step is faster or
slower for what they say.

```
from it    progress  text             for the operator
           refused   message          the job cannot do it
           done      result           JSON, as `MeasuredSteps`
```
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ... import supervise
from ...errors import EdlError, JobError, ProcessFailed, UsageError
from ...proto.channel import Channel
from ...student.job.assembly import Assembly, assemble
from ...student.job.batches import Parts, batches_of
from ...student.job.spec import is_dataset, load_job
from ...student.losses.step import logits_of

_LAST_WORDS_S = 5.0
#: Steps that do not count: the first choose kernels and fill caches.
WARM_UP = 3
_TELL_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """What was timed.

    Attributes:
        rows: of a batch.
        whole_s: seconds of each step of a whole batch.
        half_s: of each step of half a batch, taken in turns with these; empty: one row has no half.
        source_s: seconds until each batch came from the feed.
        samples: of an epoch; 0: the feed does not say.
        sample_bytes: of what teachers get of a sample.
        left_out: terms of the loss that need a real teacher.
    """

    rows: int
    whole_s: tuple[float, ...]
    half_s: tuple[float, ...]
    source_s: tuple[float, ...]
    samples: int
    sample_bytes: float
    left_out: tuple[str, ...]


def take_steps(
    job: str,
    batch_size: int | None,
    steps: int,
    budget_s: float,
    cores: Sequence[int],
    on_progress: Callable[[str], None],
) -> MeasuredSteps:
    """Time steps of a job, in a process of its own.

    Args:
        job: path of the job file.
        batch_size: rows of a batch, where the feed is a data set.
        steps: how many of a whole batch; as many of half a batch.
        budget_s: after so long no further step begins, once there were five.
        cores: the process is bound to; empty: any.
        on_progress: told in words what is being done.

    Raises:
        UsageError: the job file does not work.
        ProcessFailed: the process ended by itself.
    """
    channel, child_end = Channel.pair()
    given = {"job": job, "batch": batch_size, "steps": steps, "budget": budget_s}
    process = _start({**given, "cores": list(cores)}, child_end)
    try:
        for message in channel:
            match message["kind"]:
                case "progress":
                    on_progress(message["text"])
                case "refused":
                    raise JobError(message["message"])
                case "done":
                    return _steps_of(message["result"])
        process.wait(_LAST_WORDS_S)
        raise ProcessFailed(f"the steps ended without a result: {' | '.join(process.tail(3))}")
    finally:
        process.stop(0.0)
        channel.close()


def _start(words: Mapping[str, Any], child_end: int) -> supervise.Process:
    cores = words["cores"]
    threads = {"OMP_NUM_THREADS": str(len(cores))} if cores else {}
    command = supervise.python_command(
        "steps",
        __name__,
        child_end,
        json.dumps(words),
        pass_fds=(child_end,),
        env={"GLOG_minloglevel": "2", **threads},
    )
    try:
        return supervise.start(command)
    finally:
        os.close(child_end)


def _steps_of(result: Mapping[str, Any]) -> MeasuredSteps:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in result.items()
    }
    return MeasuredSteps(**fields)


def time_steps(
    job: str, batch_size: int | None, steps: int, budget_s: float, say: Callable[[str], None]
) -> MeasuredSteps:
    """The same in this process.

    Raises:
        UsageError: the job file does not work, or its feed has no batches.
    """
    say(f"loading {job}")
    parts = assemble(load_job(job), steps_total=2 * (steps + WARM_UP))
    parts.model.train()
    taken = _Taken(parts)
    began = told = time.perf_counter()
    for batch, source_s in _endless(parts, batch_size):
        taken.add(batch, source_s)
        now = time.perf_counter()
        done = len(taken.whole_s)
        if now - told > _TELL_EVERY_S:
            told = now
            place = f"step {done - WARM_UP} of {steps}" if done > WARM_UP else "warming up"
            say(f"{place}, {batch.rows / taken.whole_s[-1]:.4g} samples/s")
        if done >= steps + WARM_UP or (done >= 5 + WARM_UP and now - began > budget_s):
            break
    spec = parts.spec
    feed = spec.feed("train")
    return MeasuredSteps(
        rows=taken.rows,
        whole_s=tuple(taken.whole_s[WARM_UP:]),
        half_s=tuple(taken.half_s[WARM_UP:]),
        source_s=tuple(taken.source_s[WARM_UP:]),
        samples=_samples(feed, taken.rows),
        sample_bytes=taken.sample_bytes,
        left_out=taken.left_out,
    )


class _Taken:
    """Steps of one job, and how long each took."""

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts
        self._step = 0
        self.rows = 0
        self.sample_bytes = 0.0
        self.whole_s: list[float] = []
        self.half_s: list[float] = []
        self.source_s: list[float] = []
        distill = parts.distill
        self.left_out = () if distill is None else tuple(h.teacher for h in distill.hints)

    def add(self, batch: Parts, source_s: float) -> None:
        """Take a step of a batch, and one of half of it."""
        if not self.rows:
            self.rows, self.sample_bytes = batch.rows, _sample_bytes(self._parts, batch)
        if batch.rows != self.rows:  # the last one of an epoch
            return
        self.source_s.append(source_s)
        self.whole_s.append(self._take(batch))
        if batch.rows > 1:
            self.half_s.append(self._take(batch.part(0, batch.rows // 2)))

    def _take(self, batch: Parts) -> float:
        parts = self._parts
        began = time.perf_counter()
        with parts.spec.blames("model"):
            outputs = batch.forward(parts.model)
        noise_began = time.perf_counter()
        soft = _noise(parts, outputs)
        noise_s = time.perf_counter() - noise_began
        terms = parts.loss(outputs, batch.labels, soft, self._step)
        terms.total.backward()
        with parts.spec.blames("optimizer"):
            parts.optimizer.step()
            parts.optimizer.clear_grad()
        float(terms.total)  # a device that works by itself has to be done
        self._step += 1
        return time.perf_counter() - began - noise_s


def _endless(parts: Assembly, batch_size: int | None) -> Iterator[tuple[Parts, float]]:
    """Batches of epoch after epoch, with the seconds that each took to come."""
    while True:
        some = False
        began = time.perf_counter()
        for batch in batches_of(parts.spec, "train", batch_size):
            yield batch, time.perf_counter() - began
            some, began = True, time.perf_counter()
        if not some:
            raise UsageError(f"feed('train') of {parts.spec.path} has no batches")


def _noise(parts: Assembly, outputs: Any) -> dict[str, Any]:
    """Soft labels that no teacher has made, shaped as the student's logits are."""
    distill = parts.distill
    if distill is None or not parts.needs_teachers:
        return {}
    import paddle

    shape = list(logits_of(outputs, distill).shape)
    if distill.top_k:
        form = distill.label_form
        text = form if isinstance(form, str) else (form or {}).get(distill.main_output, "")
        k = min(int(text.rpartition(":")[2]), shape[-1])
        values, indices, tail = distill.parts_of_main
        return {
            values: paddle.rand([*shape[:-1], k]) / k,
            indices: paddle.randint(0, shape[-1], [*shape[:-1], k]),
            tail: paddle.rand(shape[:-1]),
        }
    noise = paddle.rand(shape)
    if distill.labels_are == "probabilities":
        noise = paddle.nn.functional.softmax(noise, axis=-1)
    return {distill.parts_of_main[0]: noise}


def _sample_bytes(parts: Assembly, batch: Parts) -> float:
    """Bytes of a sample that teachers get: all inputs, or those that `feeds` names."""
    feeds = None if parts.distill is None else parts.distill.feeds
    given = batch.inputs
    wanted: dict[Any, Any] = dict(given if isinstance(given, Mapping) else enumerate(given))
    if isinstance(feeds, Mapping):
        feeds = list(feeds.values())
    if feeds is not None:
        chosen = {key: wanted[key] for key in feeds if key in wanted}
        wanted = chosen or wanted
    arrays = [np.asarray(value) for value in wanted.values() if hasattr(value, "shape")]
    return sum(array.nbytes for array in arrays) / batch.rows


def _samples(feed: Any, rows: int) -> int:
    """Samples of an epoch; 0 where the feed does not say."""
    if is_dataset(feed):
        return len(feed)
    dataset = getattr(feed, "dataset", None)
    if dataset is not None and hasattr(dataset, "__len__"):
        return len(dataset)
    return len(feed) * rows if hasattr(feed, "__len__") else 0


def main() -> None:
    """The process."""
    supervise.end_with_parent(at_once=True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("channel", type=int, help="descriptor of the channel")
    parser.add_argument("words", help="job, batch, steps, budget and cores as JSON")
    given = parser.parse_args()
    words = json.loads(given.words)
    if words["cores"]:
        os.sched_setaffinity(0, words["cores"])  # before a framework starts threads of its own
    sys.path.append(os.getcwd())
    channel = Channel.attach(given.channel)
    # Paddle's notes about its build are for its developers.
    warnings.filterwarnings("ignore", category=UserWarning, module="paddle")

    def say(text: str) -> None:
        channel.send("progress", text=text)

    try:
        steps = time_steps(words["job"], words["batch"], words["steps"], words["budget"], say)
    except EdlError as error:
        channel.send("refused", message=str(error))
    else:
        channel.send("done", result=asdict(steps))


if __name__ == "__main__":
    main()
