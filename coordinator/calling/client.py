"""What an operator asks of a mesh: its status, its log, to drain teachers, to move a service."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from ...proto import coordinator_pb2 as pb
from ...proto.security import ClientSecurity, open_channel
from ...runtime.errors import CoordinatorUnavailable, RequestRefused, UsageError
from ..registry import connect
from .discovery import CHANNEL_OPTIONS, call_error, live_managers, stub

_T = TypeVar("_T")
_TIMEOUT_S: Final = 5.0
#: What gRPC says where a server ends a connection that it has accepted.
_CLOSED: Final = "Socket closed"


def fetch_status(
    url: str,
    service: str = "",
    *,
    max_members: int = 0,
    security: ClientSecurity | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> pb.MeshStatus:
    """Ask a live manager who is alive and who serves whom.

    Args:
        url: Redis URL of the mesh.
        service: one service; empty for all.
        max_members: at most so many teachers and students of each service; 0 for all.
        security: how to call managers; None: neither TLS nor token.
        timeout_s: seconds to wait for each manager.

    Raises:
        RegistryUnavailable: Redis does not answer.
        CoordinatorUnavailable: no manager is registered, or none answers.
        AccessError: Redis or the managers refuse our credential.
    """
    request = pb.StatusRequest(service=service, max_members=max_members)
    status: pb.MeshStatus = _ask(
        url, security, lambda stub: stub.Status(request, timeout=timeout_s)
    )
    return status


def drain(
    url: str,
    *,
    service: str = "",
    teacher_id: str = "",
    host: str = "",
    security: ClientSecurity | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> list[str]:
    """Ask one teacher, or all on a host, to finish what they have and leave.

    Args:
        url: Redis URL of the mesh.
        service: theirs; empty for every service.
        teacher_id: the one to ask. Either this or `host`.
        host: the machine whose teachers are asked.
        security: how to call managers; None: neither TLS nor token.
        timeout_s: seconds to wait for each manager.

    Returns:
        "service/teacher_id" of those that drain from now on.

    Raises:
        UsageError: there is no such teacher; the message names near ones.
        EdlError: as `fetch_status`.
    """
    request = pb.DrainRequest(service=service, teacher_id=teacher_id, host=host)
    reply: pb.DrainReply = _ask(url, security, lambda stub: stub.Drain(request, timeout=timeout_s))
    return list(reply.teachers)


def upgrade(
    url: str,
    service: str,
    content_id: str,
    at: str,
    *,
    security: ClientSecurity | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> str:
    """Move a service to another model content.

    Args:
        url: Redis URL of the mesh.
        service: its name.
        content_id: what it moves to.
        at: "epoch": each student when it begins its next one; "now": at once.
        security: how to call managers; None: neither TLS nor token.
        timeout_s: seconds to wait for each manager.

    Returns:
        In words: what happens now, and what is waited for.

    Raises:
        UsageError: no such service, or nothing to do.
        EdlError: as `fetch_status`.
    """
    request = pb.UpgradeRequest(service=service, content_id=content_id, at=at)
    reply: pb.UpgradeReply = _ask(
        url, security, lambda stub: stub.Upgrade(request, timeout=timeout_s)
    )
    return str(reply.summary)


def deploy(
    url: str,
    request: pb.DeployRequest,
    *,
    security: ClientSecurity | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> str:
    """Say what a service is served by on machines that have agents, or take it back.

    Args:
        url: Redis URL of the mesh.
        request: which service, which model, how many teachers; or `withdraw`.
        security: how to call managers; None: neither TLS nor token.
        timeout_s: seconds to wait for each manager.

    Returns:
        In words: what happens now.

    Raises:
        UsageError: it cannot be deployed so, or there is nothing to take back.
        EdlError: as `fetch_status`.
    """
    reply: pb.DeployReply = _ask(
        url, security, lambda stub: stub.Deploy(request, timeout=timeout_s)
    )
    return str(reply.summary)


def watch(
    url: str,
    *,
    service: str = "",
    last: int = 0,
    follow: bool = False,
    security: ClientSecurity | None = None,
) -> Iterator[pb.Event]:
    """The log of the mesh: what lies in it, then, with `follow`, what comes.

    A log that is followed goes on at another manager when its own dies, and waits while there is
    none; nothing is missed, and nothing comes twice.

    Args:
        url: Redis URL of the mesh.
        service: one service; empty for all.
        last: at most so many of those that lie in the log, the latest; 0 for all.
        follow: go on with what comes, until the iterator is closed.
        security: how to call managers; None: neither TLS nor token.

    Raises:
        EdlError: as `fetch_status`; with `follow`, only before the first manager has answered.
    """
    if follow:
        from .log_follower import follow_log

        yield from follow_log(url, service, last, security)
        return
    request = pb.WatchRequest(service=service, last=last)
    yield from _ask(url, security, lambda stub: list(stub.Watch(request, timeout=_TIMEOUT_S)))


def ask_status(
    address: str,
    *,
    service: str = "",
    max_members: int = 0,
    own_only: bool = False,
    security: ClientSecurity | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> pb.MeshStatus:
    """As `fetch_status`, of the one manager at `address` (`host:port`).

    With `own_only`, only of the students that our credential subscribed, and of their teachers:
    a student may ask for that.
    """
    request = pb.StatusRequest(service=service, max_members=max_members, own_only=own_only)
    status: pb.MeshStatus = _ask_one(
        address, security, lambda stub: stub.Status(request, timeout=timeout_s)
    )
    return status


def _ask(url: str, security: ClientSecurity | None, question: Callable[[Any], _T]) -> _T:
    """What the first manager that answers says."""
    registry = connect(url)
    try:
        addresses = live_managers(registry)
    finally:
        registry.close()
    random.shuffle(addresses)
    failures = []
    for address in addresses:
        try:
            return _ask_one(address, security, question)
        except CoordinatorUnavailable as error:
            failures.append(str(error))
    raise CoordinatorUnavailable("; ".join(failures))


def _ask_one(address: str, security: ClientSecurity | None, question: Callable[[Any], _T]) -> _T:
    """What one manager says; what it refuses is the caller's mistake."""
    import grpc

    with open_channel(address, security, CHANNEL_OPTIONS) as channel:
        try:
            return question(stub(channel))
        except grpc.RpcError as error:
            meaning = call_error(address, error)
    if isinstance(meaning, CoordinatorUnavailable) and _CLOSED in str(meaning):
        raise CoordinatorUnavailable(f"{meaning}: {_closed_hint(security)}")
    raise UsageError(str(meaning)) if isinstance(meaning, RequestRefused) else meaning


def _closed_hint(security: ClientSecurity | None) -> str:
    """What may be wrong where a server ends a connection that it has accepted."""
    if security is None or security.tls is None:
        return (
            "if it speaks TLS, name its CA with 'edl context add NAME --tls-ca FILE ...', or by"
            " EDL_TLS_CA"
        )
    if security.tls.certificate is None:
        return (
            "if it asks for a certificate, name yours with 'edl context add NAME --tls-cert FILE"
            " --tls-key FILE ...', or by EDL_TLS_CERT and EDL_TLS_KEY"
        )
    return "it may refuse our certificate: is it of its --tls-ca, for clients, and still valid?"
