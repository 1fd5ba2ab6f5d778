"""Both sides of a lane as processes on two cores, and their times in each turn."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ..children import Child, two_cores, two_cores_text


@dataclass
class RequestTimes:
    """Seconds per request of one lane, for each turn. The first turn is the warm-up."""

    wall_s: list[float] = field(default_factory=list)
    client_cpu_s: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)


class RunningLane:
    """A server and a client of one lane, on two cores.

    Args:
        stack: ends both processes when it is closed.
        name: a module of this package.
        size: bytes of a request.
        shared: both may run on either core; else the server has the first, the client the second.
        tls: folder of the certificate; None: no TLS.

    Raises:
        ProcessFailed: a side did not start, or ended unexpectedly.

    Attributes:
        turns: times of all turns so far.
    """

    def __init__(
        self,
        stack: ExitStack,
        name: str,
        size: int,
        *,
        shared: bool = False,
        tls: Path | None = None,
    ) -> None:
        near, far = (two_cores_text(),) * 2 if shared else two_cores()
        module = "edl.benchmarks.transports.lane_process"
        what, folder = f"of lane {name}", tls or ""
        server = (name, size, near, folder)
        self._server = Child(stack, f"the server {what}", module, *server)
        port = self._server.receive()["port"]
        client = (name, size, far, folder, port)
        self._client = Child(stack, f"the client {what}", module, *client)
        self._client.receive()
        self.turns = RequestTimes()

    def turn(self, requests: int) -> float:
        """Send `requests`, append the times to `turns`, and return the wall seconds per request.

        The client rounds the number down to a multiple of `IN_FLIGHT`.
        """
        before_s = self._server.ask("use")["cpu_s"]
        ran = self._client.ask("run", requests=requests)
        used_s = self._server.ask("use")["cpu_s"] - before_s
        count = ran["requests"]
        self.turns.wall_s.append(ran["wall_s"] / count)
        self.turns.client_cpu_s.append(ran["cpu_s"] / count)
        self.turns.server_cpu_s.append(used_s / count)
        return float(ran["wall_s"] / count)
