"""The load of `edl bench elastic`: requests at a steady rate, with the time of each.

    python -m edl.benchmarks.sharing.load CHANNEL PORT PER_S COUNT

The time of a request counts from the time when it was due, so that a slow request also shows in the
requests that it delays.
"""

from __future__ import annotations

import http.client
import sys
import time
from typing import Final

from ...proto.channel import Channel
from ...runtime.supervise import end_with_parent

_TIMEOUT_S: Final = 30.0
_WARM: Final = 20


def ask(port: int, per_s: float, count: int) -> list[float]:
    """Send `count` requests to a port of loopback, one at a time; return the milliseconds of each.

    Some warm-up requests come first.

    Args:
        port: port of the service.
        per_s: requests per second.
        count: number of requests.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    took = []
    began_s = time.perf_counter()
    for number in range(_WARM + count):
        due_s = began_s + number / per_s
        time.sleep(max(0.0, due_s - time.perf_counter()))
        connection.request("GET", f"/{number}")
        connection.getresponse().read()
        took.append((time.perf_counter() - due_s) * 1000)
    connection.close()
    return took[_WARM:]


if __name__ == "__main__":
    end_with_parent()
    channel, port, per_s, count = sys.argv[1:]
    times_ms = ask(int(port), float(per_s), int(count))
    Channel.attach(int(channel)).send("asked", times_ms=times_ms)
