"""Callers with no credential, a wrong one, or one for something else, at both planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles, open_channel
from edl.tests.ground.programs import wait_for
from edl.tests.hostile.good_client import served_throughout
from edl.tests.hostile.inputs import Input, report
from edl.tests.hostile.planes import CONTROL, DATA, Code, ControlPlane, GoodStudent, ends_of
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import Bench

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
            assert set(ends(address, wrong, service, *[call] * 500)) == {NOT_KNOWN}
    good.close()
    assert control.refused == {"unauthenticated": 500}
    assert data.refused("unauthenticated") == 500


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

    wait_for(all_counted)


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
