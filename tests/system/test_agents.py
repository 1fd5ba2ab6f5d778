"""Machines that are lent to a mesh: `edl agent` as real processes."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edl.coordinator import connect, fetch_status
from edl.coordinator.calling.client import deploy
from edl.coordinator.machines import Machine, open_machines
from edl.coordinator.registry import LogEntry
from edl.distill_reader import DistilReader
from edl.distill_reader.options import Timeouts
from edl.mesh.agent.cli import yield_
from edl.mesh.local import LocalMesh
from edl.proto import coordinator_pb2 as pb
from edl.runtime.supervise import Process, python_command, start, stop_all
from edl.teacher.backends.selection import content_of
from edl.tests.runtime.programs import wait_gone
from edl.tests.system.conftest import ROWS, Batches, taken_until
from edl.tests.system.coordinator_process import edl_output
from edl.tests.teacher import same_network
from edl.tests.waiting import DEADLINE_S, wait_until


class Images(Batches):
    def at(self, number: int) -> Any:
        return np.random.default_rng(number).standard_normal((ROWS, 1, 8, 8), dtype=np.float32)

    def check(self, batches: list[Any]) -> None:
        assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(self.count))
        for number, (image, _, logits) in enumerate(batches):
            np.testing.assert_array_equal(image, self.at(number))
            expected = same_network.label({"image": image})["logits"]
            np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


class Lending:
    """A coordinator, a model in a folder, and machines, each with a cache of its own."""

    def __init__(self, mesh: LocalMesh, model: Path, folder: Path, stack: ExitStack) -> None:
        self.mesh, self.folder = mesh, folder
        self.model = f"file://{model}"
        self.content = content_of(str(model))
        self.board = open_machines(mesh.url)
        self._agents: list[Process] = []
        stack.callback(self.board.close)
        stack.callback(self._end)

    def events(self, service: str) -> list[LogEntry]:
        with closing(connect(self.mesh.url)) as registry:
            return registry.events(service)

    def _end(self) -> None:
        stop_all(self._agents, 20.0)
        for one in self.board.deployments():
            if not one.withdrawn:
                self.undeploy(one.service)
        wait_until(lambda: not self.board.machines())

    def agent(self, name: str) -> Process:
        """Start one; it is ended with the test."""
        words = (f"--redis={self.mesh.url}", f"--machine={name}", "--devices=cpu")
        more = (f"--cache={self.cache(name)}", "--ttl=6", "--grace=10")
        self._agents.append(start(python_command(name, "edl", "agent", *words, *more)))
        return self._agents[-1]

    def cache(self, name: str) -> Path:
        return self.folder / f"cache-{name}"

    def deploy(self, service: str, content: str = "", **more: Any) -> str:
        least, content = more.pop("min", 1), content or self.content
        model: dict[str, Any] = {"service": service, "model_url": self.model, "content_id": content}
        return deploy(self.mesh.url, pb.DeployRequest(**model, min=least, max=least, **more))

    def undeploy(self, service: str) -> None:
        deploy(self.mesh.url, pb.DeployRequest(service=service, withdraw=True))

    def machine(self, name: str) -> Machine | None:
        return next((one for one in self.board.machines() if one.machine_id == name), None)

    def registered(self, service: str) -> dict[str, str]:
        """The states of teachers with a lease, from the registry: a manager may be late."""
        with closing(connect(self.mesh.url, timeout_s=DEADLINE_S)) as registry:
            return {one.member: one.facts["state"] for one in registry.members("teachers", service)}

    def admitted(self, service: str) -> list[str]:
        return sorted(
            one.teacher_id
            for status in fetch_status(self.mesh.url, service).services
            for one in status.teachers
            if one.admission == "admitted" and one.state == "serving"
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_network.write_onnx(tmp_path_factory.mktemp("model")).parent


@pytest.fixture
def lending(shared_mesh: LocalMesh, model: Path, tmp_path: Path, stack: ExitStack) -> Lending:
    return Lending(shared_mesh, model, tmp_path, stack)


def test_a_machine_gets_a_teacher_is_given_to_another_service_and_loses_no_batch(
    lending: Lending,
) -> None:
    url, images = lending.mesh.url, Images()
    bounds: dict[str, Any] = {"upper_bytes": 1 << 16, "timeouts": Timeouts(wait_s=60.0)}
    with DistilReader(images, service="a", coordinator=url, fetches=["logits"], **bounds) as reader:
        stream = iter(reader)
        wait_until(lambda: bool(fetch_status(url, "a").services))
        assert "no machine is there yet" in lending.deploy("a", min=2)
        for name in ("m1", "m2"):
            lending.agent(name)
        batches = taken_until(stream, lambda: lending.admitted("a") == ["m1", "m2"])
        lending.deploy("b", priority=1)
        batches += taken_until(stream, lambda: len(lending.admitted("b")) == 1)
        (moved,) = lending.admitted("b")
        (stayed,) = {"m1", "m2"} - {moved}
        assert lending.registered("a") == {stayed: "serving"}
        batches += taken_until(stream, lambda: lending.admitted("a") == [stayed])
        batches += [next(stream) for _ in range(20)]
        assert any("machines: 2" in line for line in edl_output("status", url=url))
        batches += images.rest(stream)
    images.check(batches)
    kinds = [(one.kind, one.subject) for one in lending.events("a")]
    assert ("left", moved) in kinds  # after it had answered its requests
    assert "lost" not in [kind for kind, _ in kinds]


def test_a_machine_refuses_another_content_serves_the_right_one_and_is_given_back_when_asked(
    lending: Lending,
) -> None:
    agent = lending.agent("m1")
    lending.deploy("wrong", content="0" * 64, priority=5)
    wait_until(lambda: bool((one := lending.machine("m1")) and one.report.troubles))
    found = lending.machine("m1")
    assert found is not None
    assert f"has content {lending.content}" in found.report.troubles[0]
    assert list((lending.cache("m1") / "models").iterdir()) == []  # nothing of it is kept
    asked = ("status", "--service", "wrong")
    wait_until(lambda: lending.content in "".join(edl_output(*asked, url=lending.mesh.url)))

    lending.deploy("right")  # the machine is of use for others meanwhile
    wait_until(lambda: lending.admitted("right") == ["m1"])
    (event,) = [one for one in lending.events("wrong") if one.kind == "failed"]
    assert lending.content in event.text
    lending.undeploy("wrong")

    cache = f"--cache={lending.cache('m1')}"
    giving = start(python_command("yield", "edl", "agent", "yield", cache))
    assert giving.wait(DEADLINE_S) == 0, giving.tail()
    assert lending.registered("right") == {}  # it left in order: nobody had to find out
    assert (one := lending.machine("m1")) is not None
    assert one.report.state == "yielded"
    wait_until(lambda: (one := lending.machine("m1")) is not None and not one.order.service)

    yield_(cache=lending.cache("m1"), end=True)
    wait_until(lambda: lending.admitted("right") == ["m1"])

    assert edl_output("drain", "teacher", "m1", url=lending.mesh.url) == ["draining right/m1"]
    wait_until(lambda: (one := lending.machine("m1")) and one.report.state == "yielded")
    assert "failed" not in [one.kind for one in lending.events("right")]
    yield_(cache=lending.cache("m1"), end=True)
    wait_until(lambda: lending.admitted("right") == ["m1"])
    children = [child.pid for child in psutil.Process(agent.pid).children(recursive=True)]
    assert len(children) >= 2  # the teacher's two sides

    agent.send_signal(signal.SIGTERM)
    assert agent.wait(DEADLINE_S) == 0
    wait_gone(children)
    assert lending.machine("m1") is None
    assert lending.registered("right") == {}
