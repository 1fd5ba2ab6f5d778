"""The engine process: `python -m edl.distill_reader.engine CHANNEL_FD RING_FD LABELS_FD`.

Started by the trainer's side, with which it shares a socket and two arenas; it ends with it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from ...supervise import end_with_parent

#: When its trainer has died, the engine gives its teachers back within this time.
ORPHAN_GRACE_S = 4.0

#: Objects made, and not gone again by themselves, between two looks for garbage.
GARBAGE = 20_000


def main(channel_fd: int, ring_fd: int, labels_fd: int) -> None:
    end_with_parent(ORPHAN_GRACE_S)
    # Behind that: these take a second to load, in which the trainer may die.
    from ...logs import configure_logging, log_as
    from ...proto.arena import Arena, tune_allocator
    from ...proto.channel import Channel
    from ...proto.shared_buffer import SharedBuffer
    from ..config import ReaderConfig
    from .engine import Engine

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    configure_logging()
    tune_allocator()
    channel = Channel.attach(channel_fd)
    first = channel.receive()
    if first is not None:
        config = ReaderConfig.from_json(first["config"])
        log_as(job=config.job, student=config.student_id)
        engine = Engine(config, channel, SharedBuffer.attach(ring_fd), Arena.attach(labels_fd))
        signal.signal(signal.SIGTERM, lambda *_: engine.stop())  # so that teachers are given back
        # What is here stays: not to be looked at again with every few batches' worth of objects.
        gc.freeze()
        gc.set_threshold(GARBAGE)
        engine.run()
    # Not a plain return: gRPC's threads may still wait for teachers that do not answer.
    os._exit(0)


main(*(int(argument) for argument in sys.argv[1:]))
