"""Rosters: a reader's teachers, named by the user or assigned by the coordinator."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from ...proto import coordinator_pb2 as pb
from ...runtime.errors import EdlError
from ...scheduler.reader_core.events import Advice, Assigned, Peer
from ..config import ReaderConfig

log = logging.getLogger(__name__)

#: Maximum number of services to list in the message about a service without teachers.
_SHOWN: Final = 5


class Roster(Protocol):
    """The source of a reader's teachers. For the engine's thread."""

    def start(self) -> None: ...

    def remember(self, assigned: Assigned) -> None:
        """Resume from the assignment of an earlier engine."""
        ...

    def report(self, report: pb.StudentReport) -> None: ...

    def missing_reason(self) -> str:
        """Describe why there may be no teachers; empty: unknown."""
        ...

    def is_connected(self) -> bool:
        """Whether changes of the teachers can arrive now."""
        ...

    def stop(self) -> None: ...


OnAssigned = Callable[[Assigned], None]
OnFailed = Callable[[EdlError], None]


def open_roster(config: ReaderConfig, on_assigned: OnAssigned, on_failed: OnFailed) -> Roster:
    """Create the roster of a reader.

    Args:
        config: settings with named teachers or a coordinator.
        on_assigned: called in any thread when the teachers change.
        on_failed: called once if no assignment can arrive any more; `coordinator.Subscription`
            lists the errors that have this effect.
    """
    if config.coordinator is None:
        return NamedTeachers(config, on_assigned)
    return AssignedTeachers(config, config.coordinator, on_assigned, on_failed)


class NamedTeachers:
    """The addresses that the user named, whether teachers answer there or not."""

    def __init__(self, config: ReaderConfig, on_assigned: OnAssigned) -> None:
        peers = tuple(Peer(address, address, config.service) for address in config.teachers)
        self._assigned = Assigned(peers, live=len(peers))
        self._on_assigned = on_assigned

    def start(self) -> None:
        self._on_assigned(self._assigned)

    def remember(self, assigned: Assigned) -> None:
        """Do nothing: named teachers are fixed."""

    def report(self, report: pb.StudentReport) -> None:
        """Do nothing: there is no coordinator."""

    def missing_reason(self) -> str:
        return ""

    def is_connected(self) -> bool:
        return True

    def stop(self) -> None:
        """Do nothing: there is no thread."""


class AssignedTeachers:
    """The assignments of a service manager, received by a subscription."""

    def __init__(
        self, config: ReaderConfig, url: str, on_assigned: OnAssigned, on_failed: OnFailed
    ) -> None:
        from ...coordinator import Subscription  # loads redis, which named teachers do not need

        self._on_assigned = on_assigned
        self._subscription = Subscription(
            url, config.service, config.student_id, security=config.security, on_failed=on_failed
        )
        self._url, self._security = url, config.security
        self._service = config.service
        self._last_assigned: Assigned | None = None
        self._known_peers: dict[str, Peer] = {}
        self._other_services = ""  # describes services with teachers, if this one has none

    def start(self) -> None:
        self._subscription.start(self._on_message)

    def remember(self, assigned: Assigned) -> None:
        if self._last_assigned is None:
            self._known_peers = {peer.teacher_id: peer for peer in assigned.peers}

    def report(self, report: pb.StudentReport) -> None:
        self._subscription.report(report)

    def missing_reason(self) -> str:
        trouble: str = self._subscription.why
        if trouble:
            return trouble
        if self._last_assigned is None:
            return "the coordinator has not answered yet"
        if not self._last_assigned.live:
            return f"no teacher of service {self._service!r} is registered{self._other_services}"
        return ""

    def is_connected(self) -> bool:
        return not self._subscription.why

    def stop(self) -> None:
        self._subscription.stop()

    def _on_message(self, message: pb.Assignment) -> None:
        peers = [
            peer
            for teacher in message.teachers
            if (peer := self._peer(teacher)) is not None and _fits(peer, message.content_id)
        ]
        version = (message.term, message.counter)
        assigned = Assigned(
            tuple(peers),
            frozenset(message.lost),
            message.live_teachers,
            version,
            Advice(message.content_id, message.next_content_id, message.data_epoch),
        )
        self._known_peers = {peer.teacher_id: peer for peer in peers}
        before, self._last_assigned = self._last_assigned, assigned
        self._on_assigned(assigned)
        if not assigned.live and (before is None or before.live):
            thread = threading.Thread(target=self._find_others, name="edl-services", daemon=True)
            with suppress(RuntimeError):  # the system refuses a thread
                thread.start()

    def _find_others(self) -> None:
        """Find services that the user may mean; in a thread, because a manager may take seconds."""
        from difflib import get_close_matches  # slow to import, and rarely needed

        from ...coordinator import fetch_status

        try:
            status = fetch_status(self._url, max_members=1, security=self._security)
        except EdlError as error:
            log.debug("cannot list the services: %s", error)
            return
        names = sorted(service.name for service in status.services if service.teacher_count)
        close = get_close_matches(self._service, names, n=1)
        shown = [*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])]
        self._other_services = f"; services with teachers: {', '.join(shown) or 'none'}"
        self._other_services += "".join(f" (did you mean {name!r}?)" for name in close)

    def _peer(self, teacher: pb.Teacher) -> Peer | None:
        """Return the peer for a teacher; the previous one if the manager has lost its address.

        None: the address is unknown.
        """
        if not teacher.address:
            return self._known_peers.get(teacher.teacher_id)
        return Peer(
            teacher.teacher_id,
            teacher.address,
            teacher.model or self._service,
            teacher.incarnation,
            teacher.content_id,
            teacher.protocol,
            tuple(text.rsplit(":", 2)[0] for text in teacher.inputs),
            bool(teacher.voucher),
            teacher.numerics_id,
        )


def _fits(peer: Peer, content_id: str) -> bool:
    """Whether the teacher has the assigned content; True if either content is unknown."""
    return not (peer.content_id and content_id) or peer.content_id == content_id
