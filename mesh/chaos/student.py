"""A student of a chaos run: takes what its reader gives, and writes down each sample that came.

`python -m edl.mesh.chaos.student JSON`, where JSON is a `Part`. SIGTERM ends it in order.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Self, TextIO

import numpy as np

from ...distill_reader import CanaryPolicy, DistilReader
from ...errors import EdlError
from ...lifecycle import Periodic, Stop, stop_on_signals
from ...logs import configure_logging
from ...proto.arena import Array
from ...supervise import end_with_parent
from .samples import INPUT, OUTPUT, digests_of, samples_of
from .trace import FIGURES_EVERY_S, RECORD, Figures

log = logging.getLogger(__name__)

#: Rows of a batch go from 1 to this, so that no two batches in a row are alike.
MOST_ROWS = 12
EPOCH_BATCHES = 200
MEMORY_EVERY = 5  # figures


@dataclass(frozen=True, slots=True)
class Part:
    """What one student does.

    Attributes:
        name: its job's name.
        service: name of the service.
        coordinator: Redis URL.
        began: `time.monotonic()` of the run's beginning.
        folder: where its files go.
        teachers: how many it wants at least.
        step_s: seconds that its training step takes for each sample.
        upper_bytes: ut of its reader.
        shared_memory: whether teachers may read batches where they lie.
        compared: part of the requests that two teachers label.
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
    def samples(self) -> Path:
        """The file with its records."""
        return Path(self.folder) / f"{self.name}.samples"

    @property
    def figures(self) -> Path:
        """The file with its figures."""
        return Path(self.folder) / f"{self.name}.figures"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


class Source:
    """Batches of one to `MOST_ROWS` samples, whose ids go on from epoch to epoch."""

    def __init__(self) -> None:
        self._next = 0

    def __len__(self) -> int:
        return EPOCH_BATCHES

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for number in range(EPOCH_BATCHES):
            rows = 1 + number * 7 % MOST_ROWS
            ids = np.arange(self._next, self._next + rows, dtype=np.uint64)
            self._next += rows
            yield {"id": ids, INPUT: samples_of(ids)}


def train(part: Part, reader: DistilReader, records: BinaryIO, stop: Stop) -> None:
    """Take batches, epoch after epoch, at the pace of the step, until `stop`."""
    while not stop.requested:
        for batch in reader:
            record(batch, time.monotonic() - part.began, records)
            if stop.wait(part.step_s * len(batch["id"])):
                return


def record(batch: dict[str, Array], at_s: float, records: BinaryIO) -> None:
    """Write down every sample of a batch."""
    rows = np.empty(len(batch["id"]), RECORD)
    rows["at_s"], rows["id"] = at_s, batch["id"]
    rows["digest"] = digests_of(batch[INPUT], batch[OUTPUT])
    records.write(rows.tobytes())


class Observer:
    """Writes a line of figures each time that it is told to."""

    def __init__(self, part: Part, reader: DistilReader, lines: TextIO) -> None:
        self._part = part
        self._reader = reader
        self._lines = lines
        self._count = 0

    def look(self) -> None:
        stats, engine = self._reader.stats, self._reader.engine_pid
        trainer_bytes = engine_bytes = 0
        if self._count % MEMORY_EVERY == 0:
            with contextlib.suppress(OSError):  # the engine has just been killed
                engine_bytes, trainer_bytes = pss_bytes(engine), pss_bytes("self")
        self._count += 1
        ejected = dict(zip(stats.ejected, stats.ejected_for, strict=True))
        figures = Figures(
            time.monotonic() - self._part.began,
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
        self._lines.write(figures.to_line())


def pss_bytes(process: int | str) -> int:
    """Proportional set size: memory of a process, what it shares divided by the sharers."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def main() -> None:
    """Run one student."""
    end_with_parent()
    configure_logging()
    part = Part.from_json(sys.argv[1])
    with stop_on_signals() as stop, ExitStack() as ending:
        # Neither is buffered: what came is in the file, whatever comes next.
        records = ending.enter_context(part.samples.open("ab", buffering=0))
        lines = ending.enter_context(part.figures.open("a", buffering=1))
        reader = ending.enter_context(
            DistilReader(
                Source(),
                service=part.service,
                coordinator=part.coordinator,
                feeds=[INPUT],
                fetches=[OUTPUT],
                job=part.name,
                profiles=None,
                teachers_min=part.teachers,
                upper_bytes=part.upper_bytes,
                shared_memory=part.shared_memory,
                canaries=CanaryPolicy(share=part.compared),
            )
        )
        observer = Periodic(
            "edl-chaos-figures", FIGURES_EVERY_S, Observer(part, reader, lines).look
        )
        observer.start()
        ending.callback(observer.stop)
        train(part, reader, records, stop)
        log.info("ends: %s", reader.stats.line())


if __name__ == "__main__":
    try:
        main()
    except EdlError as error:
        sys.exit(f"{type(error).__name__}: {error}")
