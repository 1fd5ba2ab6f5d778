"""`edl doctor`: what it says of Redis, from what a registry says of itself."""

from __future__ import annotations

import socket

import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.ops import doctor
from edl.coordinator.ops.findings import Finding
from edl.coordinator.ops.reaching import refusal
from edl.proto import coordinator_pb2 as pb


class Described(MemoryRegistry):
    """A registry that says what it is, as Redis does."""

    def __init__(self, **info: str) -> None:
        super().__init__()
        self._info = {
            "server_name": "valkey",
            "version": "8.1.3",
            "role": "master",
            "maxmemory_policy": "noeviction",
            **info,
        }

    def server_info(self) -> dict[str, str]:
        return self._info


def findings_about(registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(doctor, "connect", lambda url: registry)
    return list(doctor.examine("redis://here:6379", lambda: None))


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "http://127.0.0.1:{}", "http://127.0.0.1:{}/a"])
def test_whoever_listens_is_reached_by_whatever_address(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(server.getsockname()[1])
        assert refusal(address) == ""
    assert refusal(address)
    assert "no host:port" in refusal("here")
    assert "refused" in refusal("http://127.0.0.1:9")


def test_foreign_servers_are_named_with_what_they_speak() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        near = pb.Teacher(
            teacher_id="a", address=address, voucher=address, protocol="oip", verified="canary"
        )
        far = pb.Teacher(
            teacher_id="b", address=f"http://{address}", voucher="127.0.0.1:9", protocol="oip"
        )
        found = list(doctor._teachers(pb.ServiceStatus(name="s", teachers=[near, far])))
    assert [(one.level, one.about) for one in found] == [
        ("well", "service s"), ("doubt", "teacher b"), ("well", "service s"),
    ]  # fmt: skip
    assert "2 foreign servers (oip), 1 of them compared with a canary" in found[0].text


@pytest.mark.parametrize(
    ("info", "level", "text"),
    [
        ({}, "well", "valkey 8.1.3"),
        ({"server_name": "redis", "version": "7.2.4"}, "well", "redis 7.2.4"),
        ({"role": "slave"}, "wrong", "valkey 8.1.3 is a slave"),
        ({"maxmemory_policy": "allkeys-lru"}, "doubt", "valkey 8.1.3 throws keys away"),
    ],
)
def test_redis_is_named_with_its_version(
    info: dict[str, str], level: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings_about(Described(**info), monkeypatch)
    assert any(one.level == level and one.text.startswith(text) for one in found), found
