"""The process of one side of a lane: the client if PORT is given, else the server.

    python -m edl.benchmarks.transports.lane_process CHANNEL LANE BYTES CORE[,CORE] FOLDER [PORT]

FOLDER has certificate and key for TLS; empty: no TLS. The first message of the server has its port;
it answers each message with its CPU time. The client gets a number of requests and answers with
their wall time and its CPU time.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...proto.channel import Channel, Message
from ...runtime.supervise import end_with_parent
from ..children import pin_to
from . import IN_FLIGHT, Ask, batch_of, lane
from .certificate import tls_files


def main(
    channel_fd: int, name: str, size: int, cores: str, folder: str, port: int | None = None
) -> None:
    """Serve, or send requests, until the channel ends."""
    end_with_parent(at_once=True)
    pin_to(cores)
    channel, batch = Channel.attach(channel_fd), batch_of(size)
    tls = tls_files(Path(folder)) if folder else None
    if port is None:
        channel.send("ready", port=lane(name).serve(batch, tls))
        for _ in channel:
            channel.send("used", cpu_s=time.process_time())
        return
    ask = lane(name).connect(port, batch, tls)
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        channel.send("ready")
        for message in channel:
            channel.send("ran", **_run(threads, ask, message["requests"] // IN_FLIGHT))


def _run(threads: ThreadPoolExecutor, ask: Ask, each: int) -> Message:
    """Send `each` requests in each thread; return the times and the number of all requests."""

    def repeat(number: int) -> None:
        for _ in range(each):
            ask(number)

    began_s, used_s = time.perf_counter(), time.process_time()
    list(threads.map(repeat, range(IN_FLIGHT)))
    return {
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - used_s,
        "requests": each * IN_FLIGHT,
    }


if __name__ == "__main__":
    fd, chosen, length, allowed, certificates, *ports = sys.argv[1:]
    main(int(fd), chosen, int(length), allowed, certificates, *map(int, ports))
