"""Real servers and channels: TLS, tokens, the rotation of both, certificates that end."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization as s
from prometheus_client import CollectorRegistry

from edl.proto.security.access_control import AccessControl
from edl.proto.security.certificates import (
    client_context,
    export_expiry,
    reloading_context,
    validity_of,
)
from edl.proto.security.client_connections import open_channel
from edl.proto.security.credentials import ClientSecurity, ServerSecurity, TlsFiles
from edl.proto.security.servers import listen
from edl.proto.status import to_status
from edl.runtime.errors import AccessError, AddressInUse, UsageError
from edl.tests.waiting import DEADLINE_S, wait_until

from .authority import Authority, write_secret


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "tokens", "student sss\nadmin aaa\n")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "token", "sss\n")


def handlers(answer: Callable[[grpc.ServicerContext], bytes]) -> Any:
    return grpc.method_handlers_generic_handler(
        "s",
        {
            "uu": grpc.unary_unary_rpc_method_handler(lambda _, c: answer(c)),
            "us": grpc.unary_stream_rpc_method_handler(lambda _, c: iter([answer(c)] * 2)),
            "su": grpc.stream_unary_rpc_method_handler(lambda r, c: answer(c) + b"".join(r)),
            "ss": grpc.stream_stream_rpc_method_handler(lambda r, c: (answer(c) for _ in r)),
        },
    )


@contextmanager
def serving(
    security: ServerSecurity | None, on_refused: Callable[[str], None] | None = None, **more: Any
) -> Iterator[str]:
    gate = AccessControl(security, on_refused, **more)

    def answer(context: grpc.ServicerContext) -> bytes:
        try:
            caller = gate.admit(
                context.invocation_metadata(), context.auth_context(), context.peer()
            )
        except AccessError as error:
            context.abort(*to_status(error))
        return str(caller).encode()

    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, handlers=[handlers(answer)])
        port = listen(server, "127.0.0.1:0", security, gate)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


def ask(address: str, security: ClientSecurity | None) -> bytes | grpc.StatusCode:
    with open_channel(address, security) as channel:
        return ask_again(channel)


def ask_again(channel: Any) -> bytes | grpc.StatusCode:
    try:
        answer: bytes = channel.unary_unary("/s/uu")(b"", timeout=DEADLINE_S)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return answer


def test_every_kind_of_call_bears_the_token(tokens: Path, token: Path) -> None:
    with (
        serving(ServerSecurity(None, tokens)) as address,
        open_channel(address, ClientSecurity(None, token)) as opened,
    ):
        channel: Any = opened
        call = channel.unary_unary("/s/uu")
        assert call(b"", metadata=(("edl-secret", "x"),), timeout=DEADLINE_S) == b"student"
        assert call.future(b"", timeout=DEADLINE_S).result() == b"student"
        assert list(channel.unary_stream("/s/us")(b"", timeout=DEADLINE_S)) == [b"student"] * 2
        assert channel.stream_unary("/s/su")(iter([b"x"]), timeout=DEADLINE_S) == b"studentx"
        answers = channel.stream_stream("/s/ss")(iter([b"x", b"y"]), timeout=DEADLINE_S)
        assert list(answers) == [b"student"] * 2


def test_calls_go_through_no_proxy(tokens: Path, token: Path, monkeypatch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with serving(ServerSecurity(None, tokens)) as address:
            assert ask(address, ClientSecurity(None, token)) == b"student"


def test_without_a_ca_a_server_asks_for_no_certificate(
    authority: Authority, tokens: Path, token: Path
) -> None:
    one_sided = replace(authority.issue("server"), ca=None)
    with serving(ServerSecurity(one_sided, tokens)) as address:
        assert ask(address, ClientSecurity(TlsFiles(ca=authority.ca), token)) == b"student"


def test_tls_refuses_unknown_clients_and_servers_and_counts_them(
    authority: Authority, tmp_path: Path
) -> None:
    client_files = authority.issue("client", "student:job")
    strange = Authority(tmp_path / "strange")
    stranger = strange.issue("client", "admin")
    refused: list[str] = []
    bad = [
        None,  # plaintext
        ClientSecurity(TlsFiles(ca=authority.ca)),  # no certificate
        ClientSecurity(replace(stranger, ca=authority.ca)),  # of another CA
        ClientSecurity(replace(client_files, ca=strange.ca)),  # which does not trust us
    ]
    good = ClientSecurity(client_files)
    with serving(
        ServerSecurity(authority.issue("server")), refused.append, patience_s=2.0
    ) as address:
        for security in bad:
            assert ask(address, security) is grpc.StatusCode.UNAVAILABLE
            assert ask(address, good) == b"student:job"
        with open_channel(address, good) as channel:
            wait_until(lambda: ask_again(channel) == b"student:job" and len(refused) == len(bad))
    assert refused == ["unauthenticated"] * len(bad)


def test_certificate_for_another_host(authority: Authority) -> None:
    client_files = authority.issue("client", "student:job")
    other = authority.issue("other", host="teacher.mesh")
    with serving(ServerSecurity(other)) as address:
        assert ask(address, ClientSecurity(client_files)) is grpc.StatusCode.UNAVAILABLE
        named = ClientSecurity(client_files, server_name="teacher.mesh")
        assert ask(address, named) == b"student:job"


def test_rotation(tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    mine = Authority(tmp_path / "mine")
    server, client = mine.issue("server"), mine.issue("client", "admin")
    refused_by = ClientSecurity(authority.issue("client2", "viewer"))
    with serving(ServerSecurity(server)) as address:
        assert ask(address, ClientSecurity(client)) == b"admin"
        assert ask(address, refused_by) is grpc.StatusCode.UNAVAILABLE
        # One file after the other, as it goes: until both belong together, the old pair serves.
        fresh = authority.issue("server2")
        old_ca = Path(shutil.copy(mine.ca, tmp_path / "copy.pem"))
        for name in ("certificate", "key", "ca"):
            shutil.copy(getattr(fresh, name), getattr(server, name))
            if name == "certificate":
                assert ask(address, ClientSecurity(replace(client, ca=old_ca))) == b"admin"
        assert ask(address, refused_by) == b"viewer"
    assert "does not belong to certificate" in caplog.text


def encrypt(key: Path) -> None:
    plain = s.load_pem_private_key(key.read_bytes(), None)
    encryption = s.BestAvailableEncryption(b"pw")
    key.write_bytes(plain.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, encryption))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: f.certificate.unlink(), r"^certificate .*x\.pem cannot be read: No such file"),
        (lambda f: f.key.unlink(), r"^key .*x\.key cannot be read: No such file"),
        (lambda f: f.key.write_text("x"), "is not in PEM form"),
        (lambda f: f.certificate.write_text("x"), "is not in PEM form"),
        (lambda f: f.ca.write_text("x"), r"CA .*ca\.pem is no certificate in PEM form"),
        (lambda f: f.ca.write_bytes(b"\xff"), r"CA .*ca\.pem is no certificate in PEM form"),
        (lambda f: f.ca.unlink(), r"CA .*ca\.pem cannot be read: No such file"),
        (
            lambda f: Authority(f.key.parent / "other").issue("y").key.rename(f.key),  # type: ignore[union-attr]
            r"key .*x\.key does not belong to certificate .*x",
        ),
        (lambda f: encrypt(f.key), "has a password"),
    ],
)
def test_unusable_files(tmp_path: Path, spoil: Callable[[TlsFiles], None], says: str) -> None:
    files = Authority(tmp_path / "own").issue("x")
    spoil(files)
    server, client = grpc.server(ThreadPoolExecutor(1)), ClientSecurity(files)
    for use in (
        lambda: listen(server, "127.0.0.1:0", ServerSecurity(files)),
        lambda: open_channel("127.0.0.1:1", client),
        lambda: reloading_context(files, ask_clients=True),
        lambda: client_context(client),
    ):
        with pytest.raises(UsageError, match=says):
            use()
    server.stop(0).wait()


def test_an_address_that_is_taken() -> None:
    with serving(None) as address:
        server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
        with pytest.raises(AddressInUse, match=address):
            listen(server, address)
        server.stop(0).wait()


# --- certificates that end


@pytest.mark.parametrize("ends", [datetime(2031, 5, 6, 7, 8, 9), datetime(2055, 1, 2, 3, 4, 5)])
def test_the_dates_are_those_of_the_first_certificate(tmp_path: Path, ends: datetime) -> None:
    begins, ends = datetime(2025, 2, 3, 4, 5, 6, tzinfo=UTC), ends.replace(tzinfo=UTC)
    made = trustme.CA().issue_cert("a.example", not_before=begins, not_after=ends)
    chain = trustme.CA().cert_pem.bytes()
    file = tmp_path / "cert.pem"
    file.write_bytes(b"subject=a\n" + made.cert_chain_pems[0].bytes() + chain)
    assert validity_of(file) == (begins.timestamp(), ends.timestamp())
    for text in ("", "x", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"):
        file.write_text(text)
        with pytest.raises(UsageError, match="holds no certificate"):
            validity_of(file)


def shown(context: ssl.SSLContext, ca: Path) -> str:
    """The certificate that a server of this context shows."""
    listener = socket.create_server(("127.0.0.1", 0))
    with context.wrap_socket(listener, server_side=True) as server, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(server.accept)
        certificate = ssl.get_server_certificate(server.getsockname(), ca_certs=str(ca))
        accepted.result(DEADLINE_S)[0].close()
    return certificate


def test_an_expired_certificate_is_not_loaded_and_the_old_one_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    files, client = authority.issue("server"), authority.issue("client", "admin")
    with serving(ServerSecurity(files)) as address:
        assert ask(address, ClientSecurity(client)) == b"admin"
        authority.issue("server", days=-1.0)
        assert ask(address, ClientSecurity(client)) == b"admin"
        assert "expired on" in caplog.text
        assert "stays in use" in caplog.text
        authority.issue("server")
        assert ask(address, ClientSecurity(client)) == b"admin"
    caplog.clear()
    context = reloading_context(files)
    before = shown(context, authority.ca)
    authority.issue("server", days=-1.0)
    assert shown(context, authority.ca) == before
    assert "expired on" in caplog.text
    with pytest.raises(UsageError, match="expired on"), serving(ServerSecurity(files)):
        raise AssertionError("it listens")


def test_no_session_outlives_the_authority_of_its_client(tmp_path: Path) -> None:
    """A resumed session shows no certificate, so none may be resumed."""
    authority = Authority(tmp_path / "ca")
    files, client = authority.issue("server"), authority.issue("client", "admin")
    context = reloading_context(files, ask_clients=True)
    asking = client_context(ClientSecurity(client))
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True) as one:
            one.sendall(one.recv(1))

    def ask_by(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        dialled = socket.create_connection(listener.getsockname(), DEADLINE_S)
        with asking.wrap_socket(dialled, session=session) as one:
            one.sendall(b"x")
            assert one.recv(1) in (b"x", b"")
            return one.session

    with listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(answer)
        session = ask_by(None)
        served.result(DEADLINE_S)
        Authority(tmp_path / "ca").issue("server")
        for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
            asking.maximum_version = version
            served = pool.submit(answer)
            with suppress(OSError):
                ask_by(session)
            with pytest.raises(ssl.SSLError):
                served.result(DEADLINE_S)


def test_of_a_bundle_the_authority_that_holds_for_longest_counts(tmp_path: Path) -> None:
    issued = [Authority(tmp_path / f"{days}").issue("server", days=days) for days in (3, 300)]
    files = [one.certificate for one in issued if one.certificate is not None]
    bundle = tmp_path / "bundle.pem"
    notes = "# autorité de l'équipe\n"
    bundle.write_text(notes + "".join(file.read_text() for file in files), "utf-8")
    assert [validity_of(bundle), validity_of(bundle, bundle=True)] == [*map(validity_of, files)]
    trusting = client_context(ClientSecurity(TlsFiles(ca=bundle)))
    assert trusting.cert_store_stats()["x509"] == 2


def test_metrics_tell_when_certificates_end(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").issue("server", days=10.0)
    assert files.certificate is not None
    registry = CollectorRegistry()

    def exported(which: str) -> tuple[float | None, ...]:
        names = (f"edl_certificate_{name}_timestamp_seconds" for name in ("start", "expiry"))
        return tuple(registry.get_sample_value(name, {"certificate": which}) for name in names)

    export_expiry(registry, None)
    assert exported("own") == (None, None)
    export_expiry(registry, ServerSecurity(files))
    assert exported("own") == validity_of(files.certificate)
    assert None not in exported("ca")
    files.certificate.write_text("half")
    assert exported("own") == (None, None)
