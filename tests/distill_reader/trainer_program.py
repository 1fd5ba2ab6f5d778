"""A training loop that ends in the way it is told: `trainer_program ENDING WHERE SOURCE`.

Its teacher is at WHERE; or a coordinator is there, by a Redis URL, and ENDING is the job's name.

It ends in its third epoch, in each of which the workers of a `DataLoader` are forked anew. Prints
the pids of its descendants once it has a batch of that epoch, so that a test can see them go.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil

from edl.distill_reader import DistilReader
from edl.standard_streams import write_whole_lines
from edl.supervise import end_with_parent
from edl.tests.distill_reader.readers import Batches

#: The exit code of each ending.
EXIT_CODES = {
    "falls off": 0,
    "closes": 0,
    "breaks": 0,
    "deletes": 0,
    "raises": 1,
    "source raises": 1,
    "exits": 3,
    "interrupted": -signal.SIGINT,
    "killed": -signal.SIGKILL,
}
SIGNALS = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL}
COUNT, BATCH = 64, 2
#: The sample at which the data set breaks; behind the first batches, whatever is read ahead.
BROKEN = 40


class Broken(Exception):
    """Of the source."""


class Samples:
    """A map-style data set that breaks in its third epoch, if it is to."""

    def __init__(self, breaks: bool) -> None:
        self.breaks = breaks
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.breaks and (self.epoch, index) == (2, BROKEN):
            raise Broken("of the source itself")
        return np.full(3, index, np.float32), np.int64(index)


class Plain(Batches):
    """Any iterable that breaks in its third epoch, if it is to."""

    def __init__(self, breaks: bool) -> None:
        super().__init__(COUNT)
        self.samples = Samples(breaks)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(super().__iter__()):
            self.samples[number]
            yield batch

    def set_epoch(self, epoch: int) -> None:
        self.samples.set_epoch(epoch)


def paddle_loader(breaks: bool) -> Any:
    import paddle

    rows = type("Rows", (Samples, paddle.io.Dataset), {})(breaks)
    return paddle.io.DataLoader(rows, batch_size=BATCH, num_workers=2)


def torch_loader(breaks: bool) -> Any:
    import torch

    return torch.utils.data.DataLoader(Samples(breaks), batch_size=BATCH, num_workers=2)


SOURCES: dict[str, Callable[[bool], Any]] = {
    "plain": Plain,
    "paddle": paddle_loader,
    "torch": torch_loader,
}


def mesh_of(where: str, job: str) -> dict[str, Any]:
    """The arguments of a reader that say who labels."""
    in_mesh = {"coordinator": where, "job": job.replace(" ", "-")}
    return in_mesh if "://" in where else {"teachers": [where]}


def main(ending: str, where: str, source: str) -> None:
    given = SOURCES[source](ending == "source raises")
    reader = DistilReader(given, service="s", profiles=None, **mesh_of(where, ending))
    for _ in range(2):
        for _ in reader:
            pass
    iterator = iter(reader)
    next(iterator)
    told = [child.pid for child in psutil.Process().children(recursive=True)]
    print("descendants", *told, flush=True)
    match ending:
        case "raises":
            raise RuntimeError("of the training loop itself")
        case "source raises":
            for _ in iterator:
                pass
        case "exits":
            sys.exit(3)
        case "interrupted" | "killed" | "killed with all":
            threading.Event().wait(30)  # until the signal comes
        case "closes":
            reader.close()
        case "breaks":
            for _ in iterator:
                break
        case "deletes":
            del iterator, reader
    print("ends", flush=True)


if __name__ == "__main__":
    end_with_parent()
    write_whole_lines()
    main(*sys.argv[1:])
