"""Certificates that end: their dates, servers that are given expired ones, hints."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from prometheus_client import CollectorRegistry

from edl.errors import UsageError
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles, reloading_context
from edl.proto.security.certificates import expiry_of, export_expiry, handshake_hint

from .authority import Authority
from .test_channels import ask, serving


@pytest.mark.parametrize("ends", [datetime(2031, 5, 6, 7, 8, 9), datetime(2055, 1, 2, 3, 4, 5)])
def test_the_dates_are_those_of_the_first_certificate(tmp_path: Path, ends: datetime) -> None:
    begins, ends = datetime(2025, 2, 3, 4, 5, 6, tzinfo=UTC), ends.replace(tzinfo=UTC)
    made = trustme.CA().issue_cert("a.example", not_before=begins, not_after=ends)
    chain = trustme.CA().cert_pem.bytes()
    file = tmp_path / "cert.pem"
    file.write_bytes(b"subject=a\n" + made.cert_chain_pems[0].bytes() + chain)
    assert expiry_of(file) == ends.timestamp()
    for text in ("", "x", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"):
        file.write_text(text)
        with pytest.raises(UsageError, match="holds no certificate"):
            expiry_of(file)


def _over_ssl(files: TlsFiles, change: Callable[[], None]) -> list[float]:
    """When the certificates end that a reloading context shows, before and after a change."""
    context, seen = reloading_context(files), []
    trusting = ssl.create_default_context(cafile=str(files.ca))

    def accept() -> None:
        for _ in range(2):
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as connection:
                connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        for number in range(2):
            if number:
                change()
            plain = socket.create_connection(listener.getsockname())
            with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                shown = connection.getpeercert() or {}
                seen.append(float(ssl.cert_time_to_seconds(str(shown["notAfter"]))))
        thread.join(20.0)
    return seen


TWO = (("soon", 3.0), ("later", 300.0))


def test_an_expired_certificate_is_not_loaded_and_the_old_one_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    files, client = authority.issue("server"), authority.issue("client", "admin")

    def replace() -> None:
        authority.issue("server", days=-1.0)

    with serving(ServerSecurity(files)) as address:
        assert ask(address, ClientSecurity(client)) == b"admin"
        replace()
        assert ask(address, ClientSecurity(client)) == b"admin"
        said = "expired on"
        assert said in caplog.text
        assert "stays in force" in caplog.text
        authority.issue("server")
        assert ask(address, ClientSecurity(client)) == b"admin"
    caplog.clear()
    first, second = _over_ssl(files, replace)
    assert first == second
    assert said in caplog.text
    with pytest.raises(UsageError, match=said), serving(ServerSecurity(files)):
        raise AssertionError("it listens")


def test_of_a_bundle_the_authority_that_holds_for_longest_counts(tmp_path: Path) -> None:
    soon, later = (Authority(tmp_path / name).issue("server", days=d) for name, d in TWO)
    files = [one.certificate for one in (soon, later)]
    assert files[0] is not None
    assert files[1] is not None
    bundle = tmp_path / "bundle.pem"
    notes = "# autorité de l'équipe\n"
    bundle.write_text(notes + "".join(file.read_text() for file in files if file), "utf-8")
    assert expiry_of(bundle) == expiry_of(files[0])
    assert expiry_of(bundle, bundle=True) == expiry_of(files[1])


def test_metrics_tell_when_certificates_end(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").issue("server", days=10.0)
    assert files.certificate is not None
    registry, name = CollectorRegistry(), "edl_certificate_expiry_timestamp_seconds"
    export_expiry(registry, None)
    assert registry.get_sample_value(name, {"certificate": "own"}) is None
    export_expiry(registry, ServerSecurity(files))
    ends_s = registry.get_sample_value(name, {"certificate": "own"})
    assert ends_s == expiry_of(files.certificate)
    assert registry.get_sample_value(name, {"certificate": "ca"}) is not None
    files.certificate.write_text("half")
    assert registry.get_sample_value(name, {"certificate": "own"}) is None


def test_each_kind_of_failed_handshake_has_its_own_hint() -> None:
    hints = [
        handshake_hint(text)
        for text in (
            "SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            "certificate verify failed: certificate is not yet valid (_ssl.c:1006)",
            "Custom verification check failed: Hostname Verification Check failed.",
            "certificate verify failed: unable to get local issuer certificate (_ssl.c:1006)",
        )
    ]
    assert all(hints)
    assert len(set(hints)) == len(hints)
    assert handshake_hint("Hostname mismatch, certificate is not valid for 'a'.") == hints[2]
    assert handshake_hint("IP address mismatch, certificate is not valid for '::1'.") == hints[2]
    assert "of a DistilReader" in hints[3]
    assert "?ssl_ca_certs=FILE" in handshake_hint("self-signed certificate", "?ssl_ca_certs=FILE")
    assert handshake_hint("Connection refused") == ""
