"""What a teacher tells the registry, and the order in which it leaves."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from edl import __version__
from edl.coordinator.heartbeat import Heartbeat
from edl.coordinator.registry import Registry, connect
from edl.coordinator.registry.memory_registry import MemoryRegistry
from edl.errors import LeaseSuperseded
from edl.proto.security import Gate
from edl.teacher import drain as draining
from edl.teacher.config import PredictorConfig, ServerConfig, TeacherConfig
from edl.teacher.drain import drain
from edl.teacher.front.server import Server
from edl.teacher.identity import Identity
from edl.teacher.metrics import TeacherMetrics
from edl.teacher.registration import new_incarnation, new_registration
from edl.teacher.servicer import Servicer
from edl.teacher.traffic import Traffic
from edl.tests.teacher.fakes import SPEC, FakeLabeller
from edl.tests.waiting import wait_until

CONFIG = TeacherConfig("resnet", PredictorConfig("models/resnet"), ttl_s=30.0)


class Bench:
    """A registered teacher, all in this process."""

    def __init__(self) -> None:
        self.registry: Registry = connect(f"memory://{uuid.uuid4()}")
        self.identity = Identity("resnet", "t1", 41)
        self.labeller = FakeLabeller()
        self.traffic = Traffic()
        servicer = Servicer(self.identity, self.labeller, self.traffic)
        self.server = Server(ServerConfig(), servicer, Gate(None), TeacherMetrics())
        self.server.start()
        self.superseded: list[LeaseSuperseded] = []
        self.asked_to_drain = threading.Event()
        self.heartbeat = self.register()

    def register(self) -> Heartbeat:
        heartbeat = new_registration(
            self.registry,
            CONFIG,
            self.identity,
            "127.0.0.1:7",
            self.labeller,
            self.traffic,
            on_superseded=self.superseded.append,
            on_drain=self.asked_to_drain.set,
        )
        heartbeat.start()
        return heartbeat

    def facts(self) -> dict[str, str]:
        (member,) = self.registry.members("teachers", "resnet")
        assert member.member == "t1"
        return dict(member.facts)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.heartbeat.stop()
    bench.server.stop(0)
    bench.registry.close()


def test_facts_of_a_teacher(bench: Bench) -> None:
    facts = bench.facts()
    assert facts.pop("host")
    assert facts.pop("instance_key") == bench.identity.key
    assert facts == {
        "incarnation": "41",
        "address": "127.0.0.1:7",
        "protocol": "oip",
        "content_id": "c0ffee",
        "numerics_id": SPEC.numerics_id,
        "verified": "declared",
        "device": "cpu",
        "state": "serving",
        "slots": "4",
        "lanes": "1",
        "t_t_seconds": "0.001",
        "in_flight": "0",
        "samples_per_second": "0",
        "model": "resnet",
        "version": __version__,
    }


def test_facts_follow_the_traffic(bench: Bench) -> None:
    bench.traffic.count_answer(samples=10, device_seconds=0.12345)
    bench.labeller.t_t_s, bench.labeller.lanes = 0.012345, 2
    with bench.traffic.request():
        bench.heartbeat.update()
        wait_until(lambda: bench.facts()["in_flight"] == "1")
    facts = bench.facts()
    assert (facts["t_t_seconds"], facts["lanes"]) == ("0.012", "2")
    assert float(facts["samples_per_second"]) > 0


def test_a_drain_waits_for_quiet(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "QUIET_S", 0.05)
    with bench.traffic.request():
        thread = threading.Thread(
            target=drain,
            args=(bench.identity, bench.traffic, bench.server, bench.heartbeat, 30.0),
        )
        thread.start()
        wait_until(lambda: bench.facts()["state"] == "draining")
        assert bench.identity.draining
        assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()
    assert bench.registry.members("teachers", "resnet") == []


def test_a_drain_ends_after_its_grace(bench: Bench) -> None:
    with bench.traffic.request():
        drain(bench.identity, bench.traffic, bench.server, bench.heartbeat, 0.05)
        assert bench.registry.members("teachers", "resnet") == []


def test_a_newer_teacher_of_the_same_id_is_noticed(bench: Bench) -> None:
    facts = {**bench.facts(), "incarnation": "42"}
    bench.registry.register("teachers", "resnet", "t1", facts, 30.0)
    bench.heartbeat.update()
    wait_until(lambda: bool(bench.superseded))


def test_a_requested_drain_is_heard_by_the_heartbeat(bench: Bench) -> None:
    assert bench.registry.request_drain("resnet", "t1")
    bench.heartbeat.update()
    assert bench.asked_to_drain.wait(20)


def test_incarnations_follow_the_clock_of_the_registry() -> None:
    assert new_incarnation(MemoryRegistry(clock=lambda: 7.25)) == 7250
    assert new_incarnation(None) > 7250
