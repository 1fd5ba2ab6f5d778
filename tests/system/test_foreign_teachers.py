"""Foreign servers as teachers: server, sidecar and reader as real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from edl.coordinator.store.records import Member
from edl.distill_reader import DistilReader
from edl.runtime.supervise import Process, python_command, start
from edl.teacher.self_test import Canary
from edl.tests.foreign_server import MODEL, Kind
from edl.tests.scripted_teacher import logits_of
from edl.tests.system.conftest import FOR_EVER, TTL_S, Batches, Service, taken_until
from edl.tests.system.teacher_process import members
from edl.tests.waiting import DEADLINE_S, wait_until


@dataclass
class Foreign:
    """A server process; the content of its file is a key of `foreign_server.BEHAVIOURS`."""

    process: Process
    address: str
    behaviour: Path


@contextmanager
def sidecar(
    service: Service, address: str, *arguments: object, ready: bool = True
) -> Iterator[Process]:
    """`edl teacher register` of the server at `address`; returns once it is registered."""
    named = ("--content", "c") if "--canary" not in arguments else ()
    process = start(
        python_command(
            "sidecar", "edl.teacher", "register", "--service", service.name,
            "--endpoint", address, "--model", MODEL, "--redis", service.url, "--ttl", TTL_S,
            "--probe", "every=0.3,test-every=0.6,timeout=2", *named, *arguments,
        )
    )  # fmt: skip
    try:
        if ready:
            process.expect(r"^teacher registered: ", DEADLINE_S)
        yield process
    finally:
        process.stop()


def registered(service: Service) -> list[Member]:
    return members(service.url, service.name)


def addresses(service: Service) -> list[str]:
    return [member.facts["address"] for member in registered(service)]


def admitted(service: Service) -> list[Any]:
    return [one for one in service.status.teachers if one.admission == "admitted"]


def numbered(count: int = FOR_EVER) -> Batches:
    return Batches(count, (4, 6), logits_of)


def reader(service: Service, batches: Batches, **options: Any) -> DistilReader:
    bounds = {"lower_bytes": 0, "upper_bytes": 4096}
    return service.reader(batches, **{"profiles": None, "teachers_min": 2, **bounds, **options})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Foreign]]:
    processes: list[Process] = []

    def make(
        kind: Kind = "grpc", seconds: float = 0.0, port: int = 0, mute: bool = False
    ) -> Foreign:
        behaviour = tmp_path / f"behaviour{len(processes)}"
        behaviour.write_text("")
        words = ("--kind", kind, "--behaviour", behaviour, "--seconds", seconds, "--port", port)
        program = "edl.tests.foreign_server"
        process = start(python_command(kind, program, *words, *(["--mute"] if mute else [])))
        processes.append(process)
        return Foreign(process, process.expect(r"^ready on (\S+)$", DEADLINE_S)[1], behaviour)

    yield make
    for process in processes:
        process.stop(0.0)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """What the servers answer as long as nothing is wrong with them."""
    x, file = numbered().at(0), tmp_path / "canary"
    Canary.from_answer("c", 1e-3, {"x": x}, {"logits": logits_of(x)}).save(file)
    return file


def test_servers_of_each_kind_label_die_or_hang_and_come_back(
    service: Service, server: Callable[..., Foreign]
) -> None:
    """Servers that nobody changed; how each is asked is found out."""
    dying, hanging, steady = (server(kind, seconds=0.01) for kind in get_args(Kind))
    batches = numbered()
    with (
        sidecar(service, dying.address) as of_dying,
        sidecar(service, hanging.address.removeprefix("http://")) as of_hanging,
        sidecar(service, steady.address.removeprefix("http://")) as of_steady,
    ):
        wait_until(lambda: len(admitted(service)) == 3)
        for teacher in admitted(service):
            said = (teacher.protocol, teacher.verified, teacher.content_id)
            assert said == ("oip", "declared", "c")
            assert teacher.voucher
            assert teacher.t_t_seconds > 0
        with reader(service, batches, teachers_min=3, fetches=["logits"]) as loader:
            stream = iter(loader)
            labelled = taken_until(stream, lambda: len(dict(loader.stats.served)) == 3)
            labelled += taken_until(stream, lambda: loader.stats.t_t_s > 0)  # of several answers
            assert loader.stats.t_t_s < 1
            assert loader.stats.resends == 0
            dying.process.kill()
            labelled += taken_until(stream, lambda: len(loader.stats.teachers) == 2)
            os.kill(hanging.process.pid, signal.SIGSTOP)
            labelled += taken_until(stream, lambda: len(loader.stats.teachers) == 1)
            labelled += batches.rest(stream)
        batches.check(labelled)
        for its in (of_dying, of_hanging):
            its.expect(r"is taken out of the registry", DEADLINE_S)
        wait_until(lambda: addresses(service) == [steady.address])
        os.kill(hanging.process.pid, signal.SIGCONT)
        wait_until(lambda: len(addresses(service)) == 2)
        before = {member.incarnation for member in registered(service)}
        server(get_args(Kind)[0], port=int(dying.address.rpartition(":")[2]))
        wait_until(lambda: len(registered(service)) == 3)
        (new,) = {member.incarnation for member in registered(service)} - before
        assert new > max(before)
        wait_until(lambda: new in {teacher.incarnation for teacher in admitted(service)})
        of_steady.send_signal(signal.SIGTERM)
        assert of_steady.wait(DEADLINE_S) == 0
        assert steady.address not in addresses(service)


def test_a_server_that_answers_wrongly_is_taken_out_or_not_let_in(
    service: Service, server: Callable[..., Foreign], canary: Path
) -> None:
    foreign = server("http", mute=True)  # its canary describes the model
    with sidecar(service, foreign.address, "--canary", canary) as its:
        (member,) = registered(service)
        assert member.facts["inputs"] == "x:FP32:-1,6"
        assert (member.facts["verified"], member.facts["content_id"]) == ("canary", "c")
        for behaviour in ("nan", "short", "text", "other"):
            foreign.behaviour.write_text(behaviour)
            wait_until(lambda: not registered(service))
            foreign.behaviour.write_text("")
            wait_until(lambda: len(registered(service)) == 1)
        reasons = [line for line in its.tail(500) if "is taken out of the registry" in line]
        assert len(reasons) == 4, reasons
    foreign.behaviour.write_text("other")
    with sidecar(service, foreign.address, "--canary", canary, ready=False) as its:
        its.expect(r"is not registered: output 'logits' differs from the canary", DEADLINE_S)
        assert not registered(service)


def test_wrong_labels_never_reach_the_student(
    service: Service, server: Callable[..., Foreign]
) -> None:
    lying, steady, batches = server(seconds=0.01), server(seconds=0.01), numbered()
    with (
        sidecar(service, lying.address, "--probe", "test-every=600"),
        sidecar(service, steady.address),
        reader(service, batches) as loader,
    ):
        stream = iter(loader)
        served = lambda: len(dict(loader.stats.served)) == 2  # noqa: E731
        labelled = taken_until(stream, served)
        lying.behaviour.write_text("nan")
        labelled += taken_until(stream, lambda: loader.stats.ejections > 0)
        labelled += batches.rest(stream)
        batches.check(labelled)
