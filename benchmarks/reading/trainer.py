"""The process of a trainer that takes batches from its reader and ignores them.

    python -m edl.benchmarks.reading.trainer CHANNEL DTYPE CORE[,CORE] SHARED_MEMORY ADDRESS...

SHARED_MEMORY is 0 or 1. The message "run" has a number of batches; the answer has the wall time of
an epoch of that length, and the CPU time of this process and of the reader's engine.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import psutil

from ...distill_reader import DistilReader
from ...proto.channel import Channel, Message
from ...runtime.supervise import end_with_parent
from ..children import pin_to
from ..paced import Repeated
from ..transports.codec import MODEL
from . import SHAPE


def main(
    channel_fd: int, dtype: str, cores: str, shared_memory: bool, addresses: list[str]
) -> None:
    """Take batches on request, until the channel ends."""
    end_with_parent(at_once=True)
    pin_to(cores)
    channel = Channel.attach(channel_fd)
    source = Repeated(np.ones(SHAPE, dtype))
    with DistilReader(
        source, service=MODEL, teachers=addresses, shared_memory=shared_memory
    ) as reader:
        engine = psutil.Process().children()
        channel.send("ready")
        for message in channel:
            source.count = message["batches"]
            channel.send("ran", **_epoch(reader, engine))


def _epoch(reader: DistilReader, engine: list[psutil.Process]) -> Message:
    began_s, trainer_s, engine_s = time.perf_counter(), time.process_time(), _used_s(engine)
    for _ in reader:
        pass
    return {
        "wall_s": time.perf_counter() - began_s,
        "trainer_s": time.process_time() - trainer_s,
        "engine_s": _used_s(engine) - engine_s,
    }


def _used_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    fd, kind, on, in_place, *teachers = sys.argv[1:]
    main(int(fd), kind, on, bool(int(in_place)), teachers)
