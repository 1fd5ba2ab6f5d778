"""Polls the coordinator about one service, in a thread."""

from __future__ import annotations

import logging
from typing import Final

from ...coordinator.calling.client import fetch_status
from ...coordinator.manager.overview import state_of
from ...proto import coordinator_pb2 as pb
from ...proto.security import ClientSecurity
from ...runtime.errors import EdlError
from ...runtime.lifecycle import Periodic

log = logging.getLogger(__name__)

#: Seconds between polls.
POLL_S: Final = 0.5
#: Prefix of the names of teachers that fleets start.
FLEET_PREFIX: Final = "fleet-"


class ServicePoller:
    """Polls the wanted number of teachers of a fleet, and the names of registered teachers.

    Properties may be read from any thread.

    Args:
        url: Redis URL of the mesh.
        service: name of the service.
        security: credentials for managers; None: neither TLS nor token.
    """

    def __init__(self, url: str, service: str, security: ClientSecurity | None = None) -> None:
        self._url = url
        self._service = service
        self._security = security
        self._latest: int | None = None
        self._registered: frozenset[str] | None = None
        self._error = ""
        self._thread = Periodic("edl-fleet-poller", POLL_S, self.poll)

    @property
    def latest(self) -> int | None:
        """Number of teachers that fleets should run; None: unknown."""
        return self._latest

    @property
    def registered(self) -> frozenset[str] | None:
        """Names of the service's teachers; None: unknown, or the coordinator does not answer."""
        return self._registered

    def start(self) -> None:
        """Start the thread; call it once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread within seconds."""
        self._thread.stop()

    def poll(self) -> None:
        """Poll once; `latest` stays the same if the coordinator does not answer."""
        try:
            found = fetch_status(self._url, self._service, security=self._security).services
        except EdlError as error:
            self._registered = None
            if str(error) != self._error:
                log.warning("%s; the fleet stays as it is", error)
            self._error = str(error)
            return
        if self._error:
            log.info("the coordinator answers again")
        self._error = ""
        registered = None
        for status in found:
            if status.name == self._service:
                registered = frozenset(one.teacher_id for one in status.teachers)
                if status.HasField("desired_teachers"):
                    self._latest = max(0, status.desired_teachers - others(status))
        self._registered = registered


def others(status: pb.ServiceStatus) -> int:
    """Return the number of serving teachers that were not started by a fleet."""
    return sum(
        not teacher.teacher_id.startswith(FLEET_PREFIX)
        and state_of(teacher.admission, teacher.state) == "serving"
        for teacher in status.teachers
    )
