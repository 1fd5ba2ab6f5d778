"""Machines that lend themselves to a mesh: real agents, real teachers, a real reader throughout."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edl.coordinator import connect, fetch_status
from edl.coordinator.calling.client import deploy
from edl.coordinator.machines import Machine, open_board
from edl.distill_reader import DistilReader
from edl.mesh.agent.cli import resume
from edl.mesh.local import LocalMesh
from edl.proto import coordinator_pb2 as pb
from edl.supervise import Process, python_command, start, stop_all
from edl.teacher.content import content_of
from edl.tests.ground.programs import wait_gone
from edl.tests.system.coordinator_process import status
from edl.tests.teacher import same_network

#: From `edl agent` to a teacher that serves, with an interpreter and a model of 6 kB to load.
SERVES_WITHIN_S = 15.0
#: A machine that two cores share with other tests has this much more patience.
PATIENCE = 3.0
ROWS = 8


class Images:
    """A re-iterable of (image, number) batches, each different and known, until it is ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        while not self.ended.is_set():
            yield self.at(self.count), np.full(ROWS, self.count)
            self.count += 1

    @staticmethod
    def at(number: int) -> Any:
        return np.random.default_rng(number).standard_normal((ROWS, 1, 8, 8), dtype=np.float32)


class Student:
    """A reader in a thread of its own, which holds every batch against what it has to be."""

    def __init__(self, url: str, service: str) -> None:
        self._url, self._service = url, service
        self._images = Images()
        self.taken = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, name="student")
        self._thread.start()

    def end(self) -> None:
        """Take what is on its way; raises what went wrong."""
        self._images.ended.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.taken == self._images.count > 0

    def _train(self) -> None:
        try:
            with DistilReader(
                self._images,
                service=self._service,
                coordinator=self._url,
                fetches=["logits"],
                upper_bytes=1 << 16,
                wait_timeout_s=60.0,
            ) as reader:
                for image, numbers, logits in reader:
                    assert int(numbers[0]) == self.taken
                    np.testing.assert_array_equal(image, Images.at(self.taken))
                    expected = same_network.label({"image": image})["logits"]
                    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
                    self.taken += 1
                    time.sleep(0.01)  # its step
        except BaseException as error:
            self.error = error


class Field:
    """A coordinator, a model in a folder, and machines, each with a cache of its own."""

    def __init__(self, mesh: LocalMesh, model: Path, folder: Path, stack: ExitStack) -> None:
        self.mesh, self.folder = mesh, folder
        self.model = f"file://{model}"
        self.content = content_of(str(model))
        self.board = open_board(mesh.url)
        self._agents: list[Process] = []
        stack.callback(self.board.close)
        stack.callback(self._end)

    def _end(self) -> None:
        stop_all(self._agents, 20.0)
        for one in self.board.deployments():
            self.undeploy(one.service)
        soon(lambda: not self.board.deployments())

    def agent(self, name: str) -> Process:
        """Start one; it is ended with the test."""
        process = start(
            python_command(
                name, "edl", "agent", f"--coordinator={self.mesh.url}", f"--machine={name}",
                "--devices=cpu", f"--cache={self.cache(name)}", "--ttl=3", "--grace=10",
            )
        )  # fmt: skip
        self._agents.append(process)
        return process

    def cache(self, name: str) -> Path:
        return self.folder / f"cache-{name}"

    def deploy(self, service: str, content: str = "", **more: Any) -> str:
        least = more.pop("min", 1)
        return deploy(
            self.mesh.url,
            pb.DeployRequest(
                service=service, model_url=self.model, content_id=content or self.content,
                min=least, max=more.pop("max", least), **more,
            ),
        )  # fmt: skip

    def undeploy(self, service: str) -> None:
        deploy(self.mesh.url, pb.DeployRequest(service=service, withdraw=True))

    def machine(self, name: str) -> Machine | None:
        return next((one for one in self.board.machines() if one.machine_id == name), None)

    def state(self, name: str) -> tuple[str, str]:
        """A machine's state, and whose teacher it has."""
        found = self.machine(name)
        return ("gone", "") if found is None else (found.report.state, found.report.service)

    def registered(self, service: str) -> dict[str, str]:
        """Teachers that have a lease at this moment, and their states; no manager is asked.

        What a manager says may be a little old.
        """
        with closing(connect(self.mesh.url)) as registry:
            return {one.member: one.facts["state"] for one in registry.members("teachers", service)}

    def admitted(self, service: str) -> list[str]:
        """Teachers that students are given."""
        found = fetch_status(self.mesh.url, service).services
        return sorted(
            one.teacher_id
            for service_ in found
            for one in service_.teachers
            if one.admission == "admitted" and one.state == "serving"
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_network.write_onnx(tmp_path_factory.mktemp("model")).parent


@pytest.fixture(scope="module")
def mesh() -> Iterator[LocalMesh]:
    with LocalMesh(coordinator_options=("--ttl", "2", "--leader-ttl", "0.6")) as running:
        yield running


@pytest.fixture
def field(mesh: LocalMesh, model: Path, tmp_path: Path) -> Iterator[Field]:
    with ExitStack() as stack:
        yield Field(mesh, model, tmp_path, stack)


def soon(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """As `wait_for`, for questions to a manager: asked less often, they leave it time to work."""
    deadline = time.monotonic() + within_s * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in {within_s * PATIENCE} s"
        time.sleep(0.1)


def test_a_machine_gets_a_teacher_is_given_to_another_service_and_loses_no_batch(
    field: Field,
) -> None:
    student = Student(field.mesh.url, "a")
    try:
        soon(lambda: bool(fetch_status(field.mesh.url, "a").services))
        assert "no machine is there yet" in field.deploy("a", min=2)

        began = time.monotonic()
        for name in ("m1", "m2"):
            field.agent(name)
        soon(lambda: student.taken > 0)
        assert time.monotonic() - began < SERVES_WITHIN_S * PATIENCE
        soon(lambda: field.admitted("a") == ["m1", "m2"])
        field.deploy("b", priority=1)
        soon(lambda: len(field.admitted("b")) == 1)
        (moved,) = field.admitted("b")
        (stayed,) = {"m1", "m2"} - {moved}
        assert field.registered("a") == {stayed: "serving"}
        soon(lambda: field.admitted("a") == [stayed])
        before = student.taken
        soon(lambda: student.taken > before + 20)

        code, lines = status("--coordinator", field.mesh.url)
        assert code == 0
        assert any("machines: 2" in line for line in lines)
    finally:
        student.end()
    kinds = [(one.kind, one.subject) for one in field.board.noted("a")]
    assert ("left", moved) in kinds  # after it had finished what it had
    assert "lost" not in [kind for kind, _ in kinds]


def test_a_machine_refuses_another_content_serves_the_right_one_and_is_given_back_when_asked(
    field: Field,
) -> None:
    agent = field.agent("m1")
    field.deploy("wrong", content="0" * 64, priority=5)
    soon(lambda: bool((one := field.machine("m1")) and one.report.troubles))
    found = field.machine("m1")
    assert found is not None
    assert f"has content {field.content}" in found.report.troubles[0]
    assert list((field.cache("m1") / "models").iterdir()) == []  # nothing of it is kept

    field.deploy("right")  # the machine is of use for others meanwhile
    soon(lambda: field.admitted("right") == ["m1"])
    (event,) = [one for one in field.board.noted("wrong") if one.kind == "failed"]
    assert field.content in event.text
    code, lines = status("--coordinator", field.mesh.url, "--service", "wrong")
    assert code == 0
    assert field.content in "".join(lines)  # which are folded
    assert sum("it is tried again in" in line for line in agent.tail(500)) == 1
    field.undeploy("wrong")

    cache = f"--cache={field.cache('m1')}"
    asked = start(python_command("yield", "edl", "agent", "yield", cache))
    assert asked.wait(20.0 * PATIENCE) == 0, asked.tail()
    assert "m1 has given this machine back" in asked.tail()[-1]
    assert field.registered("right") == {}  # it left in order: nobody had to find out
    assert field.state("m1")[0] == "yielded"
    soon(lambda: (one := field.machine("m1")) is not None and not one.order.service)

    resume(cache=field.cache("m1"))
    soon(lambda: field.admitted("right") == ["m1"])
    children = [child.pid for child in psutil.Process(agent.pid).children(recursive=True)]
    assert len(children) >= 2  # the teacher's two sides

    agent.send_signal(signal.SIGTERM)
    assert agent.wait(20.0 * PATIENCE) == 0
    wait_gone(children)
    assert field.state("m1") == ("gone", "")
    assert field.registered("right") == {}
