"""Checks a mesh from this machine: finds what would hinder a student or a command here.

Each check yields findings. If a check fails, those that depend on it are skipped.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Final

from ... import __version__
from ...proto import coordinator_pb2 as pb
from ...proto.clients import open_client
from ...proto.protocols import host_and_port
from ...proto.security.certificates import Validity, handshake_hint, validity_of
from ...proto.security.client_connections import HttpConnector
from ...proto.security.credentials import ClientSecurity
from ...runtime.addresses import is_loopback
from ...runtime.errors import (
    AccessError,
    EdlError,
    Forbidden,
    RedisUnavailable,
    UnavailableError,
    UsageError,
)
from ..calling.client import ask_status
from ..calling.subscription import try_subscribing
from ..registry import Registry, connect
from ..store.records import Member
from ..store.redis_url import is_redis_url, masked, parse
from .status_view import number_of
from .text_output import Finding, doubt, well, wrong

#: Clock differences above so many seconds are reported: certificates and log times need the clock.
CLOCK_S: Final = 2.0
#: Round trips to Redis above so many seconds are reported: they delay every heartbeat.
ROUND_TRIP_S: Final = 0.05
_PINGS: Final = 5
_ANSWER_S: Final = 2.0
#: Maximum number of teachers of a service whose addresses are checked.
_TRIED: Final = 20


def examine(url: str, security: Callable[[], ClientSecurity | None]) -> Iterator[Finding]:
    """Check everything, from Redis to the teachers.

    Args:
        url: Redis URL of the mesh.
        security: returns how to call managers; an EdlError that it raises becomes a finding.
    """
    yield well("this machine", f"edl-dist {__version__}")
    try:
        registry = connect(url)
    except EdlError as error:
        yield wrong("URL", str(error))
        return
    try:
        yield from _redis(registry)
        refuses = False
        try:
            yield from _writes(registry)
        except RedisUnavailable as error:  # reads still work, so the other checks continue
            yield wrong(_about(error), str(error))
            refuses = True
        yield from _settings(registry)
        credentials = security()
        yield from _credentials(credentials, url)
        yield from _managers(registry, credentials, refuses)
    except EdlError as error:
        yield wrong(_about(error), str(error))
    finally:
        registry.close()


def _redis(registry: Registry) -> Iterator[Finding]:
    """Check whether Redis answers, how fast, and its clock."""
    round_trips = []
    for _ in range(_PINGS):
        began = time.monotonic()
        server_ms = registry.time_ms()
        round_trips.append(time.monotonic() - began)
    median_s = sorted(round_trips)[_PINGS // 2]
    text = f"{registry.url} answers in {median_s * 1000:.1f} ms"
    if median_s > ROUND_TRIP_S:
        yield doubt("Redis", text, "it is far away: give leases a longer TTL, or move Redis nearer")
    else:
        yield well("Redis", text)
    yield from _clock(server_ms / 1000 - time.time())


def _writes(registry: Registry) -> Iterator[Finding]:
    """Check that Redis accepts writes; raise RedisUnavailable if not."""
    if not registry.check_writes():
        yield doubt(
            "Redis",
            "these credentials do not permit checking whether it accepts writes",
            "give its users the rules that 'edl coordinator acl' prints",
        )


def _clock(ahead_s: float) -> Iterator[Finding]:
    text = f"Redis's clock is {abs(ahead_s):.2f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"
    if abs(ahead_s) > CLOCK_S:
        yield doubt(
            "clock",
            text,
            "leases use Redis's clock only, but certificates and log times need ours: "
            "synchronize the clocks with NTP",
        )
    else:
        yield well("clock", text)


def _settings(registry: Registry) -> Iterator[Finding]:
    try:
        info = registry.server_info()
    except AccessError:
        yield well("Redis settings", "cannot be read with these credentials, which is fine")
        return
    if not info:
        return
    version = f"{info.get('server_name', 'redis')} {info.get('version') or '?'}"
    role = info.get("role", "master")
    if role != "master":
        yield wrong("Redis", f"{version} is a {role}", "name the master, or its Sentinels")
        return
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield doubt(
            "Redis memory",
            f"{version} evicts keys when its memory is full ({policy})",
            "set maxmemory-policy to noeviction: a member whose lease is evicted counts as dead",
        )
    else:
        yield well("Redis", version)


def _credentials(security: ClientSecurity | None, url: str) -> Iterator[Finding]:
    if security is None:
        yield well("credentials", "none: managers are called without TLS or a token")
        return
    parts = (["TLS"] if security.tls else []) + (["a token"] if security.token_file else [])
    yield well("credentials", " and ".join(parts))
    files = security.tls
    for path in (files.certificate, files.ca) if files else ():
        if path is not None:
            is_ca = files is not None and path == files.ca
            yield _expiry(f"certificate {path}", validity_of(path, bundle=is_ca))
    if url.startswith(("redis://", "redis+sentinel://")) and not _is_local(url):
        yield doubt(
            "credentials",
            f"{masked(url)} is reached without TLS",
            "use rediss:// if Redis has TLS: a password is sent unencrypted",
        )


def _expiry(about: str, validity: Validity) -> Finding:
    days = validity.days_left
    if days <= 0:
        return wrong(about, f"expired {number_of(round(-days), 'day')} ago", "replace it")
    text = f"is valid for {number_of(round(days), 'more day')}"
    return doubt(about, text, "replace it in time") if validity.ends_soon else well(about, text)


def _certificates(addresses: Iterable[str], security: ClientSecurity | None) -> Iterator[Finding]:
    """Check whether servers have valid certificates, and how long these remain valid."""
    if security is None or security.tls is None:
        return
    for address in addresses:
        try:
            validity = certificate_validity(address, security)
        except ConnectionRefusedError:  # the next check reports it
            continue
        except OSError as error:
            yield wrong(f"certificate of {address}", str(error), handshake_hint(str(error)))
        else:
            yield _expiry(f"certificate of {address}", validity)


def _managers(
    registry: Registry, security: ClientSecurity | None, refuses: bool
) -> Iterator[Finding]:
    """Check each manager with a lease, and the mesh as the last answering manager knows it.

    If Redis `refuses` writes, no manager can renew its lease.
    """
    members = registry.members("managers", "")
    if not members:
        remedy = f"start one: edl coordinator serve --redis {registry.url}"
        if refuses:
            remedy = "running managers register as soon as Redis accepts writes again"
        yield wrong("managers", "none is registered", remedy)
        return
    status, also_checked = None, ""
    for member in members:
        yield from _reachable_by_others(member, registry.url)
        yield from _certificates([member.member], security)
        try:
            began = time.monotonic()
            status, also_checked = _ask(member.member, security)
            took_s = time.monotonic() - began
        except EdlError as error:
            yield wrong(f"manager {member.member}", str(error), _advice(error))
            continue
        yield well(f"manager {member.member}", f"answers in {took_s * 1000:.0f} ms{also_checked}")
        version = member.facts.get("version", "")
        if version and version != __version__:
            text = f"runs edl-dist {version}, this machine {__version__}"
            yield doubt(f"manager {member.member}", text)
    if len(members) == 1:
        yield doubt(
            "managers",
            "there is only one",
            "start a second one, which takes over if the first dies",
        )
    if status is not None:
        yield from _services(status, security, is_part=bool(also_checked))


def _ask(address: str, security: ClientSecurity | None) -> tuple[pb.MeshStatus, str]:
    """Return the status that our role may see, and text about what else was checked.

    A student sees its own part of the mesh, and must be able to subscribe.
    """
    try:
        return ask_status(address, max_members=_TRIED, security=security), ""
    except Forbidden:
        status = ask_status(address, max_members=_TRIED, own_only=True, security=security)
        try_subscribing(address, security)
        return status, " and accepts subscriptions with these credentials of a student"


def _reachable_by_others(member: Member, url: str) -> Iterator[Finding]:
    if is_loopback(_host(member.member)) and not _is_local(url):
        yield wrong(
            f"manager {member.member}",
            "is registered with an address that only its own machine can reach",
            "start it with --listen, and with --advertise if others use another name for it",
        )


def _services(
    status: pb.MeshStatus, security: ClientSecurity | None, *, is_part: bool
) -> Iterator[Finding]:
    """Check the services; `is_part`: the status has only the part that a student may see."""
    if not status.services:
        words = "that these credentials may see" if is_part else "is registered"
        yield doubt("services", f"none: no teacher and no student {words}")
    for service in status.services:
        yield from _service(service)
        yield from _teachers(service, security, as_student=is_part)


def _service(service: pb.ServiceStatus) -> Iterator[Finding]:
    about = f"service {service.name}"
    if service.student_count and not service.leader:
        yield wrong(about, "no manager computes its assignments", "see the managers' logs")
    states = service.teacher_states
    refused = states.get("refused", 0)
    serving = states.get("serving", 0)
    if refused:
        yield wrong(
            about,
            f"{number_of(refused, 'teacher')} {'is' if refused == 1 else 'are'} refused",
            "'edl events' shows the reasons",
        )
    starved = service.student_states.get("starved", 0)
    text = (
        f"{number_of(serving, 'teacher')} {'serves' if serving == 1 else 'serve'} "
        f"{number_of(service.student_count, 'student')}, "
        f"{service.assigned} of {service.wanted} wanted are assigned"
    )
    starving = f"{number_of(starved, 'student')} {'starves' if starved == 1 else 'starve'}"
    if service.student_count and not serving:
        yield wrong(about, "students wait, and no teacher serves them", "start one")
    elif starved and service.assigned < service.wanted:
        yield doubt(about, f"{text}; {starving}", "start more teachers")
    elif starved:
        advice = "starving students request one more at a time, up to their teachers_max"
        yield doubt(about, f"{text}; {starving}", advice)
    else:
        yield well(about, text)


def _teachers(
    service: pb.ServiceStatus, security: ClientSecurity | None, *, as_student: bool
) -> Iterator[Finding]:
    """Check whether the teachers can be reached from here; of many, only the first of the status.

    With `as_student`, also check whether they accept these credentials of a student.
    """
    tried = [teacher for teacher in service.teachers if teacher.address][:_TRIED]
    problems = {t.teacher_id: why for t in tried if (why := connection_problem(t.address))}
    for name, why in problems.items():
        yield wrong(
            f"teacher {name}",
            f"cannot be reached from here: {why}",
            "start it with --listen, and with --advertise and an address that students can reach",
        )
    encrypted = (t for t in tried if t.teacher_id not in problems and "http://" not in t.address)
    yield from _certificates((t.address for t in encrypted), security)
    if as_student:
        for teacher in tried:
            if teacher.teacher_id not in problems and (
                why := refusal(teacher, service.name, security)
            ):
                problems[teacher.teacher_id] = why
                yield wrong(
                    f"teacher {teacher.teacher_id}",
                    f"refuses a student with these credentials: {why}",
                    "its --tokens and --tls must accept these credentials, as the managers' do",
                )
    if foreign := [teacher for teacher in service.teachers if teacher.voucher]:
        protocols = ", ".join(sorted({teacher.protocol for teacher in foreign}))
        checked = sum(teacher.verified == "canary" for teacher in foreign)
        yield well(
            f"service {service.name}",
            f"{number_of(len(foreign), 'foreign server')} ({protocols}), "
            f"{checked} of them compared with a canary",
        )
    lost_sidecars = {
        t.teacher_id: why for t in tried if t.voucher and (why := connection_problem(t.voucher))
    }
    for name, why in lost_sidecars.items():
        yield doubt(
            f"teacher {name}",
            f"its sidecar cannot be reached from here: {why}",
            "managers must reach it: start 'edl teacher register' with --listen and --advertise",
        )
    if tried and not problems:
        all_of = "all" if len(tried) == service.teacher_count else f"{len(tried)}"
        yield well(f"service {service.name}", f"{all_of} checked teachers can be reached from here")


def _about(error: EdlError) -> str:
    """Return the subject of a finding from an error that ended the checks."""
    return "Redis" if isinstance(error, UnavailableError) else "credentials"


def _advice(error: EdlError) -> str:
    if isinstance(error, AccessError):
        return (
            "name a token file, or a certificate and key, that it accepts: 'edl context add', or"
            " EDL_TOKEN_FILE, EDL_TLS_CERT, EDL_TLS_KEY"
        )
    if isinstance(error, UsageError):  # about a local file; the error has its own hint
        return ""
    if handshake_hint(str(error)) or "--tls-c" in str(error):  # the error has its own hint
        return ""
    return "check that it runs, and that this machine may connect to it"


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_local(url: str) -> bool:
    """Return whether the URL of a registry names only this machine."""
    if not is_redis_url(url):
        return True  # memory://NAME
    parsed = parse(url)
    return bool(parsed.path) or all(is_loopback(host) for host, _ in parsed.hosts)


def connection_problem(address: str) -> str:
    """Return why `host:port` or a URL cannot be reached; empty: something listens there."""
    try:
        with socket.create_connection(host_and_port(address), timeout=_ANSWER_S):
            return ""
    except ValueError as error:
        return str(error)
    except TimeoutError:
        return f"{address} does not answer within {_ANSWER_S:g} s"
    except OSError as error:
        return f"{address}: {error.strerror or error}"


def refusal(teacher: pb.Teacher, service: str, security: ClientSecurity | None) -> str:
    """Return why a teacher refuses these credentials; empty: it accepts them or is silent."""
    model = teacher.model or service
    try:
        with closing(open_client(teacher.protocol, teacher.address, model, security)) as client:
            client.probe(_ANSWER_S)
    except AccessError as error:
        return str(error)
    except EdlError:  # it does not answer, or is not ready
        pass
    return ""


def certificate_validity(address: str, security: ClientSecurity) -> Validity:
    """Return the validity of a server's certificate, if it is trusted here.

    Args:
        address: `host:port` or an https:// URL.
        security: how to call it.

    Raises:
        OSError: the server does not answer or speak TLS, or its certificate is not trusted.
        UsageError: a file of `security` cannot be used.
    """
    url = address if "://" in address else f"https://{address}"
    with HttpConnector(url, security).connect(_ANSWER_S) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        certificate = connection.getpeercert() or {}
        times = (str(certificate[field]) for field in ("notBefore", "notAfter"))
        return Validity(*map(ssl.cert_time_to_seconds, times))
