"""A training loop that ends as it is told: `trainer_program ENDING WHERE SOURCE [FOLDER]`.

WHERE is the address of a teacher, or the Redis URL of a coordinator; then ENDING names the job.

It ends in its third epoch; each epoch forks the workers of a `DataLoader` anew. Prints the pids of
its descendants once it has a batch of that epoch. With a FOLDER for files, it has more readers,
which are in other states when it ends.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from edl.distill_reader import Batched, DistilReader
from edl.runtime.standard_streams import write_whole_lines
from edl.runtime.supervise import end_with_parent
from edl.tests.distill_reader.readers import NOBODY, Batches, Samples, all_options, reader_of
from edl.tests.waiting import wait_until

#: The exit code of each ending.
EXIT_CODES = {
    **dict.fromkeys(("falls off", "closes", "breaks", "deletes"), 0),
    **dict.fromkeys(("raises", "source raises"), 1),
    "exits": 3,
    "interrupted": -signal.SIGINT,
    "killed": -signal.SIGKILL,
}
SIGNALS = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}
COUNT, BATCH = 64, 2
#: The sample at which the data set waits until the descendants are told, and may break.
BROKEN = 40
TOLD = multiprocessing.get_context("fork").Event()


class Broken(Exception):
    """Of the source."""


class BreakingSamples(Samples):
    """Breaks in the third epoch, if it is to."""

    def __init__(self, breaks: bool) -> None:
        super().__init__(COUNT)
        self.breaks = breaks
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        if (self.epoch, index) == (2, BROKEN):
            TOLD.wait()
            if self.breaks:
                raise Broken("of the source itself")
        return super().__getitem__(index)


def paddle_loader(breaks: bool) -> Any:
    import paddle

    rows = type("Rows", (BreakingSamples, paddle.io.Dataset), {})(breaks)
    return paddle.io.DataLoader(rows, batch_size=BATCH, num_workers=2)


def torch_loader(breaks: bool) -> Any:
    import torch

    return torch.utils.data.DataLoader(BreakingSamples(breaks), batch_size=BATCH, num_workers=2)


SOURCES: dict[str, Callable[[bool], Any]] = {
    "plain": lambda breaks: Batched(BreakingSamples(breaks), BATCH),
    "paddle": paddle_loader,
    "torch": torch_loader,
}


def mesh_of(where: str, job: str) -> dict[str, Any]:
    """The arguments of a reader that say who labels."""
    in_mesh = {"coordinator": where, "job": job.replace(" ", "-")}
    return in_mesh if "://" in where else {"teachers": [where]}


def readers_in_other_states(teacher: str, folder: Path) -> list[Any]:
    """Readers, and the iterators that keep them in their states."""
    with_all_options = reader_of(Batches(500), **all_options(teacher, folder))
    blocked = reader_of(Batches(500), teacher, upper_bytes=2000, lower_bytes=500)
    waiting = reader_of(Batches(500), NOBODY)
    readers = [with_all_options, blocked, waiting]
    iterators = [iter(reader) for reader in readers]
    for iterator in iterators[:2]:
        next(iterator)
    wait_until(lambda: blocked.stats.state == "blocked" and waiting.stats.yielded > 0)
    starting = reader_of(Batches(500), teacher)
    return [*readers, *iterators, starting]


def main(ending: str, where: str, source: str, folder: str = "") -> None:
    given = SOURCES[source](ending == "source raises")
    reader = DistilReader(given, service="s", profiles=None, **mesh_of(where, ending))
    for _ in range(2):
        for _ in reader:
            pass
    iterator = iter(reader)
    next(iterator)
    others = readers_in_other_states(where, Path(folder)) if folder else []
    told = [child.pid for child in psutil.Process().children(recursive=True)]
    TOLD.set()  # before a signal may come
    print("descendants", *told, flush=True)
    match ending:
        case "raises":
            raise RuntimeError("of the training loop itself")
        case "source raises":
            for _ in iterator:
                pass
        case "exits":
            sys.exit(3)
        case "closes":
            reader.close()
        case "breaks":
            for _ in iterator:
                break
        case "deletes":
            del iterator, reader, others
        case "falls off":
            pass
        case _:
            threading.Event().wait(30)  # until the signal comes
    print("ends", flush=True)


if __name__ == "__main__":
    end_with_parent()
    write_whole_lines()
    main(*sys.argv[1:])
