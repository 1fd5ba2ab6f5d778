"""Who may ask over HTTP: certificates, tokens, and what is never sent in the clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import (
    AccessError,
    EdlError,
    TeacherLost,
    UsageError,
)
from edl.proto.clients.oip_http import OipHttpClient
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles
from edl.tests.foreign_server import MODEL
from edl.tests.proto.clients.test_oip_http import WAIT_S
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.bench_http import url_of


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_certificates_and_tokens(authority: Authority, tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student good-token\n")
    token = write_secret(tmp_path / "token", "good-token\n")
    bench = Bench(http="0", security=ServerSecurity(authority.issue("teacher"), tokens))
    files = authority.issue("student", "student:job")
    url = url_of(bench.server)
    assert url.startswith("https://")
    try:
        client = OipHttpClient(url, "resnet", ClientSecurity(files, token))
        assert client.probe(WAIT_S).inputs
        client.close()
        _refused(url, ClientSecurity(files, write_secret(tmp_path / "bad", "bad\n")), AccessError)
        _refused(url, None, TeacherLost)  # it is not signed by anybody this machine knows
        stranger = Authority(tmp_path / "other").issue("student", "student:job")
        _refused(url, ClientSecurity(stranger, token), TeacherLost)
        named = ClientSecurity(TlsFiles(files.certificate, files.key, files.ca), token, "elsewhere")
        _refused(url, named, TeacherLost)
    finally:
        bench.close()


def test_nothing_secret_goes_in_the_clear(authority: Authority, tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", "good-token\n")
    for security in (ClientSecurity(None, token), ClientSecurity(TlsFiles(ca=authority.ca))):
        with pytest.raises(UsageError, match="not encrypted"):
            OipHttpClient("http://192.0.2.1:8000", MODEL, security)
        OipHttpClient("http://127.0.0.1:8000", MODEL, security).close()
        OipHttpClient("https://192.0.2.1:8000", MODEL, security).close()
    trusted = ClientSecurity(None, token, insecure=True)
    OipHttpClient("http://192.0.2.1:8000", MODEL, trusted).close()


def _refused(url: str, security: ClientSecurity | None, error: type[EdlError]) -> None:
    client = OipHttpClient(url, "resnet", security)
    try:
        with pytest.raises(error):
            client.probe(WAIT_S)
    finally:
        client.close()
