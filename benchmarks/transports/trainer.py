"""The process of a trainer that takes batches from its reader, or labels from its pool."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import psutil

from ...distill_reader import DistilReader, TeacherPool
from ...proto.arena import Array
from ...proto.channel import Channel, Message
from ..paced import Repeated

THREADS: Final = 8


def train(
    channel: Channel,
    shape: tuple[int, ...],
    dtype: str,
    service: str,
    teachers: list[str],
    shared_memory: bool,
) -> None:
    """Take batches, or call for labels, on request, until the channel ends.

    The messages "run" and "call" have a number of batches. The answer has the wall time of an epoch
    of that length, or of as many calls by `THREADS` threads, and the CPU time of this process and
    of the reader's engine. The message "latency" has a number of calls with one row, one after the
    other; the answer has the time of each.

    Args:
        channel: its first message to the benchmark means that the engine runs.
        shape: shape of a batch.
        dtype: dtype of a batch.
        service: service of the teachers.
        teachers: their addresses.
        shared_memory: whether batches for teachers of this host stay in shared memory.
    """
    batch = np.ones(shape, dtype)
    source = Repeated(batch)
    with (
        DistilReader(
            source, service=service, teachers=teachers, shared_memory=shared_memory
        ) as reader,
        TeacherPool.of(reader) as pool,
    ):
        engine = psutil.Process().children()
        channel.send("ready")
        for message in channel:
            count = message["batches"]
            match message["kind"]:
                case "run":
                    source.count = count
                    channel.send("ran", **_timed(lambda: _take_all(reader), engine))
                case "call":
                    channel.send("ran", **_timed(lambda: _call(pool, batch, count), engine))  # noqa: B023
                case "latency":
                    channel.send("latency", seconds=_latencies(pool, batch[:1], count))


def _take_all(reader: DistilReader) -> None:
    for _ in reader:
        pass


def _call(pool: TeacherPool, batch: Array, count: int) -> None:
    numbers = iter(range(count))

    def work() -> None:
        for _ in numbers:
            pool.label(batch)

    with ThreadPoolExecutor(THREADS) as threads:
        for future in [threads.submit(work) for _ in range(THREADS)]:
            future.result()


def _latencies(pool: TeacherPool, batch: Array, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        began_s = time.perf_counter()
        pool.label(batch)
        seconds.append(time.perf_counter() - began_s)
    return seconds


def _timed(work: Callable[[], None], engine: list[psutil.Process]) -> Message:
    began_s, trainer_s, engine_s = time.perf_counter(), time.process_time(), _used_s(engine)
    work()
    return {
        "wall_s": time.perf_counter() - began_s,
        "trainer_s": time.process_time() - trainer_s,
        "engine_s": _used_s(engine) - engine_s,
    }


def _used_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)
