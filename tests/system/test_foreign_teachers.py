"""Servers that know nothing of us as teachers: sidecar, server and reader as real processes."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from edl.coordinator import fetch_status
from edl.mesh.local import LocalMesh
from edl.teacher.canary import Canary
from edl.tests.foreign_server import Kind
from edl.tests.ground.programs import wait_for
from edl.tests.scripted_teacher import logits_of
from edl.tests.system.foreign import Batches, Foreign, reader, registered, serve, sidecar
from edl.tests.system.teacher_process import serving

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[LocalMesh]:
    with LocalMesh(log_dir=tmp_path / "logs", coordinator_options=["--ttl", "2"]) as mesh:
        yield mesh


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Foreign]]:
    servers: list[Foreign] = []

    def make(kind: Kind = "grpc", **options: Any) -> Foreign:
        mood = tmp_path / f"mood{len(servers)}"
        mood.write_text("")
        servers.append(serve(kind, mood, **options))
        return servers[-1]

    yield make
    for each in servers:
        each.process.stop(0.0)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """What the servers answer as long as nothing is wrong with them."""
    x, file = Batches.at(0), tmp_path / "canary"
    Canary.of("c", 1e-3, {"x": x}, {"logits": logits_of(x)}).save(file)
    return file


def admitted(url: str) -> list[Any]:
    """Teachers that students may be given, as managers tell it."""
    services = fetch_status(url).services
    return [t for s in services for t in s.teachers if t.admission == "admitted"]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_server_nobody_changed_labels_an_epoch(
    mesh: LocalMesh, server: Callable[..., Foreign], kind: Kind
) -> None:
    foreign, batches = server(kind), Batches(40)
    with sidecar(mesh.url, foreign.address):
        wait_for(lambda: len(admitted(mesh.url)) == 1)
        (teacher,) = admitted(mesh.url)
        assert (teacher.address, teacher.protocol) == (foreign.address, "oip")
        assert (teacher.verified, teacher.content_id) == ("declared", "c")
        assert teacher.voucher
        assert teacher.t_t_seconds > 0
        with reader(mesh.url, batches, teachers_min=1, fetches=["logits"]) as loader:
            batches.check(list(loader))
            assert loader.stats.resends == 0
            assert 0 < loader.stats.t_t_s < 1
    wait_for(lambda: not registered(mesh.url))


@pytest.mark.parametrize("kind", ["grpc", "json"])
def test_how_a_server_is_asked_is_found_out(
    mesh: LocalMesh, server: Callable[..., Foreign], kind: Kind
) -> None:
    foreign = server(kind)
    bare = foreign.address.removeprefix("http://")
    with sidecar(mesh.url, bare):
        assert _addresses(mesh.url) == [foreign.address]


def test_forms_and_temperatures_are_what_the_student_asked_for(
    mesh: LocalMesh, server: Callable[..., Foreign]
) -> None:
    batches = Batches(6)
    with sidecar(mesh.url, server("json").address):
        options: dict[str, Any] = {"label_form": "float16", "temperature": 2.0, "teachers_min": 1}
        with reader(mesh.url, batches, expand_labels=False, **options) as loader:
            labelled = list(loader)
    assert len(labelled) == 6
    for _, _, soft in labelled:
        assert soft.dtype == np.float16
        np.testing.assert_allclose(soft.astype(np.float64).sum(-1), 1.0, atol=2e-3)


def test_a_server_that_is_killed_is_taken_out_and_the_stream_goes_on(
    mesh: LocalMesh, server: Callable[..., Foreign]
) -> None:
    dying, steady, batches = (
        server("grpc", seconds=0.01),
        server("http", seconds=0.01),
        Batches(150),
    )
    with sidecar(mesh.url, dying.address) as its, sidecar(mesh.url, steady.address):
        wait_for(lambda: len(admitted(mesh.url)) == 2)
        with reader(mesh.url, batches) as loader:
            stream = iter(loader)
            labelled = [next(stream) for _ in range(20)]
            wait_for(lambda: len(loader.stats.teachers) == 2)
            dying.process.kill()
            labelled += list(stream)
        batches.check(labelled)
        its.expect(r"is taken out of the registry", 20.0)
        wait_for(lambda: _addresses(mesh.url) == [steady.address])
        before = _incarnations(mesh.url)
        port = int(dying.address.rpartition(":")[2])
        with serve("grpc", dying.mood, port=port):
            wait_for(lambda: len(_incarnations(mesh.url)) == 2)
            (new,) = set(_incarnations(mesh.url)) - set(before)
            assert new > max(before)
            wait_for(lambda: new in {teacher.incarnation for teacher in admitted(mesh.url)})


@pytest.mark.parametrize("how", ["process", "model"])
def test_a_server_that_hangs_is_taken_out_and_comes_back(
    mesh: LocalMesh, server: Callable[..., Foreign], how: str
) -> None:
    hanging, steady, batches = server("grpc"), server("json"), Batches(60)
    with sidecar(mesh.url, hanging.address) as its, sidecar(mesh.url, steady.address):
        wait_for(lambda: len(admitted(mesh.url)) == 2)
        with reader(mesh.url, batches) as loader:
            stream = iter(loader)
            labelled = [next(stream) for _ in range(10)]
            if how == "process":
                os.kill(hanging.process.pid, signal.SIGSTOP)
            else:
                hanging.mood.write_text("hang")
            labelled += list(stream)
        batches.check(labelled)
        its.expect(r"is taken out of the registry", 20.0)
        wait_for(lambda: _addresses(mesh.url) == [steady.address])
        if how == "process":
            os.kill(hanging.process.pid, signal.SIGCONT)
            wait_for(lambda: len(_addresses(mesh.url)) == 2)


def test_a_server_that_answers_wrongly_is_taken_out_or_not_let_in(
    mesh: LocalMesh, server: Callable[..., Foreign], canary: Path
) -> None:
    foreign = server("http")
    with sidecar(mesh.url, foreign.address, "--canary", canary) as its:
        (member,) = registered(mesh.url)
        assert (member.facts["verified"], member.facts["content_id"]) == ("canary", "c")
        for mood in ("nan", "short", "text", "other"):
            foreign.mood.write_text(mood)
            wait_for(lambda: not registered(mesh.url))
            foreign.mood.write_text("")
            wait_for(lambda: len(registered(mesh.url)) == 1)
        reasons = [line for line in its.tail(500) if "is taken out of the registry" in line]
        assert len(reasons) == 4, reasons
    foreign.mood.write_text("other")
    with sidecar(mesh.url, foreign.address, "--canary", canary, ready=False) as its:
        its.expect(r"is not registered: output 'logits' differs from the canary", 20.0)
        assert not registered(mesh.url)


def test_a_server_that_describes_nothing_is_described_by_its_canary(
    mesh: LocalMesh, server: Callable[..., Foreign], canary: Path
) -> None:
    batches = Batches(10)
    with sidecar(mesh.url, server("json", mute=True).address, "--canary", canary):
        (member,) = registered(mesh.url)
        assert member.facts["inputs"] == "x:FP32:-1,6"
        with reader(mesh.url, batches, teachers_min=1, fetches=["logits"]) as loader:
            batches.check(list(loader))


@pytest.mark.parametrize("mood", ["nan", "short"])
def test_wrong_labels_never_reach_the_student(
    mesh: LocalMesh, server: Callable[..., Foreign], mood: str
) -> None:
    lying, steady, batches = server("grpc", seconds=0.01), server("grpc", seconds=0.01), Batches(80)
    with (
        sidecar(mesh.url, lying.address, "--test-every", 600),
        sidecar(mesh.url, steady.address),
        reader(mesh.url, batches) as loader,
    ):
        stream = iter(loader)
        labelled = [next(stream) for _ in range(10)]
        wait_for(lambda: len(loader.stats.teachers) == 2)
        lying.mood.write_text(mood)
        labelled += list(stream)
        batches.check(labelled)


def test_a_sidecar_that_is_killed_leaves_a_lease_that_runs_out(
    mesh: LocalMesh, server: Callable[..., Foreign]
) -> None:
    foreign, batches = server(), Batches(20)
    with sidecar(mesh.url, foreign.address) as its:
        wait_for(lambda: len(admitted(mesh.url)) == 1)
        its.kill()
        wait_for(lambda: not registered(mesh.url))
        with sidecar(mesh.url, foreign.address), reader(mesh.url, batches) as loader:
            batches.check(list(loader))


def test_sigterm_takes_it_out_with_no_resend(
    mesh: LocalMesh, server: Callable[..., Foreign]
) -> None:
    leaving, steady, batches = server(seconds=0.02), server(seconds=0.02), Batches(200)
    with sidecar(mesh.url, leaving.address) as its, sidecar(mesh.url, steady.address):
        wait_for(lambda: len(admitted(mesh.url)) == 2)
        with reader(mesh.url, batches) as loader:
            stream = iter(loader)
            labelled = [next(stream) for _ in range(20)]
            wait_for(lambda: len(loader.stats.teachers) == 2)
            its.send_signal(signal.SIGTERM)
            assert its.wait(20.0) == 0
            labelled += list(stream)
            assert loader.stats.resends == 0
        batches.check(labelled)
        assert len(registered(mesh.url)) == 1


def test_what_nobody_says_is_asked_for(mesh: LocalMesh, server: Callable[..., Foreign]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with sidecar(mesh.url, address, ready=False) as its:
            its.expect(r"m at \S+ is not registered: ", 20.0)
            its.send_signal(signal.SIGTERM)
            assert its.wait(20.0) == 0
    with sidecar(mesh.url, server().address, "--content", "", ready=False) as its:
        assert its.wait(20.0) == 2


def test_a_teacher_of_ours_is_told_to_register_itself(mesh: LocalMesh) -> None:
    with serving() as teacher:
        named = ("--model", "m", "--input", "x:FP32:-1,4")
        with sidecar(mesh.url, f"grpc://{teacher.address}", *named, ready=False) as its:
            its.expect(r"it is an edl-teacher .*--coordinator", 20.0)
            assert its.wait(20.0) == 2
    assert not registered(mesh.url)


def _addresses(url: str) -> list[str]:
    return [member.facts["address"] for member in registered(url)]


def _incarnations(url: str) -> list[int]:
    return [member.incarnation for member in registered(url)]
