"""Examines a mesh from where it runs: what would a student, or an operator, here run into?

Each check yields findings and goes on; what a failed check makes impossible is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ... import __version__
from ...proto import coordinator_pb2 as pb
from ...proto.security import ClientSecurity, is_loopback
from ...proto.security.certificates import SOON_DAYS, days_until, expiry_of, handshake_hint
from ...runtime.errors import (
    AccessError,
    EdlError,
    Forbidden,
    RegistryUnavailable,
    UnavailableError,
    UsageError,
)
from ..calling.client import ask_status
from ..calling.subscription import try_subscribing
from ..registry import Member, Registry, connect
from ..store.redis_url import masked
from .reachability import certificate_expiry, exclusion, refusal
from .service_view import number_of
from .text_output import Finding, doubt, well, wrong

#: Clocks of two machines further apart are worth a word: incarnations are made from them.
CLOCK_S: Final = 2.0
#: A Redis further away makes every beat late.
ROUND_TRIP_S: Final = 0.05
_PINGS: Final = 5
#: Teachers of a service whose addresses are tried.
_TRIED: Final = 20


def examine(url: str, security: Callable[[], ClientSecurity | None]) -> Iterator[Finding]:
    """Look at everything, from Redis to the teachers.

    Args:
        url: Redis URL of the mesh.
        security: gives what managers are called with; it may raise an EdlError, which is a finding.
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
        except RegistryUnavailable as error:  # reads go on, and there is more to find
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
    """Whether it answers, how fast, and what time it has."""
    waits = []
    for _ in range(_PINGS):
        began = time.monotonic()
        server_ms = registry.time_ms()
        waits.append(time.monotonic() - began)
    wait_s = sorted(waits)[_PINGS // 2]
    text = f"{registry.url} answers in {wait_s * 1000:.1f} ms"
    if wait_s > ROUND_TRIP_S:
        yield doubt("Redis", text, "it is far away: give leases a longer TTL, or move it nearer")
    else:
        yield well("Redis", text)
    yield from _clock(server_ms / 1000 - time.time())


def _writes(registry: Registry) -> Iterator[Finding]:
    """Whether that can be tried; raises RegistryUnavailable where Redis takes none."""
    if not registry.check_writes():
        yield doubt(
            "Redis",
            "whether it takes writes may not be tried with these credentials",
            "give its users the rules that 'edl coordinator acl' prints",
        )


def _clock(ahead_s: float) -> Iterator[Finding]:
    words = f"Redis's clock is {abs(ahead_s):.2f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"
    if abs(ahead_s) > CLOCK_S:
        yield doubt(
            "clock",
            words,
            "leases go by Redis's clock alone, but a student that starts anew on a machine whose "
            "clock is behind looks older than its ghost: let NTP set the clocks",
        )
    else:
        yield well("clock", words)


def _settings(registry: Registry) -> Iterator[Finding]:
    try:
        info = registry.server_info()
    except AccessError:
        yield well("Redis settings", "may not be read with these credentials, which need not be")
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
            f"{version} throws keys away when its memory is full ({policy})",
            "set maxmemory-policy to noeviction: a lease that is thrown away is a death",
        )
    else:
        yield well("Redis", version)


def _credentials(security: ClientSecurity | None, url: str) -> Iterator[Finding]:
    if security is None:
        yield well("credentials", "none are named: managers are called in the clear")
        return
    parts = (["TLS"] if security.tls else []) + (["a token"] if security.token_file else [])
    yield well("credentials", " and ".join(parts))
    files = security.tls
    for path in (files.certificate, files.ca) if files else ():
        if path is not None:
            is_ca = files is not None and path == files.ca
            yield _expiry(f"certificate {path}", expiry_of(path, bundle=is_ca))
    if url.startswith(("redis://", "redis+sentinel://")) and not _is_near(url):
        yield doubt(
            "credentials",
            f"{masked(url)} is reached without TLS",
            "write rediss:// if Redis speaks it: a password on this way can be read",
        )


def _expiry(about: str, time_s: float) -> Finding:
    days = days_until(time_s)
    if days <= 0:
        return wrong(about, f"expired {number_of(round(-days), 'day')} ago", "replace it")
    text = f"is valid for {number_of(round(days), 'more day')}"
    return doubt(about, text, "replace it in time") if days < SOON_DAYS else well(about, text)


def _peers(addresses: Iterable[str], security: ClientSecurity | None) -> Iterator[Finding]:
    """Whether servers show certificates that are valid, and for how long."""
    if security is None or security.tls is None:
        return
    for address in addresses:
        try:
            ends_s = certificate_expiry(address, security)
        except ConnectionRefusedError:  # whoever dials it next says so
            continue
        except OSError as error:
            yield wrong(f"certificate of {address}", str(error), handshake_hint(str(error)))
        else:
            yield _expiry(f"certificate of {address}", ends_s)


def _managers(
    registry: Registry, security: ClientSecurity | None, refuses: bool
) -> Iterator[Finding]:
    """Each manager that holds a lease; and the mesh, as the first that answers tells it.

    Redis `refuses` writes or does not: then no manager can keep a lease.
    """
    members = registry.members("managers", "")
    if not members:
        remedy = f"start one: edl coordinator serve --redis {registry.url}"
        if refuses:
            remedy = "those that run register as soon as Redis takes writes again"
        yield wrong("managers", "none is registered", remedy)
        return
    status, takes = None, ""
    for member in members:
        yield from _reachable_by_others(member, registry.url)
        yield from _peers([member.member], security)
        try:
            began = time.monotonic()
            status, takes = _ask(member.member, security)
            took_s = time.monotonic() - began
        except EdlError as error:
            yield wrong(f"manager {member.member}", str(error), _advice(error))
            continue
        yield well(f"manager {member.member}", f"answers in {took_s * 1000:.0f} ms{takes}")
        yield from _version(f"manager {member.member}", member.facts.get("version", ""))
    if len(members) == 1:
        yield doubt("managers", "there is one only", "a second one takes over when it dies")
    if status is not None:
        yield from _services(status, security, is_part=bool(takes))


def _ask(address: str, security: ClientSecurity | None) -> tuple[pb.MeshStatus, str]:
    """The status that our role may see, and what else the role may do there, in words.

    A student sees its own part of the mesh, and has to be able to subscribe.
    """
    try:
        return ask_status(address, max_members=_TRIED, security=security), ""
    except Forbidden:
        status = ask_status(address, max_members=_TRIED, own_only=True, security=security)
        try_subscribing(address, security)
        return status, " and takes subscriptions with these credentials of a student"


def _reachable_by_others(member: Member, url: str) -> Iterator[Finding]:
    if is_loopback(_host(member.member)) and not _is_near(url):
        yield wrong(
            f"manager {member.member}",
            "is registered under an address that only its own machine reaches",
            "start it with --listen, and --advertise if others know the machine by another name",
        )


def _version(about: str, version: str) -> Iterator[Finding]:
    if version and version != __version__:
        yield doubt(about, f"runs edl-dist {version}, this machine {__version__}")


def _services(
    status: pb.MeshStatus, security: ClientSecurity | None, *, is_part: bool
) -> Iterator[Finding]:
    """What the mesh has; `is_part` of it is what a student may see."""
    if not status.services:
        words = "that these credentials may see" if is_part else "is registered"
        yield doubt("services", f"none: no teacher and no student {words}")
    for service in status.services:
        yield from _service(service)
        yield from _teachers(service, security, admitted=is_part)


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
            "'edl events' says why of each",
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
        advice = "they ask for one more as long as they do, up to their teachers_max"
        yield doubt(about, f"{text}; {starving}", advice)
    else:
        yield well(about, text)


def _teachers(
    service: pb.ServiceStatus, security: ClientSecurity | None, *, admitted: bool
) -> Iterator[Finding]:
    """Whether their addresses can be reached from here: of some, those that need a look first.

    With `admitted`, also whether they let a student with these credentials in.
    """
    tried = [teacher for teacher in service.teachers if teacher.address][:_TRIED]
    deaf = {t.teacher_id: why for t in tried if (why := refusal(t.address))}
    for name, why in deaf.items():
        yield wrong(
            f"teacher {name}",
            f"cannot be reached from here: {why}",
            "start it with --listen, and --advertise with what students can dial",
        )
    encrypted = (t for t in tried if t.teacher_id not in deaf and "http://" not in t.address)
    yield from _peers((t.address for t in encrypted), security)
    if admitted:
        for teacher in tried:
            if teacher.teacher_id not in deaf and (
                why := exclusion(teacher, service.name, security)
            ):
                deaf[teacher.teacher_id] = why
                yield wrong(
                    f"teacher {teacher.teacher_id}",
                    f"does not let a student with these credentials in: {why}",
                    "its --tokens and --tls-ca have to know them, as those of managers do",
                )
    if foreign := [teacher for teacher in service.teachers if teacher.voucher]:
        spoken = ", ".join(sorted({teacher.protocol for teacher in foreign}))
        checked = sum(teacher.verified == "canary" for teacher in foreign)
        yield well(
            f"service {service.name}",
            f"{number_of(len(foreign), 'foreign server')} ({spoken}), "
            f"{checked} of them compared with a canary",
        )
    mute = {t.teacher_id: why for t in tried if t.voucher and (why := refusal(t.voucher))}
    for name, why in mute.items():
        yield doubt(
            f"teacher {name}",
            f"who registered it cannot be reached from here: {why}",
            "managers have to: start 'edl teacher register' with --listen and --advertise",
        )
    if tried and not deaf:
        all_of = "all" if len(tried) == service.teacher_count else f"{len(tried)}"
        yield well(f"service {service.name}", f"{all_of} teachers tried can be reached from here")


def _about(error: EdlError) -> str:
    """What an error that ended the examination was about."""
    return "Redis" if isinstance(error, UnavailableError) else "credentials"


def _advice(error: EdlError) -> str:
    if isinstance(error, AccessError):
        return (
            "name the token file, or certificate and key, of somebody whom it knows: 'edl context"
            " add', or EDL_TOKEN_FILE, EDL_TLS_CERT, EDL_TLS_KEY"
        )
    if isinstance(error, UsageError):  # about a file of ours, and says what to do
        return ""
    if handshake_hint(str(error)) or "--tls-c" in str(error):  # the error has said it
        return ""
    return "is it up, and may this machine dial it?"


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_near(url: str) -> bool:
    """Whether a Redis URL names this machine alone."""
    place = url.partition("://")[2].rpartition("@")[2].partition("/")[0]
    if url.startswith(("unix:", "memory:")):
        return True
    return all(
        is_loopback(_host(f"{one}:0" if ":" not in one else one)) for one in place.split(",")
    )
