"""Calls of commands to a mesh: status, log, drain, upgrade, deploy."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...proto import coordinator_pb2 as pb
from ...proto.security.client_connections import open_channel
from ...proto.security.credentials import ClientSecurity
from ...runtime.errors import (
    AccessError,
    CoordinatorUnavailable,
    RequestRefused,
    UnavailableError,
    UsageError,
)
from ...scheduler.backoff import delay_s
from ..registry import connect
from ..store.records import log_position
from .discovery import CHANNEL_OPTIONS, call_error, initial_metadata, live_managers, stub

if TYPE_CHECKING:
    from google.protobuf.message import Message

log = logging.getLogger(__name__)

#: Seconds to wait for each manager.
_TIMEOUT_S: Final = 5.0
_FOLLOW_CAP_S: Final = 2.0  # longest pause between attempts to follow the log
#: Text of gRPC's error if a server closes a connection that it has accepted.
_CLOSED: Final = "Socket closed"


def fetch_status(
    url: str,
    service: str = "",
    *,
    max_members: int = 0,
    security: ClientSecurity | None = None,
) -> pb.MeshStatus:
    """Return the live teachers and students, and the assignments, as a live manager knows them.

    Args:
        url: Redis URL of the mesh.
        service: name of one service; empty: all.
        max_members: maximum number of teachers, and of students, to return of each service; 0: all.
        security: how to call managers; None: neither TLS nor token.

    Raises:
        UsageError: `url` or `service` is invalid, or a file of `security` cannot be used.
        RedisUnavailable: Redis does not answer.
        CoordinatorUnavailable: no manager is registered, or none answers.
        AccessError: Redis or the managers refuse our credentials.
    """
    request = pb.StatusRequest(service=service, max_members=max_members)
    status: pb.MeshStatus = _ask(url, security, "Status", request)
    return status


def drain(
    url: str,
    *,
    service: str = "",
    teacher_id: str = "",
    host: str = "",
    security: ClientSecurity | None = None,
) -> list[str]:
    """Ask one teacher, or all on a host, to finish their requests and leave.

    Args:
        url: Redis URL of the mesh.
        service: service of the teachers; empty: all.
        teacher_id: id of the teacher. Give this or `host`, not both.
        host: machine of the teachers: its host name, or its address as students use it.
        security: how to call managers; None: neither TLS nor token.

    Returns:
        "service/teacher_id" of the teachers that drain now.

    Raises:
        UsageError: neither or both of `teacher_id` and `host` are given, or there is no such
            service, teacher or host; the message has similar names.
        EdlError: as `fetch_status`.
    """
    request = pb.DrainRequest(service=service, teacher_id=teacher_id, host=host)
    return list(_ask(url, security, "Drain", request).teachers)


def upgrade(
    url: str,
    service: str,
    content_id: str,
    at: str,
    *,
    security: ClientSecurity | None = None,
) -> str:
    """Move a service to another model content.

    Args:
        url: Redis URL of the mesh.
        service: its name.
        content_id: content id of the new model, or a unique prefix of one that the service knows.
        at: "epoch": each student moves at its next epoch; "now": at once.
        security: how to call managers; None: neither TLS nor token.

    Returns:
        Text: what happens now, and what the service waits for.

    Raises:
        UsageError: as `coordinator.operations.upgrade`.
        EdlError: as `fetch_status`.
    """
    request = pb.UpgradeRequest(service=service, content_id=content_id, at=at)
    return str(_ask(url, security, "Upgrade", request).summary)


def deploy(url: str, request: pb.DeployRequest, *, security: ClientSecurity | None = None) -> str:
    """Deploy the model of a service on machines that run agents, scale it, or withdraw it.

    Args:
        url: Redis URL of the mesh.
        request: service, model and number of teachers; or `scale` or `withdraw`.
        security: how to call managers; None: neither TLS nor token.

    Returns:
        Text: what happens now.

    Raises:
        UsageError: the deployment is invalid, or there is none to scale or withdraw.
        EdlError: as `fetch_status`.
    """
    return str(_ask(url, security, "Deploy", request).summary)


def watch(
    url: str,
    *,
    service: str = "",
    last: int = 0,
    follow: bool = False,
    security: ClientSecurity | None = None,
) -> Iterator[pb.Event]:
    """Yield the events of the mesh's log; with `follow`, also new ones as they occur.

    A followed log continues at another manager if its manager dies, and waits while there is none.
    It repeats no event, and misses none that Redis still has when a manager answers.

    Args:
        url: Redis URL of the mesh.
        service: name of one service; empty: all.
        last: begin with this many of the latest stored events; 0: with all of them.
        follow: continue with new events until the iterator is closed.
        security: how to call managers; None: neither TLS nor token.

    Raises:
        EdlError: as `fetch_status`. With `follow`, once a manager has answered, outages and refused
            credentials only cause retries.
    """
    if follow:
        yield from _LogReader(url, service, last, security).follow()
        return
    request = pb.WatchRequest(service=service, last=last)
    yield from _ask(url, security, "Watch", request)


def ask_status(
    address: str,
    *,
    service: str = "",
    max_members: int = 0,
    own_only: bool = False,
    security: ClientSecurity | None = None,
) -> pb.MeshStatus:
    """Return the status as the manager at `address` (`host:port`) knows it; see `fetch_status`.

    With `own_only`, return only the students that our credential subscribed, and their teachers.
    Students may call this.
    """
    request = pb.StatusRequest(service=service, max_members=max_members, own_only=own_only)
    status: pb.MeshStatus = _ask_one(address, security, "Status", request)
    return status


def _ask(url: str, security: ClientSecurity | None, method: str, request: Message) -> Any:
    """Return the answer of the first manager that answers; see `_ask_one`."""
    failures = []
    for address in _managers(url):
        try:
            return _ask_one(address, security, method, request)
        except CoordinatorUnavailable as error:
            failures.append(str(error))
    raise CoordinatorUnavailable("; ".join(failures))


def _managers(url: str) -> list[str]:
    """Return the addresses of live managers in random order; see `live_managers`."""
    with closing(connect(url)) as registry:
        addresses = live_managers(registry)
    random.shuffle(addresses)
    return addresses


def _ask_one(address: str, security: ClientSecurity | None, method: str, request: Message) -> Any:
    """Return the answer of one manager, a list for a stream.

    Raises:
        UsageError: it refuses the request.
    """
    import grpc

    with open_channel(address, security, CHANNEL_OPTIONS) as channel:
        try:
            answer = getattr(stub(channel), method)(request, timeout=_TIMEOUT_S)
            return list(answer) if isinstance(answer, Iterator) else answer
        except grpc.RpcError as error:
            failure = call_error(address, error)
    if isinstance(failure, CoordinatorUnavailable) and _CLOSED in str(failure):
        raise CoordinatorUnavailable(f"{failure}: {_closed_hint(security)}")
    raise UsageError(str(failure)) if isinstance(failure, RequestRefused) else failure


def _closed_hint(security: ClientSecurity | None) -> str:
    """Return a hint about a server that closed a connection that it had accepted."""
    if security is None or security.tls is None:
        return (
            "if it uses TLS, name its CA with 'edl context add NAME --tls ca=FILE ...', or in"
            " EDL_TLS_CA"
        )
    if security.tls.certificate is None:
        return (
            "if it requires a certificate, name yours with 'edl context add NAME --tls"
            " cert=FILE,key=FILE ...', or in EDL_TLS_CERT and EDL_TLS_KEY"
        )
    return (
        "it may refuse our certificate: check that the manager's CA (--tls ca=FILE) signed the"
        " certificate, and that it is for clients and still valid"
    )


@dataclass(slots=True)
class _LogReader:
    """Follows the log. It keeps its position, so that it can continue at another manager.

    Attributes:
        begun: a manager has accepted the call.
        seen: service -> position of its last yielded event.
        first_ms: time of the first yielded event. Of a service that is not in `seen`, only later
            events are yielded.
    """

    url: str
    service: str
    last: int
    security: ClientSecurity | None
    begun: bool = False
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    first_ms: int = 0

    def follow(self) -> Iterator[pb.Event]:
        """Yield events, each once; continue at another manager when one dies.

        Raises:
            EdlError: no manager accepts the first call. Later, outages and refused credentials only
                cause retries.
        """
        rng, attempt = random.Random(), 0
        while True:
            try:
                for event in self._events():
                    attempt = 0
                    yield event
            except (UnavailableError, AccessError) as error:
                if not self.begun:
                    raise
                # Warn only at the second failed attempt: the death of one manager is harmless.
                level = logging.WARNING if attempt == 1 else logging.DEBUG
                log.log(level, "cannot read the log now; trying again: %s", error)
            attempt += 1
            time.sleep(delay_s(attempt, rng, cap_s=_FOLLOW_CAP_S))

    def _events(self) -> Iterator[pb.Event]:
        """Yield the events of one manager that were not yielded before."""
        # Once events were yielded, read all stored ones, which include the missed ones. `begun` is
        # not enough: a manager that accepted the call may have failed before it sent an event.
        last = 0 if self.seen else self.last
        request = pb.WatchRequest(service=self.service, last=last, follow=True)
        for address in _managers(self.url):
            with open_channel(address, self.security, CHANNEL_OPTIONS) as channel:
                call = stub(channel).Watch(request)
                try:
                    initial_metadata(call, address)
                except CoordinatorUnavailable as error:
                    failure = error
                    continue
                self.begun = True
                yield from self._new(call, address)
                return
        raise failure

    def _new(self, call: Any, address: str) -> Iterator[pb.Event]:
        import grpc

        try:
            for event in call:
                position = log_position(event.id)
                if position > self.seen.get(event.service, (self.first_ms, -1)):
                    self.first_ms = self.first_ms or event.time_ms
                    self.seen[event.service] = position
                    yield event
        except grpc.RpcError as error:
            raise call_error(address, error) from None
