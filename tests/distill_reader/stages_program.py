"""A trainer that has a reader in each stage of its life, and then ends in the way it is told.

`stages_program ENDING TEACHER FOLDER`: prints the process ids of all engines by stage once they are
where they shall be, and, where the ending is a signal, waits for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl.distill_reader import Callback, DistilReader, LabelStore
from edl.standard_streams import write_whole_lines
from edl.supervise import end_with_parent
from edl.tests.distill_reader.readers import Batches
from edl.tests.waiting import wait_until

NOBODY = "127.0.0.1:9"
WAIT_S = 60.0


def begun(reader: DistilReader, taken: int = 3) -> Any:
    """An epoch of which some batches were taken."""
    iterator = iter(reader)
    for _ in range(taken):
        next(iterator)
    return iterator


class Stages:
    """Each method makes a reader and brings it into a stage; what it returns keeps it there."""

    def __init__(self, teacher: str, folder: Path) -> None:
        self._named: dict[str, Any] = {"service": "s", "teachers": [teacher]}
        self._folder = folder
        self.readers: dict[str, DistilReader] = {}

    def _reader(self, stage: str, **options: Any) -> DistilReader:
        reader = self.readers[stage] = DistilReader(Batches(500), **{**self._named, **options})
        return reader

    def before_the_first_epoch(self) -> Any:
        reader = self._reader("before the first epoch")
        wait_until(lambda: bool(reader.stats.teachers), WAIT_S)

    def between_epochs(self) -> Any:
        reader = self._reader("between epochs")
        for _ in reader:
            pass

    def in_the_middle(self) -> Any:
        return begun(self._reader("in the middle"))

    def with_a_full_buffer(self) -> Any:
        reader = self._reader("with a full buffer", upper_bytes=2000, lower_bytes=500)
        iterator = begun(reader)
        wait_until(lambda: reader.stats.state == "blocked", WAIT_S)
        return iterator

    def without_a_teacher(self) -> Any:
        reader = self._reader("without a teacher", teachers=[NOBODY])
        iterator = iter(reader)
        wait_until(lambda: reader.stats.yielded > 0, WAIT_S)
        return iterator

    def with_all_options(self) -> Any:
        """Two services, each with a store, a timeline, callbacks."""
        reader = self._reader(
            "with all options",
            service={"a": 0.7, "b": 0.3},
            teachers=dict.fromkeys("ab", self._named["teachers"]),
            store=LabelStore(self._folder / "labels.edl", 1 << 20),
            trace=self._folder / "run.json",
            callbacks=[Callback()],
        )
        return begun(reader)

    def starting(self) -> Any:
        """Last of all: its engine is not there yet."""
        self._reader("starting")


def main(ending: str, teacher: str, folder: str) -> None:
    stages = Stages(teacher, Path(folder))
    names: list[Callable[[], Any]] = [
        stages.before_the_first_epoch,
        stages.between_epochs,
        stages.in_the_middle,
        stages.with_a_full_buffer,
        stages.without_a_teacher,
        stages.with_all_options,
        stages.starting,
    ]
    kept = [make() for make in names]
    for stage, reader in stages.readers.items():
        print(f"{reader.engine_pid} {stage}", flush=True)
    print("ready", flush=True)
    match ending:
        case "raises":
            raise RuntimeError("of the training loop itself")
        case "exits":
            sys.exit(3)
        case "exits at once":
            os._exit(4)
        case "falls off":
            pass
        case _:
            next(kept[4])  # the reader without a teacher: until the signal comes


if __name__ == "__main__":
    end_with_parent()
    write_whole_lines()
    main(*sys.argv[1:])
