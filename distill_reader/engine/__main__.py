"""The engine process: `python -m edl.distill_reader.engine CHANNEL_FD RING_FD LABELS_FD`.

The trainer starts it and passes a socket and two arenas; the engine ends with the trainer.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from ...runtime.supervise import end_with_parent

#: Seconds that the engine has to release its teachers after the trainer's death.
ORPHAN_GRACE_S = 4.0

#: Threshold of the garbage collector's youngest generation, in objects.
GC_THRESHOLD = 20_000


def main(channel_fd: int, ring_fd: int, labels_fd: int) -> None:
    end_with_parent(ORPHAN_GRACE_S)
    # Imported after `end_with_parent`: loading takes a second, and the trainer may die meanwhile.
    from ...proto.arena import Arena, tune_allocator
    from ...proto.channel import Channel
    from ...proto.dataclass_json import from_plain
    from ...proto.shared_buffer import SharedBuffer
    from ...runtime.errors import MemoryRefused
    from ...runtime.logs import add_log_fields, configure_logging
    from ..config import ReaderConfig
    from .engine import Engine

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    configure_logging()
    tune_allocator()
    channel = Channel.attach(channel_fd)
    start = channel.receive()
    if start is not None:
        config = from_plain(ReaderConfig, start["config"])
        add_log_fields(job=config.job, student=config.student_id)
        engine = Engine(config, channel, SharedBuffer.attach(ring_fd), Arena.attach(labels_fd))
        signal.signal(signal.SIGTERM, lambda *_: engine.stop())  # releases the teachers
        # Objects created so far remain: exclude them from every collection.
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        try:
            engine.run()
        except MemoryRefused as error:
            # The state of this engine is incomplete, so the trainer has to start another one.
            channel.send("ending", error=type(error).__name__, text=str(error))
            os._exit(1)
    # A plain return could wait for threads of gRPC whose teachers do not answer.
    os._exit(0)


main(*(int(argument) for argument in sys.argv[1:]))
