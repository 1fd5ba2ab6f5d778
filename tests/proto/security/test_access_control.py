"""Who may call: tokens, certificates, roles, and the settings of both sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edl.proto.dataclass_json import from_plain, to_plain
from edl.proto.security.access_control import AccessControl, Caller, read_token, read_tokens
from edl.proto.security.certificates import Reloaded
from edl.proto.security.client_connections import open_channel
from edl.proto.security.credentials import (
    ClientSecurity,
    ServerSecurity,
    TlsFiles,
    is_local_address,
)
from edl.proto.security.options import (
    TLS,
    client_security,
    server_security,
    tls_files,
    tls_words,
)
from edl.runtime.errors import Forbidden, Unauthenticated, UsageError

from .authority import write_secret

MUTUAL = TlsFiles(Path("c.pem"), Path("k.pem"), Path("ca.pem"))
ONE_SIDED = TlsFiles(Path("c.pem"), Path("k.pem"))
Metadata = tuple[tuple[str, str], ...]


def bearing(token: str) -> Metadata:
    return (("user-agent", "x"), ("authorization", f"Bearer {token}"))


def shown(common_name: str) -> dict[str, list[bytes]]:
    return {"transport_security_type": [b"ssl"], "x509_common_name": [common_name.encode()]}


@pytest.fixture
def refusals() -> list[str]:
    return []


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    text = "# who may call\nsss\n\nstudent:job  jjj   # only that job\nviewer vvv\nadmin:ann qqq\n"
    return write_secret(tmp_path / "tokens", text)


@pytest.mark.parametrize("security", [None, ServerSecurity(), ServerSecurity(ONE_SIDED)])
def test_open_gate_admits_everybody_as_admin(security: ServerSecurity | None) -> None:
    gate = AccessControl(security)
    caller = gate.admit((), {})
    assert not gate.authenticates
    assert caller.role == "admin"
    assert gate.bearer(None) == gate.bearer("whatever") == caller
    gate.require(caller, "student")
    gate.require_student(caller, "any/0")


def test_token_names_the_caller(tokens: Path, refusals: list[str]) -> None:
    gate = AccessControl(ServerSecurity(None, tokens), refusals.append)
    assert gate.authenticates
    assert str(gate.admit(bearing("jjj"), {})) == "student:job"
    assert str(gate.admit((("authorization", "bearer qqq"),), None)) == "admin:ann"
    assert [str(gate.bearer(token)) for token in ("sss", "vvv")] == ["student", "viewer"]
    assert not refusals


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        *map(bearing, ["wrong", "", "ss", "Sss", "student:job", "#", "\ud800", "é"]),
        (("authorization", "Basic sss"),),
        (("authorization", "sss"),),
        (("authorization", b"Bearer sss"),),
        (("authorization-bin", "Bearer sss"),),
    ],
)
def test_invalid_tokens_are_refused(tokens: Path, refusals: list[str], metadata: Metadata) -> None:
    gate = AccessControl(ServerSecurity(None, tokens), refusals.append)
    with pytest.raises(Unauthenticated) as caught:
        gate.admit(metadata, shown("admin"))
    assert refusals == ["unauthenticated"]
    assert "sss" not in str(caught.value)
    assert "wrong" not in str(caught.value).replace("it is wrong", "")


@pytest.mark.parametrize(
    ("named", "role", "name"),
    [
        ("admin", "admin", ""),
        ("admin:ann", "admin", "ann"),
        ("student:resnet", "student", "resnet"),
        ("viewer:grafana", "viewer", "grafana"),
        # Without a role it is a student's.
        *((named, "student", named) for named in ("t7.example", "root:x", "admin:", "Admin")),
    ],
)
def test_certificate_names_the_caller(named: str, role: str, name: str) -> None:
    caller = AccessControl(ServerSecurity(MUTUAL)).admit((), shown(named))
    assert (caller.role, caller.name) == (role, name)


@pytest.mark.parametrize("context", [{}, None, shown(""), {"x509_common_name": [b"a", b"b"]}])
def test_certificate_names_one(refusals: list[str], context: dict[str, list[bytes]] | None) -> None:
    gate = AccessControl(ServerSecurity(MUTUAL), refusals.append)
    with pytest.raises(Unauthenticated, match="no single CN"):
        gate.admit(bearing("qqq"), context)
    assert refusals == ["unauthenticated"]


def test_token_beside_certificate_decides(tokens: Path, refusals: list[str]) -> None:
    gate = AccessControl(ServerSecurity(MUTUAL, tokens), refusals.append)
    assert str(gate.admit(bearing("sss"), shown("admin"))) == "student"
    with pytest.raises(Unauthenticated):
        gate.admit((), shown("admin"))
    with pytest.raises(Unauthenticated):
        gate.admit(bearing("qqq"), {})
    assert len(refusals) == 2


def test_http_has_no_certificates(refusals: list[str]) -> None:
    with pytest.raises(Unauthenticated, match="certificates only"):
        AccessControl(ServerSecurity(MUTUAL), refusals.append).bearer("abc")
    assert refusals == ["unauthenticated"]


@pytest.mark.parametrize("for_role", ["student", "viewer", "admin"])
@pytest.mark.parametrize("role", ["student", "viewer", "admin"])
def test_what_each_role_may(role: str, for_role: str, refusals: list[str]) -> None:
    gate, caller = AccessControl(None, refusals.append), Caller(role, "", "p")
    if role in (for_role, "admin"):
        gate.require(caller, for_role)
        assert not refusals
    else:
        with pytest.raises(Forbidden, match=f"for {for_role}s; .* has the role {role}"):
            gate.require(caller, for_role)
        assert refusals == ["forbidden"]


def test_credential_limits_student_ids(refusals: list[str]) -> None:
    gate = AccessControl(None, refusals.append)
    job = Caller("student", "job", "p")
    gate.require_student(Caller("student", "", "p"), "any/0")
    gate.require_student(job, "job/0")
    gate.require_student(Caller("admin", "ann", "p"), "job/0")
    assert not refusals
    others = [(job, "job2/0"), (job, "job"), (job, ""), (Caller("viewer", "", "p"), "job/0")]
    for caller, student_id in others:
        with pytest.raises(Forbidden):
            gate.require_student(caller, student_id)
    assert refusals == ["forbidden"] * len(others)


def test_tokens_are_given_and_withdrawn_while_it_runs(tokens: Path, refusals: list[str]) -> None:
    gate = AccessControl(ServerSecurity(None, tokens), refusals.append)
    write_secret(tokens, "student new")
    assert gate.bearer("new").role == "student"
    with pytest.raises(Unauthenticated):
        gate.bearer("sss")


def test_unusable_list_stops_only_a_start(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = AccessControl(ServerSecurity(None, tokens))
    tokens.chmod(0o644)
    assert gate.bearer("sss").role == "student"
    assert gate.bearer("qqq").role == "admin"
    assert [record.levelname for record in caplog.records] == ["ERROR"], "it is said once"
    with pytest.raises(UsageError, match="chmod 600"):
        AccessControl(ServerSecurity(None, tokens))


def test_no_repr_shows_a_secret(tokens: Path) -> None:
    gate = AccessControl(ServerSecurity(MUTUAL, tokens))
    gate.bearer("qqq")
    shown = f"{gate!r} {vars(gate)!r}"
    assert not any(token in shown for token in ("sss", "jjj", "vvv", "qqq"))


def test_a_name_is_the_principal_and_else_the_token_is(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "t", "one\ntwo\nstudent:a old\nstudent:a new\n")
    found = [read_tokens(path).find(token) for token in ("one", "two", "old", "new")]
    one, two, old, new = (caller.principal for caller in found if caller is not None)
    assert one != two
    assert old == new == "student:a"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no token in it"),
        ("# nothing\n\n", "has no token in it"),
        ("student a b", "line 1 .* has 3 words"),
        ("x\nroot abc", "line 2 .*first word is no role: write one of student, viewer, admin"),
        ("abc admin", "line 1 .*first word is no role"),
        ("admin abc#def", "line 1 .*a # within a word"),
        ("student: abc", "no name behind the colon"),
        ("abc\nadmin abc", "line 2 .*repeats a token"),
        ("a" * 5000, "more than 4096 characters"),
        ("a\x01b", "control character"),
        ("clé", "not ASCII"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read_tokens(write_secret(tmp_path / "tokens", text))
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o606, 0o620, 0o602])
@pytest.mark.parametrize("read", [read_tokens, read_token])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int, read: object) -> None:
    path = write_secret(tmp_path / "tokens", "abc")
    path.chmod(mode)
    with pytest.raises(UsageError, match=rf"mode is {mode:04o}.*chmod 600 {path}"):
        read(path)  # type: ignore[operator]


def test_the_file_that_was_opened_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, later = (write_secret(tmp_path / name, "abc") for name in ("tokens", "later"))
    path.chmod(0o644)
    really_open = Path.open

    def replaced_meanwhile(self: Path, mode: str) -> object:
        file = really_open(self, mode)
        later.replace(path)
        return file

    monkeypatch.setattr(Path, "open", replaced_meanwhile)
    with pytest.raises(UsageError, match="mode is 0644"):
        read_token(path)


def test_a_client_has_one_token_in_a_file_of_its_own(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "token", " abc\n")
    for mode in (0o600, 0o400, 0o440):
        path.chmod(mode)
        assert read_token(path) == "abc"
    for text in ("", "admin abc"):
        with pytest.raises(UsageError, match="must hold one token"):
            read_token(write_secret(path, text))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for read in (read_token, read_tokens):
        with pytest.raises(UsageError, match=r"absent cannot be read: No such file"):
            read(tmp_path / "absent")
        with pytest.raises(UsageError, match=r"cannot be read: Is a directory"):
            read(tmp_path)


C, K, CA, T = Path("c"), Path("k"), Path("ca"), Path("t")


@pytest.mark.parametrize("given", [{"certificate": C}, {"key": K}, {"key": K, "ca": CA}])
def test_a_certificate_goes_with_its_key(given: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"without its (key|certificate): name both"):
        TlsFiles(**given)


def test_a_clients_settings_travel_as_json() -> None:
    for security in (ClientSecurity(), ClientSecurity(TlsFiles(C, K, CA), T, "x", True)):
        assert from_plain(ClientSecurity, json.loads(json.dumps(to_plain(security)))) == security


def test_what_options_come_to() -> None:
    assert client_security(TlsFiles()) is None
    assert server_security(TlsFiles()) is None
    for files in (TlsFiles(ca=CA), TlsFiles(C, K, CA)):
        assert client_security(files) == ClientSecurity(files)
        assert client_security(files, T) == ClientSecurity(files, T)
    assert client_security(TlsFiles(), T) == ClientSecurity(None, T)
    for files in (TlsFiles(C, K), TlsFiles(C, K, CA)):
        assert server_security(files) == ServerSecurity(files)
        assert server_security(files, T) == ServerSecurity(files, T)
    assert server_security(TlsFiles(), T) == ServerSecurity(None, T)
    with pytest.raises(UsageError, match="needs a certificate: --tls cert=FILE,key=FILE"):
        server_security(TlsFiles(ca=CA))


def test_files_are_of_the_option_and_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.delenv(f"EDL_TLS_{name}", raising=False)
    assert tls_files(None) == TlsFiles()
    files = TlsFiles(C, K, CA)
    (word,) = tls_words(files)
    assert tls_files([TLS(word.removeprefix("--tls="))]) == files
    assert tls_words(TlsFiles()) == []
    with pytest.raises(UsageError, match="without its key"):
        tls_files([TLS(f"cert={C}")])
    monkeypatch.setenv("EDL_TLS_KEY", str(K))
    assert tls_files([TLS(f"cert={C}")]) == TlsFiles(C, K)


HERE = "127.0.0.1:80 127.9.9.9:80 [::1]:80 ::1 localhost:80 localhost"
AWAY = "0.0.0.0:80 [::]:80 10.0.0.1:80 dns:///head:80 127.0.0.1.example:80 ::2 ::1:80 head"


@pytest.mark.parametrize("address", [*HERE.split(), *AWAY.split()])
def test_a_token_stays_on_this_machine_or_is_encrypted(address: str, tmp_path: Path) -> None:
    stays = address not in AWAY.split()
    assert is_local_address(address) is stays
    token = write_secret(tmp_path / "token", "abc")
    if stays:
        open_channel(address, ClientSecurity(None, token)).close()
    else:
        with pytest.raises(UsageError, match=r"unencrypted.*--tls ca=FILE") as caught:
            open_channel(address, ClientSecurity(None, token))
        assert "abc" not in str(caught.value)
        assert "--insecure" not in str(caught.value), "no command of operators has it"
    open_channel(address, ClientSecurity(None, token, insecure=True)).close()
    open_channel(address, None).close()


def test_files_that_could_not_be_read_are_read_again(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a token is withdrawn while the process has no descriptors left."""
    clock, problem = [0.0], ""

    def load() -> str:
        if problem:
            raise UsageError(problem)
        return tokens.read_text()

    reloaded = Reloaded((tokens,), load, clock=lambda: clock[0])
    former = reloaded.current()
    write_secret(tokens, "admin:ann qqq\n")
    problem = "too many open files"
    for clock[0] in (1.0, 1.5, 3.0, 5.0):
        assert reloaded.current() == former
    assert caplog.text.count(f"{problem}; the previous content stays in use") == 1
    problem = ""
    assert reloaded.current() == former, "not with every call"
    clock[0] = 7.0
    assert reloaded.current() == "admin:ann qqq\n"
    write_secret(tokens, "viewer vvv\n")
    assert reloaded.current() == "viewer vvv\n"
