"""`edl doctor`: what it finds about Redis, a manager, and teachers."""

from __future__ import annotations

import socket

import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.ops import doctor
from edl.coordinator.ops.reaching import refusal
from edl.proto import coordinator_pb2 as pb
from edl.tests.coordinator.scripted_manager import served


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "http://127.0.0.1:{}", "http://127.0.0.1:{}/a"])
def test_a_listener_is_reached_by_whatever_address(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(server.getsockname()[1])
        assert refusal(address) == ""
    assert refusal(address)
    assert "no host:port" in refusal("here")
    assert "refused" in refusal("http://127.0.0.1:9")


def test_foreign_servers_are_named_with_what_they_speak() -> None:
    with served() as mesh, socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        near = pb.Teacher(
            teacher_id="a", address=address, voucher=address, protocol="oip", verified="canary"
        )
        far = pb.Teacher(
            teacher_id="b", address=f"http://{address}", voucher="127.0.0.1:9", protocol="oip"
        )
        service = pb.ServiceStatus(name="s", teacher_count=2, teachers=[near, far])
        mesh.manager.mesh = pb.MeshStatus(services=[service])
        found = list(doctor.examine(mesh.url, lambda: None))
    told = [(one.level, one.about) for one in found if "foreign" in one.text or "reach" in one.text]
    assert told == [("well", "service s"), ("doubt", "teacher b"), ("well", "service s")]
    assert any("(oip), 1 of them compared with a canary" in one.text for one in found)


@pytest.mark.parametrize(
    ("info", "level", "text"),
    [
        ({}, "well", "valkey 8.1.3"),
        ({"role": "slave"}, "wrong", "valkey 8.1.3 is a slave"),
        ({"maxmemory_policy": "allkeys-lru"}, "doubt", "valkey 8.1.3 throws keys away"),
    ],
)
def test_redis_is_named_with_its_version(
    info: dict[str, str], level: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"server_name": "valkey", "version": "8.1.3", "role": "master", **info}
    registry = MemoryRegistry()
    monkeypatch.setattr(registry, "server_info", lambda: said)
    monkeypatch.setattr(doctor, "connect", lambda url: registry)
    found = list(doctor.examine("redis://here:6379", lambda: None))
    assert any(one.level == level and one.text.startswith(text) for one in found), found
