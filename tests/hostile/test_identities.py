"""Callers with no credential, a wrong one, or one for something else, at both planes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.coordinator.calling.discovery import SECRET_METADATA
from edl.coordinator.limits import Limits
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles, open_channel
from edl.tests.hostile.inputs import Input, report
from edl.tests.hostile.planes import (
    CONTROL,
    DATA,
    TIMEOUT_S,
    Code,
    ControlPlane,
    GoodStudent,
    ends_of,
    served_throughout,
)
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import Bench
from edl.tests.waiting import wait_until

#: Role -> its token.
TOKENS = {
    "student": "s" * 32,
    "student:storm": "j" * 32,
    "student:other": "o" * 32,
    "viewer": "v" * 32,
    "admin": "a" * 32,
}
FIRST = report(service="calm").SerializeToString()
NOT_A_REQUEST = b"\xff"
OK = Code.OK
MALFORMED = Code.INVALID_ARGUMENT
DENIED = Code.PERMISSION_DENIED
NOT_KNOWN = Code.UNAUTHENTICATED


@dataclass(frozen=True)
class Files:
    """Credentials of both sides, in files."""

    folder: Path
    authority: Authority

    @property
    def tokens(self) -> ServerSecurity:
        lines = "\n".join(f"{role} {token}" for role, token in TOKENS.items())
        return ServerSecurity(None, write_secret(self.folder / "tokens", lines))

    @property
    def certificates(self) -> ServerSecurity:
        return ServerSecurity(self.authority.issue("server"))

    def token(self, text: str) -> ClientSecurity:
        return ClientSecurity(None, write_secret(self.folder / f"token-{text[:8]}", text))

    def certificate(self, common_name: str) -> ClientSecurity:
        return ClientSecurity(self.authority.issue(common_name.replace(":", "-"), common_name))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("credentials")
    return Files(folder, Authority(folder / "authority"))


@pytest.fixture
def control(files: Files) -> Iterator[ControlPlane]:
    plane = ControlPlane(files.tokens)
    yield plane
    plane.close()


@pytest.fixture
def data(files: Files) -> Iterator[Bench]:
    bench = Bench(files.token(TOKENS["student"]), security=files.tokens)
    yield bench
    bench.close()


def ends(address: str, security: ClientSecurity | None, service: str, *calls: Input) -> list[Code]:
    with open_channel(address, security) as channel:
        return [code for code, _ in ends_of(channel, service, calls)]


# What each role may: how Subscribe as storm/0, Status, Watch, Drain, Upgrade and Deploy end. The
# last three are asked for what cannot be, so that whoever is let in is told so.
ROLES = {
    "student": (OK, DENIED, DENIED, DENIED, DENIED, DENIED),
    "student:storm": (OK, DENIED, DENIED, DENIED, DENIED, DENIED),
    "student:other": (DENIED, DENIED, DENIED, DENIED, DENIED, DENIED),
    "viewer": (DENIED, OK, OK, DENIED, DENIED, DENIED),
    "admin": (OK, OK, OK, MALFORMED, MALFORMED, MALFORMED),
    "nobody": (NOT_KNOWN,) * 6,
}
CALLS = (
    Input("Subscribe", FIRST),
    Input("Status", b""),
    Input("Watch", b""),
    Input("Drain", b""),
    Input("Upgrade", b""),
    Input("Deploy", b""),
)


@pytest.mark.parametrize("role", ROLES)
def test_what_each_token_may_at_a_manager(control: ControlPlane, files: Files, role: str) -> None:
    good = GoodStudent(control.address, files.token(TOKENS["student"]))
    with served_throughout(good):
        security = files.token(TOKENS.get(role, "wrong-token"))
        ended = ends(control.address, security, CONTROL, *CALLS)
    good.close()
    assert tuple(ended) == ROLES[role]
    assert control.refused["forbidden"] == ended.count(DENIED)
    assert control.refused["unauthenticated"] == ended.count(NOT_KNOWN)


def test_without_a_token_nothing_that_is_sent_is_read(control: ControlPlane) -> None:
    calls = [Input(call.method, NOT_A_REQUEST) for call in CALLS] * 20
    assert set(ends(control.address, None, CONTROL, *calls)) == {NOT_KNOWN}
    assert control.refused == {"unauthenticated": len(calls)}


@pytest.mark.parametrize("role", ["student", "viewer", "admin", "nobody", ""])
def test_what_each_token_may_at_a_teacher(data: Bench, files: Files, role: str) -> None:
    security = files.token(TOKENS.get(role, "wrong-token")) if role else None
    calls = [Input("ModelInfer", data.request()), Input("ModelMetadata", b"\x0a\x06resnet")]
    with served_throughout(lambda: data.infer()):
        ended = ends(data.address, security, DATA, *calls)
        alive = ends(data.address, security, DATA, Input("ServerLive", b""))
    expected = {"student": [OK, OK], "admin": [OK, OK], "viewer": [DENIED, OK]}
    assert ended == expected.get(role, [NOT_KNOWN, NOT_KNOWN])
    assert alive == [OK], "a load balancer has no token"
    assert data.refused("forbidden") == ended.count(DENIED)
    assert data.refused("unauthenticated") == ended.count(NOT_KNOWN)


def test_many_wrong_tokens_delay_nobody(control: ControlPlane, data: Bench, files: Files) -> None:
    wrong = files.token("guessed-" * 4)
    good = GoodStudent(control.address, files.token(TOKENS["student"]))
    with served_throughout(good), served_throughout(lambda: data.infer()):
        for address, service, call in (
            (control.address, CONTROL, Input("Subscribe", FIRST)),
            (data.address, DATA, Input("ModelInfer", data.request())),
        ):
            assert set(ends(address, wrong, service, *[call] * 200)) == {NOT_KNOWN}
    good.close()
    assert control.refused == {"unauthenticated": 200}
    assert data.refused("unauthenticated") == 200


def strangers(files: Files, folder: Path) -> list[ClientSecurity | None]:
    """No TLS, no certificate, a certificate of another CA, a CA that did not sign the server's."""
    strange = Authority(folder / "strange")
    ours = files.certificate("student")
    assert ours.tls is not None
    return [
        None,
        ClientSecurity(TlsFiles(ca=files.authority.ca)),
        ClientSecurity(replace(strange.issue("admin", "admin"), ca=files.authority.ca)),
        ClientSecurity(replace(ours.tls, ca=strange.ca)),
    ]


def refused_and_counted(
    address: str,
    service: str,
    call: Input,
    callers: list[ClientSecurity | None],
    counted: Callable[[], float],
    any_call: Callable[[], object],
) -> None:
    for security in callers:
        assert ends(address, security, service, call) == [Code.UNAVAILABLE]

    def all_counted() -> bool:
        any_call()
        return counted() == len(callers)

    wait_until(all_counted)


def test_strangers_at_a_manager(files: Files, tmp_path: Path) -> None:
    plane = ControlPlane(files.certificates, patience_s=2.0)
    ours = files.certificate("student")
    good = GoodStudent(plane.address, ours)
    try:
        with served_throughout(good):
            refused_and_counted(
                plane.address,
                CONTROL,
                CALLS[0],
                strangers(files, tmp_path),
                lambda: plane.refused["unauthenticated"],
                lambda: None,
            )
    finally:
        good.close()
        plane.close()


def test_strangers_at_a_teacher(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.tests.teacher.bench.Gate", patient_for_2_s)
    bench = Bench(files.certificate("student"), security=files.certificates)
    try:
        with served_throughout(lambda: bench.infer()):
            refused_and_counted(
                bench.address,
                DATA,
                Input("ModelInfer", bench.request()),
                strangers(files, tmp_path),
                lambda: bench.refused("unauthenticated") or 0.0,
                bench.infer,
            )
    finally:
        bench.close()


def patient_for_2_s(*args: Any) -> Any:
    from edl.proto.security import Gate

    return Gate(*args, patience_s=2.0)


@pytest.mark.parametrize(
    ("common_name", "ended"),
    [
        ("student:storm", (OK, DENIED, DENIED, DENIED, DENIED, DENIED)),
        ("student:other", (DENIED,) * 6),
        ("storm", (OK, DENIED, DENIED, DENIED, DENIED, DENIED)),
        ("viewer:web", (DENIED, OK, OK, DENIED, DENIED, DENIED)),
        ("admin:ann", (OK, OK, OK, MALFORMED, MALFORMED, MALFORMED)),
    ],
)
def test_what_each_certificate_may_at_a_manager(
    files: Files, common_name: str, ended: tuple[Code, ...]
) -> None:
    plane = ControlPlane(files.certificates)
    try:
        security = files.certificate(common_name)
        assert tuple(ends(plane.address, security, CONTROL, *CALLS)) == ended
        assert plane.refused["forbidden"] == ended.count(DENIED)
    finally:
        plane.close()


@pytest.fixture
def two_tokens(tmp_path: Path) -> ServerSecurity:
    return ServerSecurity(None, write_secret(tmp_path / "tokens", "mine-mine\nyours-yours\n"))


@pytest.fixture
def mine(tmp_path: Path) -> ClientSecurity:
    return ClientSecurity(None, write_secret(tmp_path / "mine", "mine-mine"))


@pytest.fixture
def yours(tmp_path: Path) -> ClientSecurity:
    return ClientSecurity(None, write_secret(tmp_path / "yours", "yours-yours"))


@contextmanager
def serving(security: ServerSecurity | None = None, **limits: Any) -> Iterator[ControlPlane]:
    plane = ControlPlane(security, limits=Limits(**limits))
    try:
        yield plane
    finally:
        plane.close()


@contextmanager
def subscribed(
    address: str, security: ClientSecurity | None, secret: str = "", **fields: Any
) -> Iterator[Any]:
    """A stream that has sent its first report and stays open."""
    over = threading.Event()
    first = report(**{"service": "calm", "student_id": "job/0", "teachers": [], **fields})

    def reports() -> Iterator[bytes]:
        yield first.SerializeToString()
        over.wait(TIMEOUT_S)

    with open_channel(address, security) as channel:
        any_channel: Any = channel
        metadata = ((SECRET_METADATA, secret),) if secret else ()
        call = any_channel.stream_stream(f"/{CONTROL}/Subscribe")(
            reports(), timeout=TIMEOUT_S, metadata=metadata
        )
        try:
            yield call
        finally:
            over.set()
            call.cancel()


def assignment(call: Any) -> pb.Assignment:
    """The next one with a teacher in it."""
    for data in call:
        if (found := pb.Assignment.FromString(data)).teachers:
            return found
    raise AssertionError("the stream ended without an assignment")


def end(call: Any) -> grpc.StatusCode:
    with suppress(grpc.RpcError):
        for _ in call:
            pass
    code: grpc.StatusCode = call.code()
    return code


def secret_of(call: Any) -> str:
    return str(dict(call.initial_metadata())[SECRET_METADATA])


def test_another_students_id_is_refused_and_its_owner_stays(
    two_tokens: ServerSecurity, mine: ClientSecurity, yours: ClientSecurity
) -> None:
    with serving(two_tokens) as plane, subscribed(plane.address, mine) as owner:
        assert assignment(owner).teachers[0].teacher_id == "t1"
        for theft in ({}, {"incarnation": 2}, {"secret": "guessed"}):
            with subscribed(plane.address, yours, **theft) as thief:
                assert end(thief) is Code.PERMISSION_DENIED
        assert owner.is_active()
        wait_until(lambda: plane.refused["forbidden"] == 3)


def test_the_same_start_needs_the_secret_of_its_stream(
    two_tokens: ServerSecurity, mine: ClientSecurity, yours: ClientSecurity
) -> None:
    with serving(two_tokens) as plane, subscribed(plane.address, mine) as owner:
        assignment(owner)
        secret = secret_of(owner)
        with subscribed(plane.address, mine) as without:
            assert end(without) is Code.PERMISSION_DENIED
        assert owner.is_active()
        # After an exchange of tokens the secret alone tells that it is still the same student.
        with subscribed(plane.address, yours, secret) as again:
            assert assignment(again).teachers[0].teacher_id == "t1"


def test_a_new_start_of_the_same_principal_supersedes(
    two_tokens: ServerSecurity, mine: ClientSecurity
) -> None:
    with serving(two_tokens) as plane, subscribed(plane.address, mine) as ghost:
        assignment(ghost)
        with subscribed(plane.address, mine, incarnation=2) as fresh:
            assert assignment(fresh).teachers[0].teacher_id == "t1"
            assert end(ghost) is Code.ALREADY_EXISTS


@pytest.mark.parametrize("method", ["Subscribe", "Status", "Drain", "Upgrade", "Deploy", "Watch"])
def test_calls_that_say_nothing_keep_nobody_out(method: str) -> None:
    calls = 100
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(TIMEOUT_S)
        yield from ()

    with serving(first_report_s=2.0) as plane, open_channel(plane.address) as channel:
        any_channel: Any = channel
        good = GoodStudent(plane.address)
        ask = any_channel.unary_unary(f"/{CONTROL}/Status")
        with served_throughout(good), served_throughout(lambda: ask(b"", timeout=TIMEOUT_S)):
            held = [
                any_channel.stream_stream(f"/{CONTROL}/{method}")(nothing()) for _ in range(calls)
            ]
            ended = {end(call) for call in held}
        over.set()
        good.close()
        assert ended <= {Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED}
        assert sum(plane.refused.values()) == calls


def test_a_term_of_the_far_future_locks_nobody_out() -> None:
    with serving() as plane:
        with subscribed(
            plane.address, None, student_id="liar/0", term=(1 << 62) - 1, counter=7
        ) as liar:
            assignment(liar)
            with subscribed(plane.address, None) as honest:
                told = assignment(honest)
        with subscribed(
            plane.address, None, incarnation=2, term=told.term, counter=told.counter
        ) as honest:
            assert assignment(honest).term < 1 << 60
