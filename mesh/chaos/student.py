"""Student of a chaos run: takes batches from its reader and records each sample that arrives.

Meanwhile, threads call for labels through a pool that shares the reader's engine. Run as
`python -m edl.mesh.chaos.student JSON`, where JSON is a `StudentConfig`. SIGTERM stops it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Self

import numpy as np

from ...distill_reader import CanaryPolicy, DistilReader, TeacherPool
from ...proto.arena import Array
from ...runtime.errors import EdlError
from ...runtime.lifecycle import Periodic, Stop, stop_on_signals
from ...runtime.logs import configure_logging
from ...runtime.supervise import end_with_parent
from .run_trace import (
    CALL_RECORD,
    CALL_TIMEOUT_S,
    SAMPLE_RECORD,
    STATS_INTERVAL_S,
    StudentStats,
)
from .synthetic_samples import INPUT, OUTPUT, SERVICE, digest_of_call, digests_of, samples_of

log = logging.getLogger(__name__)

#: Batches have 1 to `MAX_ROWS` rows; two consecutive batches never have equally many rows.
MAX_ROWS = 12
EPOCH_BATCHES = 200
#: Threads that call for labels, and the pause of each between two calls.
CALLERS = 4
CALL_PAUSE_S = 0.15
#: Lines of statistics per measurement of memory.
MEMORY_INTERVAL = 5


@dataclass(frozen=True, slots=True)
class StudentConfig:
    """Configuration of one student.

    Attributes:
        name: name of its job.
        coordinator: Redis URL.
        began: `time.monotonic()` at time 0 of its records, before the mesh starts.
        folder: folder for its files.
        teachers: least number of teachers that it asks for.
        step_s: seconds of its training step per sample.
        upper_bytes: upper threshold of its reader's buffer.
        shared_memory: let teachers read its batches from shared memory.
        compared: share of its requests that two teachers label.
    """

    name: str
    coordinator: str
    began: float
    folder: str
    teachers: int = 2
    step_s: float = 0.005
    upper_bytes: int = 2 << 20
    shared_memory: bool = True
    compared: float = 0.1

    def file(self, content: Literal["samples", "calls", "stats"]) -> Path:
        """Return the path of one of its files."""
        return Path(self.folder) / f"{self.name}.{content}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


class SampleSource:
    """Source of batches of 1 to `MAX_ROWS` samples; ids continue from epoch to epoch."""

    def __init__(self) -> None:
        self._next_id = 0

    def __len__(self) -> int:
        return EPOCH_BATCHES

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for number in range(EPOCH_BATCHES):
            rows = 1 + number * 7 % MAX_ROWS
            ids = np.arange(self._next_id, self._next_id + rows, dtype=np.uint64)
            self._next_id += rows
            yield {"id": ids, INPUT: samples_of(ids)}


def train(config: StudentConfig, reader: DistilReader, records: BinaryIO, stop: Stop) -> None:
    """Take and record batches at the pace of the training step, epoch after epoch, until `stop`."""
    while not stop.requested:
        for batch in reader:
            write_records(batch, time.monotonic() - config.began, records)
            if stop.wait(config.step_s * len(batch["id"])):
                return


def write_records(batch: dict[str, Array], at_s: float, file: BinaryIO) -> None:
    """Append a `SAMPLE_RECORD` for every sample of a batch."""
    rows = np.empty(len(batch["id"]), SAMPLE_RECORD)
    rows["at_s"], rows["id"] = at_s, batch["id"]
    rows["digest"] = digests_of(batch[INPUT], batch[OUTPUT])
    file.write(rows.tobytes())


def call_for_labels(
    config: StudentConfig, pool: TeacherPool, records: BinaryIO, caller: int, stop: Stop
) -> None:
    """Call for labels, and append a `CALL_RECORD` for each answer or failure, until `stop`.

    Args:
        config: configuration of the student.
        pool: labels the calls.
        records: file of the records.
        caller: number of the caller; each caller has its own ids.
        stop: ends the loop after the current call.
    """
    first, rows = caller << 28, 0
    while not stop.wait(CALL_PAUSE_S):
        first, rows = first + rows, 1 + (rows * 5 + 1) % MAX_ROWS
        x = samples_of(np.arange(first, first + rows, dtype=np.uint64))
        record = np.zeros(1, CALL_RECORD)
        record["id"], record["rows"], began = first, rows, time.monotonic()
        try:
            labels = pool.label({INPUT: x}, CALL_TIMEOUT_S)
            record["digest"] = digest_of_call(x, labels[OUTPUT])
        except EdlError as error:
            log.warning("a call of %d rows failed: %s", rows, error)
        ended = time.monotonic()
        record["at_s"], record["took_s"] = ended - config.began, ended - began
        records.write(record.tobytes())


def stats_of(config: StudentConfig, reader: DistilReader, *, with_memory: bool) -> StudentStats:
    """Return the statistics of this moment."""
    stats, engine = reader.stats, reader.engine_pid
    trainer_bytes = engine_bytes = 0
    if with_memory:
        with contextlib.suppress(OSError):  # the engine has just been killed
            engine_bytes, trainer_bytes = pss_bytes(engine), pss_bytes("self")
    ejected = dict(zip(stats.ejected, stats.ejected_for, strict=True))
    return StudentStats(
        time.monotonic() - config.began,
        tuple(name for name in stats.teachers if ejected.get(name) != "lied"),
        engine,
        stats.volume_bytes,
        stats.waiting_for,
        trainer_bytes,
        engine_bytes,
        tuple(ejected.items()),
        tuple(name for name, batches in stats.served if batches),
    )


def pss_bytes(process: int | str) -> int:
    """Return the proportional set size: memory in which shared pages are divided by their users."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def main() -> None:
    end_with_parent()
    configure_logging()
    config = StudentConfig.from_json(sys.argv[1])
    with stop_on_signals() as stop, ExitStack() as stack:
        # Samples are unbuffered and statistics line-buffered, so both survive SIGKILL.
        records = stack.enter_context(config.file("samples").open("ab", buffering=0))
        lines = stack.enter_context(config.file("stats").open("a", buffering=1))
        reader = stack.enter_context(
            DistilReader(
                SampleSource(),
                service=SERVICE,
                coordinator=config.coordinator,
                feeds=[INPUT],
                fetches=[OUTPUT],
                job=config.name,
                profiles=None,
                teachers_min=config.teachers,
                upper_bytes=config.upper_bytes,
                shared_memory=config.shared_memory,
                canaries=CanaryPolicy(share=config.compared),
            )
        )
        count = itertools.count()

        def write_stats() -> None:
            with_memory = next(count) % MEMORY_INTERVAL == 0
            lines.write(stats_of(config, reader, with_memory=with_memory).to_line())

        stats_loop = Periodic("edl-chaos-stats", STATS_INTERVAL_S, write_stats)
        stats_loop.start()
        stack.callback(stats_loop.stop)
        calls = stack.enter_context(config.file("calls").open("ab", buffering=0))
        pool = TeacherPool.of(reader)
        for caller in range(CALLERS):
            arguments = (config, pool, calls, caller, stop)
            thread = threading.Thread(target=call_for_labels, args=arguments)
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.request)  # also after an error, before the threads are joined
        train(config, reader, records, stop)
        log.info("stopped: %s", reader.stats.line())


if __name__ == "__main__":
    try:
        main()
    except EdlError as error:
        sys.exit(f"{type(error).__name__}: {error}")
