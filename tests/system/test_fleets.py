"""Fleets of elastic jobs and of teachers, and machines that are lent to a mesh, as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from edl.benchmarks.pacing import FOR_EVER, Repeated, batch
from edl.benchmarks.pacing import ROWS as PACED_ROWS
from edl.benchmarks.pacing.teachers import CHEAP, paced
from edl.commands import command_line
from edl.coordinator import connect, fetch_status
from edl.coordinator.calling.client import deploy
from edl.coordinator.jobs import open_board
from edl.coordinator.machines import Machine
from edl.coordinator.machines import open_board as open_machines
from edl.coordinator.queue import QueueBoard, QueuedJob, open_queue
from edl.distill_reader import DistilReader
from edl.errors import UsageError
from edl.interrupts import EXIT_INTERRUPTED
from edl.mesh.agent.cli import resume
from edl.mesh.jobs.looking import look
from edl.mesh.local import LocalMesh
from edl.proto import coordinator_pb2 as pb
from edl.supervise import Process, python_command, start, stop_all
from edl.teacher.content import content_of
from edl.tests.ground.programs import wait_gone
from edl.tests.system.conftest import ROWS, TTL_S, Batches
from edl.tests.system.coordinator_process import edl, ready, serve
from edl.tests.system.redis_servers import redis_server
from edl.tests.teacher import same_network
from edl.tests.waiting import DEADLINE_S, wait_until

#: What trainings train.
STUDENT = Path(__file__).with_name("student_job.py")


@dataclass
class World:
    """A queue, and the runners that a test starts."""

    url: str
    board: QueueBoard
    folder: Path
    runners: list[Process] = field(default_factory=list)

    def fleet(self, slots: int = 2, *options: object) -> Process:
        """Start a runner; it may have to wait for the queue."""
        given = (
            "--slots",
            slots,
            "--freeze",
            0,
            "--ttl",
            TTL_S,
            "--folder",
            self.folder / "fleet",
        )
        runner = start(
            python_command(
                "fleet", "edl", "fleet", "jobs", *given, "--coordinator", self.url, *options
            )
        )
        self.runners.append(runner)
        return runner

    def edl(self, *words: object) -> str:
        """What `edl job ...` prints."""
        argv = ["job", *map(str, words), "--coordinator", self.url]
        result = CliRunner().invoke(command_line(argv[0]), argv, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def status(self) -> str:
        """What `edl status` prints."""
        argv = ["status", "--coordinator", self.url]
        result = CliRunner().invoke(command_line(argv[0]), argv, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def file(self, name: str, command: str, **keys: object) -> Path:
        lines = [f"name: {name}", f"command: >-\n  {command}"]
        path = self.folder / f"{name}.yaml"
        path.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in keys.items())]))
        return path

    def training(self, name: str, options: str, *lines: str) -> Path:
        path = self.folder / f"{name}.yaml"
        train = f"train: {STUDENT} {options}"
        path.write_text("\n".join([f"name: {name}", train, *lines]))
        return path

    def job(self, name: str) -> QueuedJob:
        return next(job for job in self.board.jobs() if job.name == name)

    def reaches(self, name: str, state: str, running: int, within_s: float = DEADLINE_S) -> None:
        def there() -> bool:
            progress = self.job(name).progress
            return (progress.state, progress.running) == (state, running)

        wait_until(there, within_s)

    def printed(self, name: str) -> list[str]:
        return [line for piece in self.board.lines(name) for line in piece.body["lines"]]

    @contextmanager
    def reserved(self, slots: int) -> Iterator[re.Match[str]]:
        """Slots that a process of `edl job reserve` keeps; gives what it said of them."""
        words = ("job", "reserve", slots, "--name", "web", "--coordinator", self.url)
        service = start(python_command("reserve", "edl", *words))
        try:
            yield service.expect(r"(slot \d.*) free after ([\d.]+) s", 20)
        finally:
            assert service.stop(grace_s=10.0) == 0
            assert "given back" in service.tail()[-1]

    def pids(self, runner: Process) -> list[int]:
        return [child.pid for child in psutil.Process(runner.pid).children(recursive=True)]


@contextmanager
def new_world(folder: Path) -> Iterator[World]:
    """A queue in a Redis of its own; in the end no runner is left."""
    with redis_server() as (_, port):
        url = f"redis://127.0.0.1:{port}"
        world = World(url, open_queue(url), folder)
        try:
            yield world
        finally:
            for runner in world.runners:
                runner.stop(grace_s=20.0)
            world.board.close()


#: Runs until it is told to leave, and says so.
WORKS = (
    """sh -c 'trap "echo bye; exit 0" TERM; echo up $EDL_JOB_NODE; while :; do sleep 0.05; done'"""
)
#: Does not leave.
STUBBORN = """sh -c 'trap "echo no" TERM; echo up; while :; do sleep 0.05; done'"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as world:
        yield world


def test_from_submission_to_each_end(world: World) -> None:
    """One elastic job, one that comes and takes a node of it, one that fails, one that is done."""
    both = world.file("both", WORKS, min_nodes=1, max_nodes=2)
    before = world.board.jobs()
    assert "nothing was submitted" in world.edl("submit", both, "--dry-run")
    assert world.board.jobs() == before == []
    assert "nobody runs jobs now" in world.edl("submit", both)
    assert world.job("both").progress.state == "creating"
    with pytest.raises(UsageError, match="has not ended"):
        world.edl("submit", both)

    world.fleet()
    world.reaches("both", "running", 2)
    wait_until(lambda: "node 2 | up 2" in world.printed("both"))
    world.edl("submit", world.file("one", WORKS, min_nodes=1, max_nodes=1))
    world.reaches("one", "running", 1)
    world.reaches("both", "running", 1)
    wait_until(lambda: "node 2 | bye" in world.printed("both"))
    listed = json.loads(world.edl("list", "--json"))
    assert [(job["name"], job["state"], job["running"]) for job in listed["jobs"]] == [
        ("both", "running", 1), ("one", "running", 1),
    ]  # fmt: skip
    assert listed["fleet"]["taken"] == [0, 1]
    assert "1:2" in world.edl("list")
    assert "elastic jobs: 2 running; fleet on " in world.status()

    assert "one: stopped" in world.edl("stop", "one", "--wait", 20)
    world.reaches("both", "running", 2)
    world.edl("scale", "both", 1)
    world.reaches("both", "running", 1)
    with pytest.raises(UsageError, match="1 to 2 nodes, not with 3"):
        world.edl("scale", "both", 3)
    world.edl("scale", "both", "auto")
    world.reaches("both", "running", 2)

    broken = "sh -c 'echo it begins; echo no such data; exit 3'"
    world.edl("submit", world.file("broken", broken, retries=1))
    world.reaches("broken", "failed", 0)
    failed = world.job("broken").progress
    assert "exit code 3" in failed.reason
    assert "no such data" in failed.reason
    assert failed.failures == 2
    logs = world.edl("logs", "broken").splitlines()
    assert logs == [f"node {n} | {text}" for n in (1, 2) for text in ("it begins", "no such data")]

    world.edl("submit", world.file("short", "sh -c 'sleep 0.1; echo result 42'"))
    assert world.edl("logs", "short", "--follow") == "node 1 | result 42\n"
    assert world.job("short").progress.state == "succeeded"
    told = world.edl("events", "--last", 200)
    for words in ("both: node 2 is told to leave", "one: stopped:", "short: succeeded:"):
        assert words in told


def test_a_runner_that_dies_takes_its_nodes_along_and_the_next_one_goes_on(world: World) -> None:
    world.edl("submit", world.file("both", WORKS, min_nodes=1, max_nodes=2))
    first = world.fleet()
    world.reaches("both", "running", 2)
    wait_until(lambda: "node 2 | up 2" in world.printed("both"))
    second = world.fleet()
    second.expect("waits in reserve", 20)
    nodes = world.pids(first)
    assert len(nodes) >= 2
    first.kill()
    wait_gone(nodes)
    second.expect("runs jobs on 2 slots", 20)
    wait_until(lambda: {"node 3 | up 3", "node 4 | up 4"} <= set(world.printed("both")))
    world.reaches("both", "running", 2)

    second.stop(grace_s=20.0)  # in order: nodes are told to leave, and the job waits
    assert second.returncode == 0
    progress = world.job("both").progress
    assert (progress.state, progress.running) == ("creating", 0)
    assert "the fleet was ended" in progress.reason
    assert {"node 3 | bye", "node 4 | bye"} <= set(world.printed("both"))
    world.edl("stop", "both")
    world.fleet()
    world.reaches("both", "stopped", 0)


def test_a_reservation_takes_slots_back_also_from_who_does_not_leave(world: World) -> None:
    world.edl("submit", world.file("kind", WORKS, min_nodes=1, max_nodes=2))
    world.fleet(3, "--yield-within", 1)
    world.reaches("kind", "running", 2)
    world.edl("submit", world.file("deaf", STUBBORN, grace_s=600))
    world.reaches("deaf", "running", 1)
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(UsageError, match="3 slots, 4 cannot"):
        world.edl("reserve", 4)

    with world.reserved(2) as said:
        where, after_s = said.groups()
        assert float(after_s) < 10.0
        assert where.count("slot") == 2
        assert ("cores" in where) == (cores >= 3)
        assert "web has 2 of 2" in world.edl("list")
        taken = {slot for job in world.board.jobs() for slot in job.progress.slots}
        assert len(taken) == 1
        with pytest.raises(UsageError, match="already"):
            world.edl("reserve", 1, "--name", "web")
    world.reaches("kind", "running", 2)
    world.reaches("deaf", "running", 1)
    wait_until(lambda: world.printed("deaf")[-1].endswith("| up"))
    with world.reserved(3):  # all of them, and who was told to leave stays if it can
        assert "node 1 | bye" in world.printed("kind")
        assert world.printed("deaf")[-1].endswith("| no")
        assert [job.progress.state for job in world.board.jobs()] == ["creating", "creating"]
        world.edl("stop", "deaf")
        world.reaches("deaf", "stopped", 0)


#: A start of Paddle takes seconds of each core, and other tests may run.
START_S = 100.0


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_a_training_is_done_and_one_that_cannot_work_fails_at_once(world: World) -> None:
    world.edl("submit", world.training("good", "--steps 20"))
    world.edl("submit", world.training("bad", "--steps 20 --deal unknown"))
    world.fleet()
    world.reaches("good", "succeeded", 0, START_S)
    world.reaches("bad", "failed", 0, START_S)
    failed = world.job("bad").progress
    assert failed.failures == 1, "exit code 2 is not tried again"
    assert "exit code 2" in failed.reason
    assert "finished at step 20" in world.edl("logs", "good")


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_training_grows_makes_room_for_a_service_and_goes_on(world: World) -> None:
    """Two nodes, one, none, and again: each time from where it was."""
    options = "--steps 100000 --save-every-steps 50"
    env = 'env: {EDL_TEST_STEP_S: "0.02", EDL_TEST_ROWS: "4800"}'
    world.edl("submit", world.training("student", options, "max_nodes: 2", env))
    world.fleet(2, "--yield-within", 9)
    board = open_board(world.url)

    def trains_with(nodes: int, more_than: int = 0) -> bool:
        sight = look(board, "student", nodes)
        return sight.steady and sight.step > more_than

    wait_until(lambda: trains_with(2, 10), START_S)
    with world.reserved(1) as said:
        assert float(said[2]) < 10.0
        step = look(board, "student", 1).step
        wait_until(lambda: trains_with(1, step), START_S)
        assert world.job("student").progress.running == 1
    wait_until(lambda: trains_with(2), START_S)
    step = look(board, "student", 2).step
    with world.reserved(2) as said:
        assert float(said[2]) < 10.0
        assert world.job("student").progress.state == "creating"
    wait_until(lambda: trains_with(2, step), START_S)
    world.edl("stop", "student", "--wait", 60)
    assert world.job("student").progress.failures == 0
    board.close()


class Images(Batches):
    def at(self, number: int) -> Any:
        return np.random.default_rng(number).standard_normal((ROWS, 1, 8, 8), dtype=np.float32)


class Training:
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
        self._images.end()
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
                    np.testing.assert_array_equal(image, self._images.at(self.taken))
                    expected = same_network.label({"image": image})["logits"]
                    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
                    self.taken += 1
                    time.sleep(0.01)  # its step
        except BaseException as error:
            self.error = error


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

    def _end(self) -> None:
        stop_all(self._agents, 20.0)
        for one in self.board.deployments():
            self.undeploy(one.service)
        wait_until(lambda: not self.board.deployments())

    def agent(self, name: str) -> Process:
        """Start one; it is ended with the test."""
        process = start(
            python_command(
                name, "edl", "agent", f"--coordinator={self.mesh.url}", f"--machine={name}",
                "--devices=cpu", f"--cache={self.cache(name)}", "--ttl=6", "--grace=10",
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


@pytest.fixture
def lending(shared_mesh: LocalMesh, model: Path, tmp_path: Path, stack: ExitStack) -> Lending:
    return Lending(shared_mesh, model, tmp_path, stack)


def test_a_machine_gets_a_teacher_is_given_to_another_service_and_loses_no_batch(
    lending: Lending,
) -> None:
    student = Training(lending.mesh.url, "a")
    try:
        wait_until(lambda: bool(fetch_status(lending.mesh.url, "a").services))
        assert "no machine is there yet" in lending.deploy("a", min=2)

        for name in ("m1", "m2"):
            lending.agent(name)
        wait_until(lambda: student.taken > 0)
        wait_until(lambda: lending.admitted("a") == ["m1", "m2"])
        lending.deploy("b", priority=1)
        wait_until(lambda: len(lending.admitted("b")) == 1)
        (moved,) = lending.admitted("b")
        (stayed,) = {"m1", "m2"} - {moved}
        assert lending.registered("a") == {stayed: "serving"}
        wait_until(lambda: lending.admitted("a") == [stayed])
        before = student.taken
        wait_until(lambda: student.taken > before + 20)

        code, lines = edl("status", url=lending.mesh.url)
        assert code == 0
        assert any("machines: 2" in line for line in lines)
    finally:
        student.end()
    kinds = [(one.kind, one.subject) for one in lending.board.noted("a")]
    assert ("left", moved) in kinds  # after it had finished what it had
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
    wait_until(lambda: lending.content in "".join(edl(*asked, url=lending.mesh.url)[1]))

    lending.deploy("right")  # the machine is of use for others meanwhile
    wait_until(lambda: lending.admitted("right") == ["m1"])
    (event,) = [one for one in lending.board.noted("wrong") if one.kind == "failed"]
    assert lending.content in event.text
    assert sum("it is tried again in" in line for line in agent.tail(500)) == 1
    lending.undeploy("wrong")

    cache = f"--cache={lending.cache('m1')}"
    giving = start(python_command("yield", "edl", "agent", "yield", cache))
    assert giving.wait(60.0) == 0, giving.tail()
    assert "m1 has given this machine back" in giving.tail()[-1]
    assert lending.registered("right") == {}  # it left in order: nobody had to find out
    assert lending.state("m1")[0] == "yielded"
    wait_until(lambda: (one := lending.machine("m1")) is not None and not one.order.service)

    resume(cache=lending.cache("m1"))
    wait_until(lambda: lending.admitted("right") == ["m1"])
    children = [child.pid for child in psutil.Process(agent.pid).children(recursive=True)]
    assert len(children) >= 2  # the teacher's two sides

    agent.send_signal(signal.SIGTERM)
    assert agent.wait(60.0) == 0
    wait_gone(children)
    assert lending.state("m1") == ("gone", "")
    assert lending.registered("right") == {}


SERVICE = "paced"
MOST = 2
SCALING = (
    *("--ttl", TTL_S, "--freeze", 2.0),
    *("--up-after", 1.0, "--down-after", 2.0, "--idle-to-zero", 1.0, "--max-teachers", MOST),
)
#: Of a batch. A slow student needs one such teacher, a quick one any number.
TEACHER_S, SLOW_S, QUICK_S = 0.08, 0.5, 0.0


class Loop(threading.Thread):
    """Takes `step_s` for each batch, until it is told to stop."""

    def __init__(self, url: str, step_s: float) -> None:
        super().__init__(daemon=True)
        self.step_s = step_s
        self.labelled = 0
        self._url = url
        self._over = threading.Event()

    def run(self) -> None:
        size = batch().nbytes
        with DistilReader(
            Repeated(batch(), count=FOR_EVER),
            service=SERVICE,
            coordinator=self._url,
            upper_bytes=12 * size,
            lower_bytes=6 * size,
            no_teacher="hard_only",  # so that it can end without any
            no_teacher_grace_s=2.0,
        ) as reader:
            for *_, soft in reader:
                self.labelled += soft is not None
                if self._over.wait(self.step_s):
                    return

    def end(self) -> None:
        self._over.set()
        self.join(60.0)
        assert not self.is_alive()


def begin_fleet(stack: ExitStack, url: str) -> Process:
    words = ("fleet", "local", "--service", SERVICE, "--model", CHEAP, "--max", MOST)
    options = ("--ttl", TTL_S, "--micro-batch", PACED_ROWS, "--coordinator", url, "--grace", 2)
    fleet = start(python_command("fleet", "edl", *words, *options, "--", *paced(TEACHER_S)))
    stack.callback(fleet.stop, 20.0)
    fleet.expect("fleet ready", 60.0)
    return fleet


def begin_student(stack: ExitStack, url: str, step_s: float) -> Loop:
    student = Loop(url, step_s)
    stack.callback(student.end)
    student.start()
    return student


def test_a_fleet_follows_its_student_and_goes_with_it(stack: ExitStack) -> None:
    process = serve("--redis-port", 0, *SCALING)
    stack.callback(process.stop)
    coordinator = ready(process)
    fleet = begin_fleet(stack, coordinator.url)
    registry = connect(coordinator.url)
    stack.callback(registry.close)
    running = [0]

    def serving() -> int:
        running.append(len(psutil.Process(fleet.pid).children()))
        return len(registry.members("teachers", SERVICE))

    assert serving() == 0
    student = begin_student(stack, coordinator.url, SLOW_S)  # with no teacher: it wakes the service
    wait_until(lambda: student.labelled > 5)
    assert serving() == 1
    student.step_s = QUICK_S
    wait_until(lambda: serving() == MOST)
    student.step_s = SLOW_S
    wait_until(lambda: serving() == 1)
    student.end()
    wait_until(lambda: serving() == 0)

    assert max(running) <= MOST
    log = registry.events(SERVICE)
    assert [one for one in log if one.kind == "lost"] == [], "a teacher has not drained"
    assert [one.text.split()[0] for one in log if one.kind == "scaled"] == ["1", "2", "1", "0"]
    fleet.send_signal(signal.SIGINT)
    assert fleet.wait(60.0) == EXIT_INTERRUPTED, fleet.tail()
