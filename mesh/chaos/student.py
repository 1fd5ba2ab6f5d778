"""Student of a chaos run: takes batches from its reader and records each sample that arrives.

Meanwhile, threads call for labels through a pool that shares the reader's engine. Run as
`python -m edl.mesh.chaos.student JSON`, where JSON is a `StudentConfig`. SIGTERM stops it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Self, TextIO

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
from .synthetic_samples import INPUT, OUTPUT, digest_of_call, digests_of, samples_of

log = logging.getLogger(__name__)

#: Batches have 1 to `MAX_ROWS` rows, so that two consecutive ones always differ.
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
        service: service that labels its samples.
        coordinator: Redis URL.
        began: `time.monotonic()` of the beginning of the run.
        folder: folder for its files.
        teachers: least number of teachers that it asks for.
        step_s: seconds of its training step per sample.
        upper_bytes: ut of its reader.
        shared_memory: let teachers read its batches from shared memory.
        compared: share of its requests that two teachers label.
    """

    name: str
    service: str
    coordinator: str
    began: float
    folder: str
    teachers: int = 2
    step_s: float = 0.005
    upper_bytes: int = 2 << 20
    shared_memory: bool = True
    compared: float = 0.1

    @property
    def samples_file(self) -> Path:
        return Path(self.folder) / f"{self.name}.samples"

    @property
    def calls_file(self) -> Path:
        return Path(self.folder) / f"{self.name}.calls"

    @property
    def stats_file(self) -> Path:
        return Path(self.folder) / f"{self.name}.stats"

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


class Callers:
    """Threads that call for labels and record each answer, until `stop`.

    Args:
        config: configuration of the student.
        pool: labels the calls.
        records: gets a `CALL_RECORD` for every call.
    """

    def __init__(self, config: StudentConfig, pool: TeacherPool, records: BinaryIO) -> None:
        self._config = config
        self._pool = pool
        self._records = records
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(number,), name=f"edl-chaos-caller-{number}")
            for number in range(CALLERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the calls in progress."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _call(self, caller: int) -> None:
        first, rows = caller << 28, 0
        while not self._stopped.wait(CALL_PAUSE_S):
            first, rows = first + rows, 1 + (rows * 5 + 1) % MAX_ROWS
            x = samples_of(np.arange(first, first + rows, dtype=np.uint64))
            record = np.zeros(1, CALL_RECORD)
            record["id"], record["rows"], began = first, rows, time.monotonic()
            try:
                labels = self._pool.label({INPUT: x}, CALL_TIMEOUT_S)
                record["digest"] = digest_of_call(x, labels[OUTPUT])
            except EdlError as error:
                log.warning("a call of %d rows failed: %s", rows, error)
            ended = time.monotonic()
            record["at_s"], record["took_s"] = ended - self._config.began, ended - began
            self._records.write(record.tobytes())


class StatsWriter:
    """Appends lines of statistics to a file."""

    def __init__(self, config: StudentConfig, reader: DistilReader, file: TextIO) -> None:
        self._config = config
        self._reader = reader
        self._file = file
        self._count = 0

    def write(self) -> None:
        stats, engine = self._reader.stats, self._reader.engine_pid
        trainer_bytes = engine_bytes = 0
        if self._count % MEMORY_INTERVAL == 0:
            with contextlib.suppress(OSError):  # the engine has just been killed
                engine_bytes, trainer_bytes = pss_bytes(engine), pss_bytes("self")
        self._count += 1
        ejected = dict(zip(stats.ejected, stats.ejected_for, strict=True))
        line = StudentStats(
            time.monotonic() - self._config.began,
            tuple(name for name in stats.teachers if ejected.get(name) != "lied"),
            engine,
            stats.volume_bytes,
            stats.resends,
            stats.waiting_for,
            trainer_bytes,
            engine_bytes,
            tuple(ejected.items()),
            tuple(name for name, batches in stats.served if batches),
        )
        self._file.write(line.to_line())


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
        records = stack.enter_context(config.samples_file.open("ab", buffering=0))
        lines = stack.enter_context(config.stats_file.open("a", buffering=1))
        reader = stack.enter_context(
            DistilReader(
                SampleSource(),
                service=config.service,
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
        writer = StatsWriter(config, reader, lines)
        stats_loop = Periodic("edl-chaos-stats", STATS_INTERVAL_S, writer.write)
        stats_loop.start()
        stack.callback(stats_loop.stop)
        calls = stack.enter_context(config.calls_file.open("ab", buffering=0))
        callers = Callers(config, TeacherPool.of(reader), calls)
        callers.start()
        stack.callback(callers.stop)
        train(config, reader, records, stop)
        log.info("stopped: %s", reader.stats.line())


if __name__ == "__main__":
    try:
        main()
    except EdlError as error:
        sys.exit(f"{type(error).__name__}: {error}")
