"""Fleets of elastic jobs, and of teachers that follow their student, as real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.benchmarks.paced import FOR_EVER, Repeated, batch
from edl.benchmarks.paced import ROWS as PACED_ROWS
from edl.benchmarks.paced.teachers import CHEAP, paced
from edl.coordinator import connect
from edl.coordinator.job_queue import QueueBoard, QueuedJob
from edl.coordinator.store import open_store
from edl.distill_reader import DistilReader
from edl.runtime.errors import UsageError
from edl.runtime.interrupts import EXIT_INTERRUPTED
from edl.runtime.supervise import Process, python_command, start
from edl.tests.runtime.programs import wait_gone
from edl.tests.system.conftest import TTL_S
from edl.tests.system.coordinator_process import edl_output, ready, serve
from edl.tests.system.redis_servers import redis_server
from edl.tests.waiting import DEADLINE_S, wait_until


@dataclass
class World:
    """A queue, and the runners that a test starts."""

    url: str
    board: QueueBoard
    folder: Path
    runners: list[Process] = field(default_factory=list)

    def fleet(self, slots: int = 2, *options: object) -> Process:
        """Start a runner; it may have to wait for the queue."""
        words = ("agent", "jobs", "--slots", slots, "--share", "freeze=0", "--ttl", TTL_S)
        more = ("--folder", self.folder / "fleet", "--redis", self.url, *options)
        self.runners.append(start(python_command("fleet", "edl", *words, *more)))
        return self.runners[-1]

    def run_job(self, *words: object) -> str:
        return "".join(f"{line}\n" for line in edl_output(*words, url=self.url))

    def file(self, name: str, command: str, **keys: object) -> Path:
        lines = ["kind: job", f"name: {name}", f"command: >-\n  {command}"]
        path = self.folder / f"{name}.yaml"
        path.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in keys.items())]))
        return path

    def job(self, name: str) -> QueuedJob:
        return next(job for job in self.board.jobs() if job.name == name)

    def reaches(self, name: str, state: str, running: int, within_s: float = DEADLINE_S) -> None:
        def there() -> bool:
            progress = self.job(name).progress
            return (progress.state, progress.running) == (state, running)

        wait_until(there, within_s)

    def printed(self, name: str) -> list[str]:
        return [line for piece in self.board.read_log(name) for line in piece.body["lines"]]

    @contextmanager
    def reserved(self, slots: int) -> Iterator[re.Match[str]]:
        """Slots that a process of `edl reserve` keeps; gives what it said of them."""
        words = ("reserve", slots, "--name", "web", "--redis", self.url)
        service = start(python_command("reserve", "edl", *words))
        try:
            yield service.expect(r"(slot \d.*) free after", DEADLINE_S)
        finally:
            assert service.stop(grace_s=DEADLINE_S) == 0
            assert "given back" in service.tail()[-1]


#: Runs until it is told to leave, and says so.
WORKS = (
    """sh -c 'trap "echo bye; exit 0" TERM; echo up $EDL_JOB_NODE; while :; do sleep 0.05; done'"""
)
#: Does not leave.
STUBBORN = """sh -c 'trap "echo no" TERM; echo up; while :; do sleep 0.05; done'"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A queue in a Redis of its own; all runners end with the test."""
    with redis_server() as (_, port):
        url = f"redis://127.0.0.1:{port}"
        world = World(url, QueueBoard(open_store(url, DEADLINE_S)), tmp_path)
        try:
            yield world
        finally:
            for runner in world.runners:
                runner.stop(grace_s=20.0)
            world.board.close()


def test_from_submission_to_each_end(world: World) -> None:
    """An elastic job, one that takes a node of it, one that fails, one that succeeds."""
    world.run_job("apply", "-f", world.file("both", WORKS, min_nodes=1, max_nodes=2))
    world.fleet()
    world.reaches("both", "running", 2)
    wait_until(lambda: "node 2 | up 2" in world.printed("both"))
    world.run_job("apply", "-f", world.file("one", WORKS, min_nodes=1, max_nodes=1))
    world.reaches("one", "running", 1)
    world.reaches("both", "running", 1)
    wait_until(lambda: "node 2 | bye" in world.printed("both"))
    assert json.loads(world.run_job("get", "jobs", "--json"))["fleet"]["taken"] == [0, 1]
    assert "elastic jobs: 2 running; fleet on " in "".join(edl_output("status", url=world.url))

    assert "one: stopped" in world.run_job("delete", "job", "one", "--wait", DEADLINE_S)
    world.reaches("both", "running", 2)
    world.run_job("scale", "job", "both", 1)
    world.reaches("both", "running", 1)

    broken = "sh -c 'echo no such data; exit 3'"
    world.run_job("apply", "-f", world.file("broken", broken, retries=1))
    world.reaches("broken", "failed", 0)
    failed = world.job("broken").progress
    assert failed.failures == 2
    assert "exit code 3" in failed.reason
    assert "no such data" in failed.reason

    world.run_job("apply", "-f", world.file("short", "sh -c 'sleep 0.1; echo result 42'"))
    assert world.run_job("logs", "job", "short", "--follow") == "node 1 | result 42\n"
    assert world.job("short").progress.state == "succeeded"
    for words in ("one: stopped:", "short: succeeded:"):  # written after the state
        wait_until(lambda w=words: w in world.run_job("events", "--jobs", "--last", 200))  # type: ignore[misc]


def test_a_runner_that_dies_takes_its_nodes_along_and_the_next_one_goes_on(world: World) -> None:
    world.run_job("apply", "-f", world.file("both", WORKS, min_nodes=1, max_nodes=2))
    first = world.fleet()
    world.reaches("both", "running", 2)
    wait_until(lambda: "node 2 | up 2" in world.printed("both"))
    second = world.fleet()
    second.expect("standing by", DEADLINE_S)
    nodes = [child.pid for child in psutil.Process(first.pid).children(recursive=True)]
    assert len(nodes) >= 2
    first.kill()
    wait_gone(nodes)
    second.expect("runs jobs on 2 slots", DEADLINE_S)
    wait_until(lambda: {"node 3 | up 3", "node 4 | up 4"} <= set(world.printed("both")))
    world.reaches("both", "running", 2)

    second.stop(grace_s=DEADLINE_S)  # in order: nodes are told to leave, and the job waits
    assert second.returncode == 0
    progress = world.job("both").progress
    assert (progress.state, progress.running) == ("creating", 0)
    assert "the fleet was ended" in progress.reason
    assert {"node 3 | bye", "node 4 | bye"} <= set(world.printed("both"))
    world.run_job("delete", "job", "both")
    world.fleet()
    world.reaches("both", "stopped", 0)


def test_a_reservation_takes_slots_back_also_from_who_does_not_leave(world: World) -> None:
    world.run_job("apply", "-f", world.file("kind", WORKS, min_nodes=1, max_nodes=2))
    world.fleet(3, "--share", "yield-within=5")  # longer than a stall
    world.reaches("kind", "running", 2)
    world.run_job("apply", "-f", world.file("deaf", STUBBORN, grace_s=600))
    world.reaches("deaf", "running", 1)
    with pytest.raises(UsageError, match="3 slots: 4 cannot"):
        world.run_job("reserve", 4)

    with world.reserved(2) as said:
        where = said[1]
        assert where.count("slot") == 2
        assert ("cores" in where) == (len(os.sched_getaffinity(0)) >= 3)
        assert "web has 2 of 2" in world.run_job("get", "jobs")
        taken = {slot for job in world.board.jobs() for slot in job.progress.slots}
        assert len(taken) == 1
        with pytest.raises(UsageError, match="already"):
            world.run_job("reserve", 1, "--name", "web")
    world.reaches("kind", "running", 2)
    world.reaches("deaf", "running", 1)
    wait_until(lambda: "".join(world.printed("deaf")[-1:]).endswith("| up"))
    with world.reserved(3):  # all of them, and who was told to leave stays if it can
        wait_until(lambda: "node 1 | bye" in world.printed("kind"))
        wait_until(lambda: world.printed("deaf")[-1].endswith("| no"))
        assert [job.progress.state for job in world.board.jobs()] == ["creating", "creating"]
        world.run_job("delete", "job", "deaf")
        world.reaches("deaf", "stopped", 0)


SERVICE = "paced"
MOST = 2
#: Of a batch. A slow student needs one such teacher, a quick one any number.
TEACHER_S, SLOW_S, QUICK_S = 0.16, 0.5, 0.0


def test_a_fleet_follows_its_student_and_goes_with_it(stack: ExitStack) -> None:
    scaling = f"max={MOST},freeze=2,up-after=1,down-after=2,idle-to-zero=1"
    process = serve("--redis-port", 0, "--ttl", TTL_S, "--autoscale", scaling)
    stack.callback(process.stop)
    url = ready(process).url
    words = ("agent", "--local", "--service", SERVICE, "--model", CHEAP)
    teacher = shlex.join(["--micro-batch", str(PACED_ROWS), *paced(TEACHER_S)])
    options = ("--teachers", f"max={MOST}", "--teacher-options", teacher, "--grace", 2)
    mesh = ("--redis", url, "--ttl", TTL_S)
    fleet = start(python_command("fleet", "edl", *words, *options, *mesh))
    stack.callback(fleet.stop, 20.0)
    fleet.expect("fleet ready", DEADLINE_S)
    registry = stack.enter_context(closing(connect(url, timeout_s=DEADLINE_S)))
    running = [0]

    def serving() -> int:
        running.append(len(psutil.Process(fleet.pid).children()))
        return len(registry.members("teachers", SERVICE))

    assert serving() == 0
    source, labelled, pause = Repeated(batch(), count=FOR_EVER), [0], threading.Event()
    size = batch().nbytes
    bounds: dict[str, Any] = {"upper_bytes": 12 * size, "lower_bytes": 6 * size}
    with DistilReader(source, service=SERVICE, coordinator=url, **bounds) as reader:
        stream = iter(reader)  # without a teacher: it wakes the service

        def train_until(condition: Callable[[], object], step_s: float) -> None:
            def step() -> bool:
                labelled[0] += next(stream)[-1] is not None
                pause.wait(step_s)
                return bool(condition())

            wait_until(step)

        # A teacher that is slow at first makes the student ask for one too many, and return it.
        train_until(lambda: labelled[0] > 5 and serving() == 1, SLOW_S)
        train_until(lambda: serving() == MOST, QUICK_S)
        train_until(lambda: serving() == 1, SLOW_S)
    wait_until(lambda: serving() == 0)

    assert max(running) <= MOST
    log = registry.events(SERVICE)
    assert [one for one in log if one.kind == "lost"] == [], "a teacher has not drained"
    numbers = "".join(one.text.split()[0] for one in log if one.kind == "scaled")
    assert re.fullmatch("1(21)+0", numbers), "a stall may look like another change of speed"
    fleet.send_signal(signal.SIGINT)
    assert fleet.wait(DEADLINE_S) == EXIT_INTERRUPTED, fleet.tail()
