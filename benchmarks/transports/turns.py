"""The two sides of a lane as processes on two cores, and what they took, turn by turn."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ..children import Child, two_cores, two_cores_shared


@dataclass
class RequestTimes:
    """What one lane took, turn by turn: seconds per request. The first turn does not count."""

    wall_s: list[float] = field(default_factory=list)
    client_cpu_s: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)


class RunningLane:
    """A server and a client, on two cores.

    Args:
        ending: ends both.
        name: a module of this package.
        size: of a request, in bytes.
        shared: both may run on either core; else the server has the first, the client the second.
        tls: folder of the certificate; None: no TLS.

    Raises:
        ProcessFailed: a side did not start, or ended by itself.

    Attributes:
        turns: those that were taken.
    """

    def __init__(
        self,
        ending: ExitStack,
        name: str,
        size: int,
        *,
        shared: bool = False,
        tls: Path | None = None,
    ) -> None:
        near, far = (two_cores_shared(),) * 2 if shared else two_cores()
        module = "edl.benchmarks.transports.side"
        what, folder = f"of lane {name}", tls or ""
        server = (name, size, near, folder)
        self._server = Child(ending, f"the server {what}", module, *server)
        port = self._server.hear()["port"]
        client = (name, size, far, folder, port)
        self._client = Child(ending, f"the client {what}", module, *client)
        self._client.hear()
        self.turns = RequestTimes()

    def turn(self, requests: int) -> float:
        """Seconds that a request takes on average."""
        before_s = self._server.ask("use")["cpu_s"]
        ran = self._client.ask("run", requests=requests)
        used_s = self._server.ask("use")["cpu_s"] - before_s
        count = ran["requests"]
        self.turns.wall_s.append(ran["wall_s"] / count)
        self.turns.client_cpu_s.append(ran["cpu_s"] / count)
        self.turns.server_cpu_s.append(used_s / count)
        return float(ran["wall_s"] / count)
