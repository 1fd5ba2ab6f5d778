"""Settings of both sides: what fits together, and what may listen or call where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.proto.security import (
    ClientSecurity,
    ServerSecurity,
    TlsFiles,
    check_exposure,
    is_loopback,
    open_channel,
)
from edl.proto.security.exposure import stays_here
from edl.proto.security.options import client_security, server_security

C, K, CA, T = Path("c"), Path("k"), Path("ca"), Path("t")


@pytest.mark.parametrize("given", [{"certificate": C}, {"key": K}, {"key": K, "ca": CA}])
def test_a_certificate_goes_with_its_key(given: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"without its (key|certificate): name both"):
        TlsFiles(**given)


@pytest.mark.parametrize(
    "security",
    [
        ClientSecurity(),
        ClientSecurity(TlsFiles(), None, "teacher"),
        ClientSecurity(TlsFiles(C, K, CA), T, "x", True),
    ],
)
def test_a_clients_settings_travel_as_json(security: ClientSecurity) -> None:
    assert ClientSecurity.from_json(json.loads(json.dumps(security.to_json()))) == security


@pytest.mark.parametrize(
    ("security", "asks"),
    [
        (ServerSecurity(), False),
        (ServerSecurity(TlsFiles(C, K)), False),
        (ServerSecurity(TlsFiles(C, K, CA)), True),
        (ServerSecurity(None, T), True),
        (ServerSecurity(TlsFiles(C, K), T), True),
    ],
)
def test_which_servers_ask_who_calls(security: ServerSecurity, asks: bool) -> None:
    assert security.authenticates is asks
    check_exposure("127.0.0.1", security, False)
    check_exposure("0.0.0.0", security, True)
    if asks:
        check_exposure("0.0.0.0", security, False)
    else:
        with pytest.raises(UsageError, match=r"the page on 0\.0\.0\.0 can be reached .*--insecure"):
            check_exposure("0.0.0.0", security, False, "the page")


def test_a_server_has_a_certificate() -> None:
    with pytest.raises(UsageError, match="needs a TLS certificate"):
        ServerSecurity(TlsFiles(ca=CA))


def test_what_options_come_to() -> None:
    assert client_security() is None
    assert server_security() is None
    assert client_security(CA) == ClientSecurity(TlsFiles(ca=CA))
    assert client_security(CA, C, K, T) == ClientSecurity(TlsFiles(C, K, CA), T)
    assert client_security(None, None, None, T) == ClientSecurity(None, T)
    assert server_security(C, K) == ServerSecurity(TlsFiles(C, K))
    assert server_security(C, K, CA, T) == ServerSecurity(TlsFiles(C, K, CA), T)
    assert server_security(tokens=T) == ServerSecurity(None, T)
    with pytest.raises(UsageError, match="--tls-cert and --tls-key beside it"):
        server_security(tls_ca=CA)


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_which_hosts_are_here(host: str, is_here: bool) -> None:
    assert is_loopback(host) is is_here


@pytest.mark.parametrize(
    ("address", "stays"),
    [
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("ipv4:127.0.0.1:80", True),
        ("dns:///localhost:80", True),
        ("unix:/tmp/socket", True),
        ("10.0.0.1:80", False),
        ("dns:///head:80", False),
        ("127.0.0.1.example:80", False),
        ("::2", False),
        ("head", False),
    ],
)
def test_a_token_stays_on_this_machine_or_is_encrypted(
    address: str, stays: bool, tmp_path: Path
) -> None:
    assert stays_here(address) is stays
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("abc")
    if stays:
        open_channel(address, ClientSecurity(None, token)).close()
    else:
        with pytest.raises(UsageError, match=r"unencrypted.*--tls-ca") as caught:
            open_channel(address, ClientSecurity(None, token))
        assert "abc" not in str(caught.value)
        assert "--insecure" not in str(caught.value), "no command of operators has it"
    open_channel(address, ClientSecurity(None, token, insecure=True)).close()
    open_channel(address, None).close()
