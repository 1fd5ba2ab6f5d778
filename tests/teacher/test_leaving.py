"""What a teacher tells the registry, and the order in which it leaves."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from edl import __version__
from edl.coordinator.heartbeat import Heartbeat
from edl.coordinator.registry import Registry, connect
from edl.coordinator.store.memory_store import MemoryStore
from edl.runtime.errors import AddressInUse, ProcessFailed, RedisUnavailable
from edl.runtime.lifecycle import Stop
from edl.teacher import serving
from edl.teacher.config import PredictorConfig, ServerConfig, TeacherConfig
from edl.teacher.identity import TeacherView, kinds_fact, new_incarnation
from edl.teacher.pool import PredictorPool
from edl.teacher.predictor_jobs import PredictorReady
from edl.teacher.servers.server import TeacherServer
from edl.teacher.serving import TeacherLifecycle, drain
from edl.tests.leaks import open_files
from edl.tests.teacher.bench import Bench, timing
from edl.tests.teacher.fakes import SPEC
from edl.tests.waiting import DEADLINE_S, wait_until

CONFIG = TeacherConfig("resnet", PredictorConfig("models/resnet"), ttl_s=30.0)


class Teacher:
    def __init__(self, bench: Bench) -> None:
        self.registry: Registry = connect(f"memory://{uuid.uuid4()}")
        self.identity, self.recorder = bench.identity, bench.recorder
        self.server = bench.server
        self.device_count, self.t_t_s = 1, 0.001
        self.heartbeat = Heartbeat(
            self.registry,
            "teachers",
            "resnet",
            "t1",
            lambda: self.view().facts("127.0.0.1:7", "cpu"),
            CONFIG.ttl_s,
        )
        self.heartbeat.start()

    def view(self) -> TeacherView:
        recorder = self.recorder
        return TeacherView(
            self.identity, PredictorReady(SPEC, self.t_t_s, 8), slots=4,
            device_count=self.device_count, in_flight=recorder.in_flight, t_t_s=self.t_t_s,
            accepting=True, restarts=0, micro_batch_reductions=0, registry_answers=True,
            samples_per_second=recorder.samples_per_second,
        )  # fmt: skip

    def facts(self) -> dict[str, str]:
        (member,) = self.registry.members("teachers", "resnet")
        assert member.member == "t1"
        return dict(member.facts)

    def drain(self, grace_s: float) -> None:
        drain(self.identity, self.recorder, self.server, self.heartbeat, grace_s)


@pytest.fixture
def teacher(bench: Bench) -> Iterator[Teacher]:
    teacher = Teacher(bench)
    yield teacher
    teacher.heartbeat.stop()
    teacher.registry.close()


def test_facts_of_a_teacher(teacher: Teacher) -> None:
    facts = teacher.facts()
    assert facts.pop("host")
    assert facts.pop("instance_key") == teacher.identity.key
    assert facts == {
        "incarnation": "41", "address": "127.0.0.1:7", "protocol": "oip", "content_id": "c0ffee",
        "numerics_id": SPEC.numerics_id, "verified": "declared", "device": "cpu",
        "state": "serving", "slots": "4", "lanes": "1", "t_t_seconds": "0.001", "in_flight": "0",
        "samples_per_second": "0", "model": "resnet", "version": __version__,
        "output_kinds": "",  # nobody has classified them
    }  # fmt: skip


def test_the_fact_of_output_kinds() -> None:
    assert kinds_fact({"a": "logits", "b": "", "c": "other"}) == "a=logits c=other"
    assert kinds_fact({"two words": "logits", "a": "logits"}) == "a=logits", "blanks part items"


def test_facts_follow_the_traffic(teacher: Teacher) -> None:
    with timing(teacher.recorder) as one:
        one.labels_ready(10, 0.12345)
    teacher.t_t_s, teacher.device_count = 0.012345, 2
    with timing(teacher.recorder):
        teacher.heartbeat.update()
        wait_until(lambda: teacher.facts()["in_flight"] == "1")
    facts = teacher.facts()
    assert (facts["t_t_seconds"], facts["lanes"]) == ("0.012", "2")
    assert float(facts["samples_per_second"]) > 0


def test_a_drain_waits_for_quiet(teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "QUIET_S", 0.05)
    with ThreadPoolExecutor(1) as pool:
        with timing(teacher.recorder):
            drained = pool.submit(teacher.drain, 600.0)
            wait_until(lambda: teacher.facts()["state"] == "draining")
            assert teacher.identity.draining
            assert not drained.done()
        drained.result(DEADLINE_S)
    assert teacher.registry.members("teachers", "resnet") == []


def test_a_drain_ends_after_its_grace(teacher: Teacher) -> None:
    with timing(teacher.recorder):
        teacher.drain(0.05)
        assert teacher.registry.members("teachers", "resnet") == []


def test_incarnations_follow_the_clock_of_the_registry() -> None:
    assert new_incarnation(Registry(MemoryStore(clock=lambda: 7.25)), Stop()) == 7250
    assert new_incarnation(None, Stop()) > 7250


def test_a_teacher_that_cannot_listen_closes_its_memory() -> None:
    before = open_files("memfd:").keys()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = replace(CONFIG, server=ServerConfig(port=taken.getsockname()[1]))
        with pytest.raises(AddressInUse):
            TeacherLifecycle(config, Stop(), None, lambda text: None)
    assert open_files("memfd:").keys() <= before  # a map has a descriptor of its own


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_server_that_ends_during_the_start_is_an_error(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the teacher would seem to have been stopped, and nobody would start another one."""
    on_ended: list[Callable[[], None]] = []

    class Server(TeacherServer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            on_ended.append(arguments[-1])

    class SilentRegistry(Registry):
        def register(self, *_: object, **__: object) -> None:
            on_ended[0]()
            raise RedisUnavailable("no answer", timed_out=True)

    def start(pool: PredictorPool) -> None:
        pool.ready_report = PredictorReady(SPEC, 0.001, 8)

    def wait_loaded(_: PredictorPool, __: float) -> bool:
        if not is_loaded:
            on_ended[0]()
        return is_loaded

    monkeypatch.setattr(serving, "TeacherServer", Server)
    monkeypatch.setattr(PredictorPool, "start", start)
    monkeypatch.setattr(PredictorPool, "wait_loaded", wait_loaded)
    teacher = TeacherLifecycle(CONFIG, Stop(), SilentRegistry(MemoryStore()), lambda text: None)
    with closing(teacher), pytest.raises(ProcessFailed, match="ended by itself"):
        teacher.enter() if teacher.load() else None
