"""A runner and its queue, in one process: what is lost, taken over, or cannot be run."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from edl.coordinator.job_queue import (
    DesiredJobState,
    JobProgress,
    QueueBoard,
    QueuedJob,
    Runner,
    queue_key,
)
from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.records import Leads, Put
from edl.mesh.jobs.job_run import NodeGroup
from edl.mesh.jobs.node_scaler import JobRunnerConfig
from edl.mesh.jobs.queue_backend import QueueBackend
from edl.mesh.jobs.runner import JobRunner
from edl.mesh.jobs.spec import QueuedJobSpec
from edl.runtime.errors import LeaseSuperseded, ProcessFailed, RedisUnavailable
from edl.runtime.lifecycle import Stop
from edl.scheduler import job_states
from edl.tests.mesh.threads import in_thread
from edl.tests.runtime.programs import wait_gone
from edl.tests.stores import FaultyStore, memory
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system
VALID = QueuedJobSpec("a", command="true").to_json()
WORKS = "sh -c 'echo up; while :; do sleep 0.05; done'"
ANOTHER = "sh -c 'echo another'"


Running = AbstractContextManager[tuple[Stop, Future[None]]]


def running(queue: QueueBoard, folder: Path, ttl_s: float = 30.0, cores: Any = ((), ())) -> Running:
    """A runner in a thread of its own, until the end of the `with`."""
    config = JobRunnerConfig("r-1", "here", "redis://none:1", cores, folder / "fleet", ttl_s=ttl_s)
    return in_thread(JobRunner(queue, JobBoard(FaultyStore()), config).run)


def submit(queue: QueueBoard, folder: Path, name: str, command: str, **more: Any) -> None:
    spec = QueuedJobSpec(name, command=command, folder=folder, **{"grace_s": DEADLINE_S, **more})
    assert queue.submit(name, spec.to_json())


def lose(queue: QueueBoard) -> None:
    """Redis comes back empty."""
    memory(queue).clear()


def put_older(queue: QueueBoard, folder: Path) -> None:
    """Redis comes back with a job of the name `a` of an hour before."""
    specs, former = queue_key("main", "specs"), job(queue, "a")
    spec = json.dumps(QueuedJobSpec("a", command=ANOTHER, folder=folder).to_json())
    older = f"{former.number} {former.submitted_ms - 3_600_000} {spec}"
    assert not queue.store.commit([], [Put(specs, {"a": older})])


def job(queue: QueueBoard, name: str) -> QueuedJob:
    return next(job for job in queue.jobs() if job.name == name)


def outputs(folder: Path) -> list[str]:
    return [log.read_text() for log in sorted(folder.glob("fleet/*/node-*.log"))]


def reaches(queue: QueueBoard, name: str, state: str) -> JobProgress:
    wait_until(lambda: job(queue, name).progress.state == state)
    return job(queue, name).progress


def test_jobs_that_the_queue_has_lost_are_submitted_again_and_go_on(tmp_path: Path) -> None:
    queue = QueueBoard(FaultyStore())
    waiting = ("z", "y", "x", "w")
    submit(queue, tmp_path, "a", WORKS, max_nodes=2)
    queue.set_desired_state("a", DesiredJobState(nodes=1))
    for name in waiting:
        submit(queue, tmp_path, name, WORKS, min_nodes=3, max_nodes=3)
    with running(queue, tmp_path):
        reaches(queue, "a", "running")
        wait_until(lambda: bool(queue.read_log("a")))
        wait_until(lambda: "3" in job(queue, "w").progress.reason)
        lose(queue)
        wait_until(lambda: any(one.progress.state == "running" for one in queue.jobs()))
        assert job(queue, "a").spec["command"] == WORKS
        assert job(queue, "a").desired == DesiredJobState(nodes=1)
        assert [one.name for one in queue.jobs()] == ["a", *waiting]
    with running(queue, tmp_path):  # in the same folder, where a training has its checkpoints
        wait_until(lambda: len(outputs(tmp_path)) == 2)
        queue.set_desired_state("a", DesiredJobState(stop=True))
        reaches(queue, "a", "stopped")
    (folder,) = tmp_path.glob("fleet/a-*")
    assert [log.name for log in sorted(folder.iterdir())] == ["node-1.log", "node-2.log"]


@pytest.mark.parametrize("newer", [True, False])
def test_a_newer_job_of_the_name_begins_when_the_nodes_have_left_and_an_older_one_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    """The user was quicker than the runner; or Redis has what it had written an hour before.

    Nor does the job begin again if Redis does not know any more that it has ended.
    """
    queue = QueueBoard(FaultyStore())

    def submit_newer(*given: Any) -> int | None:
        monkeypatch.undo()
        submit(queue, tmp_path, "a", ANOTHER)
        return queue.submit(*given)

    submit(queue, tmp_path, "a", WORKS)
    queue.set_desired_state("a", DesiredJobState(nodes=1))
    with running(queue, tmp_path):
        reaches(queue, "a", "running")
        wait_until(lambda: bool(queue.read_log("a")))
        if newer:
            monkeypatch.setattr(queue, "submit", submit_newer)
            lose(queue)
            wait_until(lambda: bool(queue.jobs()))
        else:
            put_older(queue, tmp_path)
            reaches(queue, "a", "running")
            queue.set_desired_state("a", DesiredJobState(stop=True))
        ended = reaches(queue, "a", "succeeded" if newer else "stopped")
        assert not queue.store.commit([], [Put(queue_key("main", "progress"), {"a": None})])
        assert reaches(queue, "a", ended.state) == ended
    assert job(queue, "a").desired == DesiredJobState(stop=not newer)
    assert outputs(tmp_path) == ["up\n", *(["another\n"] if newer else [])]


def test_nodes_that_crash_together_use_one_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_states, "_FIRST_DELAY_S", 60.0)  # no node is started again meanwhile
    queue = QueueBoard(FaultyStore())
    submit(queue, tmp_path, "a", "sh -c 'exit 1'", min_nodes=2, max_nodes=2, retries=1)
    with running(queue, tmp_path):
        wait_until(lambda: "node 2" in str([one.body for one in queue.events()]))
        wait_until(lambda: job(queue, "a").progress.failures and not job(queue, "a").progress.slots)
        told = job(queue, "a").progress
        assert (told.ended, told.failures) == (False, 1), told
        queue.set_desired_state("a", DesiredJobState(stop=True))
        reaches(queue, "a", "stopped")


def test_jobs_go_on_while_redis_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = QueueBoard(FaultyStore())
    submit(queue, tmp_path, "a", WORKS)
    submit(queue, tmp_path, "b", "sh -c 'while ! test -e go; do sleep 0.02; done; echo done'")
    with running(queue, tmp_path) as (_, ended):
        reaches(queue, "a", "running")
        reaches(queue, "b", "running")
        asked = threading.Semaphore(0)

        def away(*_: object) -> None:
            asked.release()
            raise RedisUnavailable("Redis does not answer")

        with monkeypatch.context() as patch:
            calls = "jobs", "reservations", "lead", "write_progress", "append_log", "add_event"
            for name in calls:
                patch.setattr(queue, name, away)
            for _ in range(3):
                assert asked.acquire(timeout=DEADLINE_S)
            (tmp_path / "go").touch()
            log = next((tmp_path / "fleet").glob("b-*/node-1.log"))
            wait_until(lambda: "done" in log.read_text())
        reaches(queue, "b", "succeeded")
        assert job(queue, "a").progress.state == "running"
        assert ended.running()
    assert list(QueueBackend(queue).log_lines(job(queue, "b"), follow=True)) == ["node 1 | done"]


def test_a_runner_whose_queue_another_one_has_ends_with_its_nodes(tmp_path: Path) -> None:
    now_s = 1e9
    queue = QueueBoard(FaultyStore(lambda: now_s))

    def taken() -> bool:
        nonlocal now_s
        now_s += 100.0  # its lease is over
        return queue.lead("r-2", {}, 86_400.0) is not None

    submit(queue, tmp_path, "a", WORKS)
    with running(queue, tmp_path) as (_, ended):
        reaches(queue, "a", "running")
        wait_until(taken)
        with pytest.raises(LeaseSuperseded):
            ended.result(DEADLINE_S)
    assert job(queue, "a").progress.state == "running", "the other one says what follows"


def test_no_other_runner_has_the_queue_before_the_last_node_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1e9
    queue, renewed_s = QueueBoard(FaultyStore(lambda: now_s)), 0.0
    lead = queue.lead

    def renew(*given: object) -> Leads | None:
        nonlocal renewed_s
        at_s = now_s
        fence = lead(*given)  # type: ignore[arg-type]
        renewed_s = at_s
        return fence

    def renewed() -> bool:
        return renewed_s == now_s

    slow = "trap 'echo leaves; while ! test -e go; do sleep 0.02; done; exit' TERM"
    submit(queue, tmp_path, "a", f'sh -c "{slow}; echo up; while :; do sleep 0.02; done"')
    with running(queue, tmp_path, ttl_s=0.5) as (stop, ended):
        wait_until(lambda: bool(queue.read_log("a")))
        stop.request()
        log = next((tmp_path / "fleet").glob("a-*/node-1.log"))
        wait_until(lambda: "leaves" in log.read_text())
        monkeypatch.setattr(queue, "lead", renew)
        for _ in range(7):  # a lease lasts for five
            wait_until(renewed)
            now_s += 0.1
        assert not lead("r-2", {}, 1.0)
        assert job(queue, "a").progress.state == "scaling"
        assert "the fleet was ended" in job(queue, "a").progress.reason
        (tmp_path / "go").touch()
        ended.result(DEADLINE_S)
        assert lead("r-2", {}, 1.0), "then it is given back at once"
    assert job(queue, "a").progress.state == "creating"


def test_lines_that_could_not_be_written_are_passed_again(tmp_path: Path) -> None:
    nodes = NodeGroup(QueuedJobSpec("a", command="seq 3000", folder=tmp_path), tmp_path)
    nodes.start(0, (), "redis://none:1", {}).process.wait(DEADLINE_S)
    passed: list[list[str]] = []

    def fail(lines: list[str]) -> None:
        passed.append(lines)
        raise RedisUnavailable("Redis does not answer")

    for _ in range(2):
        with pytest.raises(RedisUnavailable):
            nodes.pass_lines(2, fail)
    for _ in range(2):
        nodes.pass_lines(2, passed.append)
    note = f"... 2998 lines are left out here: {tmp_path} has all"
    assert passed == [[note, "node 1 | 2999", "node 1 | 3000"]] * 3


def test_what_cannot_be_run_fails_and_says_why(tmp_path: Path) -> None:
    queue = QueueBoard(FaultyStore())
    submit(queue, tmp_path, "none", "no-such-program --x", retries=0)
    assert queue.submit("old", {"name": "old", "image": "x:1"})
    assert queue.submit("newer", {**VALID, "name": "newer", "priority": "high"})
    submit(queue, tmp_path / "gone", "folder", "true", retries=0)
    with running(queue, tmp_path):
        assert "no program 'no-such-program'" in reaches(queue, "none", "failed").reason
        assert "submit it again" in reaches(queue, "old", "failed").reason
        assert "priority: expects a number" in reaches(queue, "newer", "failed").reason
        assert "gone" in reaches(queue, "folder", "failed").reason


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no processes")
def test_jobs_go_on_if_the_system_takes_cores_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue, gone = QueueBoard(FaultyStore()), os.cpu_count() or 1
    cores = tuple((gone + number,) for number in range(3))
    submit(queue, tmp_path, "a", WORKS)
    with running(queue, tmp_path, cores=cores):
        reaches(queue, "a", "running")
        queue.reserve("r", 1, 60.0)
        wait_until(lambda: (queue.runner() or Runner("", {}, 0.0)).facts.get("kept"))
        submit(queue, tmp_path, "b", "true")
        reaches(queue, "b", "succeeded")
    assert f"a-1 runs on any core: cores [{gone}] are gone" in caplog.text


def test_nodes_get_one_signal_and_their_own_time_when_the_fleet_ends(tmp_path: Path) -> None:
    queue = QueueBoard(FaultyStore())
    told = "trap 'echo term' TERM; echo $$"
    slow = f'sh -c "{told}; while ! test -e go; do sleep 0.02; done; echo done"'
    submit(queue, tmp_path, "leaves", slow, grace_s=60)
    submit(queue, tmp_path, "hangs", f'sh -c "{told}; while :; do sleep 0.02; done"', grace_s=0)
    with running(queue, tmp_path) as (stop, ended):
        wait_until(lambda: bool(queue.read_log("leaves") and queue.read_log("hangs")))
        hangs, leaves = sorted((tmp_path / "fleet").glob("*/node-1.log"))
        queue.set_desired_state("leaves", DesiredJobState(stop=True))
        wait_until(lambda: "term" in leaves.read_text())
        stop.request()
        wait_gone([int(hangs.read_text().split()[0])])
        (tmp_path / "go").touch()
        ended.result(DEADLINE_S)
    assert leaves.read_text().split()[1:] == ["term", "done"]


def test_numbers_of_nodes_are_not_used_again_if_old_logs_were_deleted(tmp_path: Path) -> None:
    queue = QueueBoard(FaultyStore())
    submit(queue, tmp_path, "a", "sh -c 'echo $EDL_JOB_NODE'")
    submit(queue, tmp_path, "b", "", train="x.py", min_nodes=3, max_nodes=3)
    earlier = tmp_path / "fleet/b-1234567890123/checkpoints"
    earlier.mkdir(parents=True)
    folder = tmp_path / "fleet" / f"a-{job(queue, 'a').submitted_ms}"
    folder.mkdir(parents=True)
    (folder / "node-7.log").write_text("of a former runner\n")
    with running(queue, tmp_path):
        reaches(queue, "a", "succeeded")
        events = str([one.body for one in queue.events()])
    assert (folder / "node-8.log").read_text() == "8\n"
    assert events.count(f"with --checkpoint {earlier} in train") == 1


def test_numbers_of_nodes_that_did_not_start_are_used_again(tmp_path: Path) -> None:
    spec = QueuedJobSpec("a", command="./later", folder=tmp_path)
    nodes = NodeGroup(spec, tmp_path / "logs")
    with pytest.raises(ProcessFailed):
        nodes.start(0, (), "redis://none", {})
    program = tmp_path / "later"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    node = nodes.start(0, (), "redis://none", {})
    assert node.number == 1, "a later runner counts the logs"
    assert node.process.wait(DEADLINE_S) == 0


def test_a_runner_that_stands_by_survives_an_outage_of_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> None:
        raise RedisUnavailable("Redis does not answer")

    caplog.set_level("INFO")
    queue = QueueBoard(FaultyStore())
    assert queue.lead("r-2", {}, 3600.0)
    with running(queue, tmp_path) as (_, ended):
        wait_until(lambda: "leads the queue: standing by" in caplog.text)
        with monkeypatch.context() as patch:
            patch.setattr(queue, "lead", away)
            wait_until(lambda: ended.done() or "standing by without Redis" in caplog.text)
        assert not ended.done()
        queue.resign("r-2")
        wait_until(lambda: "runs jobs on 2 slots" in caplog.text)
