"""The engine process: `python -m edl.distill_reader.engine CHANNEL_FD RING_FD LABELS_FD`.

Started by the trainer's side, with which it shares a socket and two arenas; it ends with it.
"""

from __future__ import annotations

import os
import signal
import sys

from ...lifecycle import configure_logging
from ...proto.allocator import tune_allocator
from ...proto.arena import Arena
from ...proto.channel import Channel
from ...proto.lent_arena import LentArena
from ...supervise import end_with_parent
from ..config import ReaderConfig
from .engine import Engine


def main(channel_fd: int, ring_fd: int, labels_fd: int) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    configure_logging()
    tune_allocator()
    channel = Channel.attach(channel_fd)
    first = channel.receive()
    if first is not None:
        config = ReaderConfig.from_json(first["config"])
        engine = Engine(config, channel, LentArena.attach(ring_fd), Arena.attach(labels_fd))
        signal.signal(signal.SIGTERM, lambda *_: engine.stop())  # so that teachers are given back
        engine.run()
    # Not a plain return: gRPC's threads may still wait for teachers that do not answer.
    os._exit(0)


main(*(int(argument) for argument in sys.argv[1:]))
