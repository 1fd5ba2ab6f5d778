"""The process of a teacher with a model that takes no time.

    python -m edl.benchmarks.reading.teacher CHANNEL DTYPE CORE[,CORE]

Its first message has the port. It answers each message with the CPU time that it has used.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from ...proto.channel import Channel
from ...runtime.supervise import end_with_parent
from ..children import pin_to
from ..transports.codec import serve
from . import SHAPE


def main(channel_fd: int, dtype: str, cores: str) -> None:
    """Serve until the channel ends."""
    end_with_parent(at_once=True)
    pin_to(cores)
    channel = Channel.attach(channel_fd)
    channel.send("ready", port=serve(np.zeros(SHAPE, dtype)))
    for _ in channel:
        channel.send("used", cpu_s=time.process_time())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
