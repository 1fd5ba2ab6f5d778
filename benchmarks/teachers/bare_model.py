"""The process of a bare model, with a teacher's backend but without a server.

    python -m edl.benchmarks.teachers.bare_model CHANNEL FOLDER LAYERS ROWS CORE

It exports a ResNet to FOLDER; its first message has the path. The message "run" has a number of
batches; the answer has the seconds that they took.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ...proto.channel import Channel
from ...runtime.supervise import end_with_parent
from ...teacher.backends import run_in_micro_batches
from ...teacher.backends.selection import open_backend
from ...teacher.backends.tensor_specs import example_batch
from ..children import ANY_CORE
from .bare_loop import time_runs
from .models import export_resnet

#: Warm-up runs, which choose kernels and fill caches.
_WARM_UP = 3


def main(channel_fd: int, folder: str, layers: int, rows: int, core: int) -> None:
    """Export the model, load it, and run it on request, until the channel ends."""
    end_with_parent(at_once=True)
    if core != ANY_CORE:
        os.sched_setaffinity(0, {core})
    channel = Channel.attach(channel_fd)
    model = export_resnet(Path(folder), layers)
    backend = open_backend(model, threads=1)
    batch = example_batch(backend.spec.inputs, rows)
    for _ in range(_WARM_UP):
        run_in_micro_batches(backend.run, batch, rows)
    channel.send("ready", model=model)
    time_runs(channel, lambda: run_in_micro_batches(backend.run, batch, rows))


if __name__ == "__main__":
    fd, where, *numbers = sys.argv[1:]
    main(int(fd), where, *map(int, numbers))
