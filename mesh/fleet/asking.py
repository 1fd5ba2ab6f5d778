"""What the coordinator says of one service, asked again and again in a thread of its own."""

from __future__ import annotations

import logging
from typing import Final

from ...coordinator.calling.client import fetch_status
from ...coordinator.manager.summary import state_of
from ...errors import EdlError
from ...lifecycle import Periodic
from ...proto import coordinator_pb2 as pb
from ...proto.security import ClientSecurity
from ...scheduler.autoscale import left_to_fleets

log = logging.getLogger(__name__)

#: Seconds between two questions.
ASK_S: Final = 0.5
#: What the names of teachers begin with that a fleet has started.
FLEET: Final = "fleet-"


class Asking:
    """Keeps the last number that a service manager has told, and who is registered.

    Args:
        url: Redis URL of the mesh.
        service: whose number.
        security: how to call managers; None: neither TLS nor token.
    """

    def __init__(self, url: str, service: str, security: ClientSecurity | None = None) -> None:
        self._url = url
        self._service = service
        self._security = security
        self._latest: int | None = None
        self._registered: frozenset[str] | None = None
        self._trouble = ""
        self._asking = Periodic("edl-fleet-asks", ASK_S, self.ask)

    @property
    def latest(self) -> int | None:
        """How many teachers are desired of a fleet, as far as it is known; None: nobody said it.

        Those that were started by hand count.
        """
        return self._latest

    @property
    def registered(self) -> frozenset[str] | None:
        """Names of the service's teachers; None: nobody says it now."""
        return self._registered

    def start(self) -> None:
        """Begin; once only."""
        self._asking.start()

    def stop(self) -> None:
        """End, within seconds."""
        self._asking.stop()

    def ask(self) -> None:
        """Ask once. What was told before stands while nobody answers."""
        try:
            found = fetch_status(self._url, self._service, security=self._security).services
        except EdlError as error:
            self._registered = None
            if str(error) != self._trouble:
                log.warning("%s; the fleet stays as it is", error)
            self._trouble = str(error)
            return
        if self._trouble:
            log.info("the coordinator answers again")
        self._trouble = ""
        registered = None
        for status in found:
            if status.name == self._service:
                registered = frozenset(one.teacher_id for one in status.teachers)
                if status.HasField("desired_teachers"):
                    self._latest = left_to_fleets(status.desired_teachers, others(status))
        self._registered = registered


def others(status: pb.ServiceStatus) -> int:
    """Teachers that serve, and that somebody else has started than a fleet."""
    return sum(
        not teacher.teacher_id.startswith(FLEET)
        and state_of(teacher.admission, teacher.state) == "serving"
        for teacher in status.teachers
    )
