"""The gate: who calls, by token and certificate, what it may, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import Forbidden, Unauthenticated, UsageError
from edl.proto.security import Caller, Gate, ServerSecurity, TlsFiles
from edl.proto.security.roles import caller_of_certificate

from .authority import write_secret

MUTUAL = TlsFiles(Path("c.pem"), Path("k.pem"), Path("ca.pem"))
ONE_SIDED = TlsFiles(Path("c.pem"), Path("k.pem"))
Metadata = tuple[tuple[str, str], ...]


def bearing(token: str) -> Metadata:
    return (("user-agent", "x"), ("authorization", f"Bearer {token}"))


def shown(common_name: str) -> dict[str, list[bytes]]:
    return {"transport_security_type": [b"ssl"], "x509_common_name": [common_name.encode()]}


class Refusals(list[str]):
    """What a gate counted."""


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "tokens", "sss\nstudent:job jjj\nviewer vvv\nadmin aaa\n")


@pytest.mark.parametrize("security", [None, ServerSecurity(), ServerSecurity(ONE_SIDED)])
def test_who_asks_nobody_lets_everybody_do_everything(security: ServerSecurity | None) -> None:
    gate = Gate(security)
    caller = gate.admit((), {})
    assert not gate.authenticates
    assert caller.role == "admin"
    assert gate.bearer(None) == gate.bearer("whatever") == caller
    gate.require(caller, "student")
    gate.require_student(caller, "any/0")


def test_a_token_says_who_calls(tokens: Path, refusals: Refusals) -> None:
    gate = Gate(ServerSecurity(None, tokens), refusals.append)
    assert gate.authenticates
    assert str(gate.admit(bearing("jjj"), {})) == "student:job"
    assert str(gate.admit((("authorization", "bearer aaa"),), None)) == "admin"
    assert str(gate.bearer("vvv")) == "viewer"
    assert not refusals


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        bearing("wrong"),
        bearing(""),
        (("authorization", "Basic sss"),),
        (("authorization", "sss"),),
        (("authorization", b"Bearer sss"),),
        (("authorization-bin", "Bearer sss"),),
    ],
)
def test_whoever_shows_no_known_token_is_refused(
    tokens: Path, refusals: Refusals, metadata: Metadata
) -> None:
    gate = Gate(ServerSecurity(None, tokens), refusals.append)
    with pytest.raises(Unauthenticated) as caught:
        gate.admit(metadata, shown("admin"))
    assert refusals == ["unauthenticated"]
    assert "sss" not in str(caught.value)
    assert "wrong" not in str(caught.value).replace("it is wrong", "")


@pytest.mark.parametrize(
    ("common_name", "role", "name"),
    [
        ("admin", "admin", ""),
        ("admin:ann", "admin", "ann"),
        ("student", "student", ""),
        ("student:resnet", "student", "resnet"),
        ("viewer:grafana", "viewer", "grafana"),
        ("trainer-7.example", "student", "trainer-7.example"),
        ("root:x", "student", "root:x"),
        ("admin:", "student", "admin:"),
        ("Admin", "student", "Admin"),
    ],
)
def test_a_certificate_says_who_calls(common_name: str, role: str, name: str) -> None:
    caller = Gate(ServerSecurity(MUTUAL)).admit((), shown(common_name))
    assert (caller.role, caller.name) == (role, name)
    assert caller == caller_of_certificate(common_name)


@pytest.mark.parametrize("context", [{}, None, shown(""), {"x509_common_name": [b"a", b"b"]}])
def test_a_certificate_must_name_one(
    refusals: Refusals, context: dict[str, list[bytes]] | None
) -> None:
    gate = Gate(ServerSecurity(MUTUAL), refusals.append)
    with pytest.raises(Unauthenticated, match="names nobody"):
        gate.admit(bearing("aaa"), context)
    assert refusals == ["unauthenticated"]


def test_tokens_and_certificates_are_both_demanded_and_the_token_decides(
    tokens: Path, refusals: Refusals
) -> None:
    gate = Gate(ServerSecurity(MUTUAL, tokens), refusals.append)
    assert str(gate.admit(bearing("sss"), shown("admin"))) == "student"
    with pytest.raises(Unauthenticated):
        gate.admit((), shown("admin"))
    with pytest.raises(Unauthenticated):
        gate.admit(bearing("aaa"), {})
    assert len(refusals) == 2


def test_http_has_no_certificates(refusals: Refusals) -> None:
    with pytest.raises(Unauthenticated, match="certificates only"):
        Gate(ServerSecurity(MUTUAL), refusals.append).bearer("abc")
    assert refusals == ["unauthenticated"]


@pytest.mark.parametrize(
    ("role", "for_role", "passes"),
    [
        ("student", "student", True),
        ("student", "viewer", False),
        ("student", "admin", False),
        ("viewer", "student", False),
        ("viewer", "viewer", True),
        ("viewer", "admin", False),
        ("admin", "student", True),
        ("admin", "viewer", True),
        ("admin", "admin", True),
    ],
)
def test_what_each_role_may(role: str, for_role: str, passes: bool, refusals: Refusals) -> None:
    gate = Gate(None, refusals.append)
    caller = Caller(role, "", "p")
    if passes:
        gate.require(caller, for_role)
        assert not refusals
    else:
        with pytest.raises(Forbidden, match=f"for {for_role}s; .* is a {role}'s"):
            gate.require(caller, for_role)
        assert refusals == ["forbidden"]


@pytest.mark.parametrize(
    ("caller", "student_id", "passes"),
    [
        (Caller("student", "", "p"), "any/0", True),
        (Caller("student", "job", "p"), "job/0", True),
        (Caller("student", "job", "p"), "job2/0", False),
        (Caller("student", "job", "p"), "job", False),
        (Caller("student", "job", "p"), "", False),
        (Caller("viewer", "", "p"), "job/0", False),
        (Caller("admin", "ann", "p"), "job/0", True),
    ],
)
def test_whose_students_a_credential_may_be(
    caller: Caller, student_id: str, passes: bool, refusals: Refusals
) -> None:
    gate = Gate(None, refusals.append)
    if passes:
        gate.require_student(caller, student_id)
    else:
        with pytest.raises(Forbidden):
            gate.require_student(caller, student_id)
    assert refusals == ([] if passes else ["forbidden"])


def test_tokens_are_given_and_withdrawn_while_it_runs(tokens: Path, refusals: Refusals) -> None:
    gate = Gate(ServerSecurity(None, tokens), refusals.append)
    write_secret(tokens, "student new")
    assert gate.bearer("new").role == "student"
    with pytest.raises(Unauthenticated):
        gate.bearer("sss")


def test_a_list_that_cannot_be_used_stops_the_start_and_not_the_service(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(ServerSecurity(None, tokens))
    tokens.chmod(0o644)
    assert gate.bearer("sss").role == "student"
    assert gate.bearer("aaa").role == "admin"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"{tokens} holds secrets and its mode is 0644, which lets others in: chmod 600 {tokens}; "
        "what was read before stays in force"
    ]
    with pytest.raises(UsageError, match="chmod 600"):
        Gate(ServerSecurity(None, tokens))


def test_no_repr_shows_a_secret(tokens: Path) -> None:
    gate = Gate(ServerSecurity(MUTUAL, tokens))
    gate.bearer("aaa")
    assert repr(gate) == "Gate(certificates and tokens)"
    assert repr(Gate(None)) == "Gate(open)"
    assert not any(token in repr(vars(gate)) for token in ("sss", "jjj", "vvv", "aaa"))
