"""Certificates that end: their dates, servers that are given expired ones, hints."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from prometheus_client import CollectorRegistry

from edl.errors import UsageError
from edl.proto.security import ClientSecurity, ServerSecurity, reloading_context
from edl.proto.security.certificates import expiry_of, export_expiry

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


def shown(context: ssl.SSLContext, ca: Path) -> str:
    """The certificate that a server of this context shows."""
    listener = socket.create_server(("127.0.0.1", 0))
    with context.wrap_socket(listener, server_side=True) as server, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(server.accept)
        certificate = ssl.get_server_certificate(server.getsockname(), ca_certs=str(ca))
        accepted.result(20.0)[0].close()
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
        assert "stays in force" in caplog.text
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


def test_of_a_bundle_the_authority_that_holds_for_longest_counts(tmp_path: Path) -> None:
    issued = [Authority(tmp_path / f"{days}").issue("server", days=days) for days in (3, 300)]
    files = [one.certificate for one in issued if one.certificate is not None]
    bundle = tmp_path / "bundle.pem"
    notes = "# autorité de l'équipe\n"
    bundle.write_text(notes + "".join(file.read_text() for file in files), "utf-8")
    assert [expiry_of(bundle), expiry_of(bundle, bundle=True)] == [*map(expiry_of, files)]


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
