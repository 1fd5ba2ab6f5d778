"""`edl doctor`: what it finds about Redis, a manager, and teachers."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from edl.coordinator import Registry
from edl.coordinator.ops import doctor
from edl.coordinator.ops.doctor import connection_problem
from edl.coordinator.store.memory_store import MemoryStore
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.credentials import ClientSecurity, ServerSecurity, TlsFiles
from edl.tests.coordinator.scripted_manager import served
from edl.tests.system.redis_servers import TlsProxy
from edl.tests.waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ANSWER_S", DEADLINE_S)


def test_a_listener_is_reached_by_whatever_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        for address in (here, f"http://{here}", f"http://{here}/a"):
            assert connection_problem(address) == ""
    assert "refused" in connection_problem(f"http://{here}")
    assert "names no host and port" in connection_problem("here")


def test_foreign_servers_are_named_with_what_they_speak() -> None:
    with served() as mesh, socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        far = pb.Teacher(teacher_id="b", address=f"http://{address}", voucher="127.0.0.1:9")
        near = pb.Teacher(teacher_id="a", address=address, voucher=address, verified="canary")
        far.protocol = near.protocol = "oip"
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
        ({"maxmemory_policy": "allkeys-lru"}, "doubt", "valkey 8.1.3 evicts keys"),
    ],
)
def test_redis_is_named_with_its_version(
    info: dict[str, str], level: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"server_name": "valkey", "version": "8.1.3", "role": "master", **info}
    registry = Registry(MemoryStore())
    monkeypatch.setattr(registry, "server_info", lambda: said)
    monkeypatch.setattr(doctor, "connect", lambda url: registry)
    found = list(doctor.examine("redis://here:6379", lambda: None))
    assert any(one.level == level and one.text.startswith(text) for one in found), found


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("redis://[::1]", True),
        ("redis://127.0.0.1?db=1", True),
        ("redis:///1", True),
        ("redis://head", False),
        ("redis+sentinel://127.0.0.1,head:1/mesh", False),
    ],
)
def test_only_a_redis_of_this_machine_is_fine_without_tls(
    url: str, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(MemoryStore())
    monkeypatch.setattr(doctor, "connect", lambda url: registry)
    found = list(doctor.examine(url, lambda: ClientSecurity(token_file=Path("token"))))
    assert any("is reached without TLS" in one.text for one in found) is not local


@pytest.fixture
def ca(tmp_path: Path) -> trustme.CA:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return authority


def pair(
    folder: Path, ca: trustme.CA, name: str, days: float, host: str = "127.0.0.1", valid: float = 90
) -> tuple[Path, Path]:
    """A certificate that ends in so many days, and is `valid` for so many; and its key."""
    ends = datetime.now(UTC) + timedelta(days=days)
    begins = ends - timedelta(days=valid)
    made = ca.issue_cert(host, common_name="admin:a", not_before=begins, not_after=ends)
    made.private_key_pem.write_to_path(folder / f"{name}.key")
    made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return folder / f"{name}.pem", folder / f"{name}.key"


def test_days_of_our_certificates_and_of_the_peers_are_told(tmp_path: Path, ca: trustme.CA) -> None:
    soon, week = pair(tmp_path, ca, "server", 5.5), pair(tmp_path, ca, "t", 3.3, valid=7)
    ours = ClientSecurity(TlsFiles(*pair(tmp_path, ca, "ours", 40.5), tmp_path / "ca.pem"))
    with (
        served(security=ServerSecurity(TlsFiles(*soon, tmp_path / "ca.pem"))) as mesh,
        served(security=ServerSecurity(TlsFiles(*week))) as teacher,
    ):
        near = pb.Teacher(teacher_id="a", address=teacher.address, admission="admitted")
        service = pb.ServiceStatus(name="s", teacher_count=1, teachers=[near])
        mesh.manager.mesh = pb.MeshStatus(services=[service])
        found = {one.about: one for one in doctor.examine(mesh.url, lambda: ours)}
        manager, other = (found[f"certificate of {one}"] for one in (mesh.address, teacher.address))
        assert (manager.level, "for 5 more days" in manager.text) == ("doubt", True)
        assert (other.level, "for 3 more days" in other.text) == ("well", True)
        own = found[f"certificate {tmp_path / 'ours.pem'}"]
        assert (own.level, "for 40 more days" in own.text) == ("well", True)
        assert found[f"certificate {tmp_path / 'ca.pem'}"].level == "well"
        expired = ClientSecurity(TlsFiles(*pair(tmp_path, ca, "old", -3.0), tmp_path / "ca.pem"))
        found = {one.about: one for one in doctor.examine(mesh.url, lambda: expired)}
        old = found[f"certificate {tmp_path / 'old.pem'}"]
        assert (old.level, "expired 3 days ago" in old.text) == ("wrong", True)


@pytest.mark.parametrize(
    ("assigned", "advice"), [(0, "start more teachers"), (2, "starving students request one more")]
)
def test_the_state_of_a_service_is_told_in_numbers(assigned: int, advice: str) -> None:
    one = pb.ServiceStatus(
        name="one", leader="m", student_count=1, wanted=2, assigned=assigned,
        teacher_states={"serving": 2, "refused": 1}, student_states={"starved": 1},
    )  # fmt: skip
    with served() as mesh:
        mesh.registry.register("managers", "", "127.0.0.1:9", {"incarnation": "1"}, 600.0)
        mesh.manager.mesh = pb.MeshStatus(services=[one])
        found = list(doctor.examine(mesh.url, lambda: None))
    (gone,) = [f for f in found if f.about == "manager 127.0.0.1:9"]
    assert gone.advice == "check that it runs, and that this machine may connect to it"
    refused, serving = [f for f in found if f.about == "service one"]
    assert refused.text == "1 teacher is refused"
    text = f"2 teachers serve 1 student, {assigned} of 2 wanted are assigned; 1 student starves"
    assert (serving.text, serving.advice.startswith(advice)) == (text, True)


def test_an_expired_certificate_of_a_peer_is_told_from_one_of_another_name(
    tmp_path: Path, ca: trustme.CA
) -> None:
    ours = ClientSecurity(TlsFiles(ca=tmp_path / "ca.pem"))
    elsewhere = TlsFiles(*pair(tmp_path, ca, "other", 30.0, "elsewhere.example"))
    ended = datetime.now(UTC) - timedelta(days=1)
    with (
        served(security=ServerSecurity(elsewhere)) as mesh,
        closing(TlsProxy(9, ca, ends=ended)) as proxy,
    ):
        expired = f"127.0.0.1:{proxy.port}"
        mesh.registry.register("managers", "", expired, {"incarnation": "1"}, 600.0)
        found = {one.about: one for one in doctor.examine(mesh.url, lambda: ours)}
    for address, words in ((expired, "has expired"), (mesh.address, "other names")):
        shown, manager = found[f"certificate of {address}"], found[f"manager {address}"]
        assert shown.level == manager.level == "wrong"
        assert words in shown.advice
        assert shown.advice in manager.text, "the same hint in every message"
        assert not manager.advice
