"""The page over TLS: certificates that are good, replaced, or of no use."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
import trustme

from edl.coordinator.web.server import WebServer
from edl.errors import UsageError
from edl.proto.security import TlsFiles

from .scripted_mesh import ScriptedMesh


def test_with_a_certificate_it_is_https(script: ScriptedMesh, tmp_path: Path) -> None:
    trusting = certify(tmp_path)
    page = WebServer(script, "0", tls=TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem"))
    url = page.start()
    try:
        assert url.startswith("https://")
        assert httpx.get(url, verify=trusting).status_code == 200
    finally:
        page.stop()


def certify(folder: Path, host: str = "127.0.0.1") -> ssl.SSLContext:
    """Write a new pair of a new CA; returns what trusts that CA alone."""
    authority = trustme.CA()
    pair = authority.issue_cert(host)
    pair.private_key_pem.write_to_path(folder / "key.new")
    (folder / "cert.new").write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
    (folder / "key.new").replace(folder / "key.pem")
    (folder / "cert.new").replace(folder / "cert.pem")
    return ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_certificate_that_was_replaced_is_offered_to_the_next(
    script: ScriptedMesh, tmp_path: Path, host: str
) -> None:
    trusting = certify(tmp_path, host)
    page = WebServer(script, "0", tls=TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem"))
    url = page.start().replace("127.0.0.1", host)
    try:
        assert httpx.get(url, verify=trusting).status_code == 200
        former, trusting = trusting, certify(tmp_path, host)
        assert httpx.get(url, verify=trusting).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, verify=former)
        (tmp_path / "key.pem").write_text("half a k")
        assert httpx.get(url, verify=trusting).status_code == 200, "the old pair serves until then"
        trusting = certify(tmp_path, host)
        assert httpx.get(url, verify=trusting).status_code == 200
    finally:
        page.stop()


def test_a_certificate_that_cannot_be_used_is_refused_at_once(
    script: ScriptedMesh, tmp_path: Path
) -> None:
    certify(tmp_path)
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(UsageError, match="cannot be used"):
        WebServer(script, "0", tls=TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem"))
