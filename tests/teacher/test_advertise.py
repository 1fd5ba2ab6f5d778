"""Where others reach a teacher."""

from __future__ import annotations

import socket

import pytest

from edl.errors import UsageError
from edl.teacher.advertise import advertised, split
from edl.teacher.config import PredictorConfig, ServerConfig, TeacherConfig


def address(advertise: str | None = None, host: str = "127.0.0.1") -> str:
    config = TeacherConfig("s", PredictorConfig("m"), ServerConfig(host), advertise=advertise)
    return advertised(config, 7000)


def test_it_is_what_was_bound_unless_something_else_is_said() -> None:
    assert address() == "127.0.0.1:7000"
    assert address(host="0.0.0.0") == f"{socket.gethostname()}:7000"
    assert address("gpu7") == "gpu7:7000"
    assert address("gpu7", host="0.0.0.0") == "gpu7:7000"


def test_a_proxy_or_translation_in_front_has_its_own_port() -> None:
    assert address("proxy.example:443") == "proxy.example:443"
    assert address("[2001:db8::7]:443") == "[2001:db8::7]:443"


@pytest.mark.parametrize("text", ["2001:db8::7", "[2001:db8::7]"])
def test_an_ipv6_address_without_a_port(text: str) -> None:
    assert split(text) == (text, 0)
    assert address(text) == "[2001:db8::7]:7000"


@pytest.mark.parametrize(
    ("own", "said", "told"),
    [
        ("10.1.2.3", "*.edl.pod", "10-1-2-3.edl.pod:7000"),
        ("fd00::1", "*.edl.pod:443", "fd00--1.edl.pod:443"),
        ("10.1.2.3", "a*.edl.pod", "a*.edl.pod:7000"),
    ],
)
def test_a_star_is_our_own_address_as_a_cluster_names_pods(
    own: str, said: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = [(0, 0, 0, "", ("127.0.1.1", 0)), (0, 0, 0, "", (own, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert address(said, host="0.0.0.0") == told


def test_a_star_is_the_address_of_the_kind_that_a_cluster_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = [(0, 0, 0, "", ("fd00::1", 0)), (0, 0, 0, "", ("10.1.2.3", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert address("*.edl.pod", host="0.0.0.0") == "10-1-2-3.edl.pod:7000"


def test_a_star_wants_an_address_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(0, 0, 0, "", ("127.0.1.1", 0)), (0, 0, 0, "", ("fe80::1%eth0", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(UsageError, match="none but loopback"):
        address("*.edl.pod")


@pytest.mark.parametrize("text", ["gpu7:", "gpu7:0", "gpu7:65536", "gpu7:http", ":443"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no address to advertise"):
        address(text)
