"""How a teacher leaves: it says so, serves until nobody asks any more, and goes."""

from __future__ import annotations

import logging
import time

from ..coordinator.heartbeat import Heartbeat
from .front.server import Server
from .recorder import Recorder
from .registration import Identity

log = logging.getLogger(__name__)

#: Nobody has asked for so long: the word has got round.
QUIET_S = 0.5


def drain(
    identity: Identity,
    recorder: Recorder,
    server: Server,
    heartbeat: Heartbeat | None,
    grace_s: float,
) -> None:
    """Leave within `grace_s` seconds, in such an order that no request has to be sent again.

    First the state "draining" goes to the registry and into every answer; students send elsewhere.
    Requests that come nevertheless are served until `QUIET_S` have passed without one. Then the
    lease ends, and last the sockets.
    """
    deadline = time.monotonic() + grace_s
    identity.draining = True
    if heartbeat is not None:
        heartbeat.update()
    if not recorder.wait_quiet(QUIET_S, grace_s):
        log.warning("requests kept coming for %g s: leaving all the same", grace_s)
    if heartbeat is not None:
        heartbeat.stop(leave=True)
    server.stop(max(0.0, deadline - time.monotonic()))
