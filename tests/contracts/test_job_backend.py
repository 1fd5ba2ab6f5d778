"""What commands say of jobs and ask is the same for a fleet's queue in Redis and for a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from edl.cli import command_line
from edl.coordinator.contexts import ContextFile, MeshContext
from edl.coordinator.job_queue import JobProgress, QueueBoard
from edl.coordinator.store.redis_store import RedisStore
from edl.mesh.jobs.backend import open_backend
from edl.mesh.kubernetes import resources
from edl.mesh.kubernetes.resources import DISTILL_JOB, rfc3339
from edl.runtime.errors import UnavailableError, UsageError
from edl.tests.cli_output import output_of
from edl.tests.deploy.kube_api.cluster import Emulated, emulated_in
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system


class Fleet:
    """A queue of jobs, and the runner that a test plays."""

    def __init__(self, url: str) -> None:
        self.context = MeshContext(url)
        self.options = ("--redis", url)
        self.board = QueueBoard(RedisStore(url, timeout_s=DEADLINE_S))
        fence = self.board.lead("r", {"host": "here", "slots": 4}, 60.0)
        assert fence is not None
        self.fence = fence

    def becomes(self, name: str, progress: JobProgress) -> None:
        job = next(one for one in self.board.jobs() if one.name == name)
        assert self.board.write_progress(self.fence, name, job.number, progress)

    def prints(self, name: str, node: int, *lines: str) -> None:
        assert self.board.append_log(self.fence, name, [f"node {node} | {line}" for line in lines])

    def happens(self, name: str, what: str) -> None:
        self.board.add_event({"kind": "job", "job": name, "what": what})


class OnCluster:
    """An emulated cluster, and the operator and nodes that a test plays."""

    def __init__(self, cluster: Emulated) -> None:
        self.cluster, self.client = cluster, cluster.client
        self.context = MeshContext(
            jobs_on=f"kubernetes:{cluster.namespace}", kubeconfig=cluster.kubeconfig
        )
        self.options = ("--context", "cluster")
        self._printed = 0

    def becomes(self, name: str, progress: JobProgress) -> None:
        job = self.client.get(DISTILL_JOB, name)
        self.cluster.patch_status(
            DISTILL_JOB, name, state=progress.state, reason=progress.reason,
            nodes=progress.running, target=progress.target,
            failures=progress.failures, done=progress.done,
            startedAt=rfc3339(progress.first_ms / 1000) if progress.first_ms else None,
            endedAt=rfc3339(progress.ended_ms / 1000) if progress.ended_ms else None,
            observedGeneration=job["metadata"]["generation"],
        )  # fmt: skip

    def prints(self, name: str, node: int, *lines: str) -> None:
        pod, job = f"{name}-{node}", self.client.get(DISTILL_JOB, name)
        logs = self.cluster.server.store.logs
        key = (self.cluster.namespace, pod)
        if key not in logs:
            labels = resources.labels_of("student", job=name, node=str(node))
            owners = [resources.owner_reference(job)]
            meta = {"name": pod, "labels": labels, "ownerReferences": owners}
            spec = {"containers": [{"name": "node", "image": "x"}]}
            self.client.create(resources.POD, {"metadata": meta, "spec": spec})
            self.cluster.say(pod, "Running")
        for line in lines:
            self._printed += 1
            logs[key] = f"{logs.get(key, '')}{rfc3339(1.8e9 + self._printed / 1000)} {line}\n"

    def happens(self, name: str, what: str) -> None:
        meta = self.client.get(DISTILL_JOB, name)["metadata"]
        about = {key: meta[key] for key in ("name", "uid", "namespace")}
        reason, _, message = what.partition(": ")
        event = {
            "metadata": {"name": f"{name}.{len(what)}"}, "reason": reason, "message": message,
            "involvedObject": {"kind": "DistillJob", **about},
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        self.client.create(resources.EVENT, event)


Stage = Fleet | OnCluster


@pytest.fixture(params=["fleet", "cluster"])
def stage(
    request: pytest.FixtureRequest,
    redis: Redis,
    private_valkey_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stage]:
    if request.param == "fleet":
        fleet = Fleet(private_valkey_url)
        yield fleet
        fleet.board.close()
        return
    with emulated_in(tmp_path) as cluster:
        stage = OnCluster(cluster)
        file = ContextFile(tmp_path / "contexts.yaml")
        file.change(lambda contexts: contexts.add("cluster", stage.context))
        monkeypatch.setenv("EDL_CONFIG", str(file.path))
        yield stage


class Said:
    def __init__(self, stage: Stage, folder: Path) -> None:
        self._options, self._folder = stage.options, folder

    def __call__(self, command: str, *words: object) -> str:
        return output_of(command_line(command), command, *words, *self._options)

    def file(self, name: str, *lines: str) -> Path:
        path = self._folder / f"{name}.yaml"
        text = f"kind: job\nname: {name}\ncommand: work --hard\nimage: x:1\nmax_nodes: 3"
        path.write_text("\n".join([text, *lines]))
        return path

    def job(self, name: str) -> dict[str, Any]:
        listed = json.loads(self("get", "jobs", "--json"))
        return next(one for one in listed["jobs"] if one["name"] == name)


@pytest.fixture
def edl(stage: Stage, tmp_path: Path) -> Said:
    return Said(stage, tmp_path)


def test_a_job_from_its_submission_to_its_end(stage: Stage, edl: Said) -> None:
    assert "'edl apply -f JOB.yaml" in edl("get", "jobs")
    assert "a" in edl("apply", "-f", edl.file("a", "priority: 7"), "--dry-run")
    assert json.loads(edl("get", "jobs", "--json"))["jobs"] == []

    assert "job a is " in edl("apply", "-f", edl.file("a", "priority: 7"))
    with pytest.raises(UsageError, match="a that has not ended: end it with 'edl delete job a'"):
        edl("apply", "-f", edl.file("a"))
    edl("apply", "-f", edl.file("b", "min_nodes: 2"))
    first = edl.job("a")
    assert [one["name"] for one in json.loads(edl("get", "jobs", "--json"))["jobs"]] == ["a", "b"]
    assert (first["state"], first["running"], first["asked_nodes"]) == ("creating", 0, None)
    assert (first["spec"]["command"], first["spec"]["priority"]) == ("work --hard", 7)

    now_ms = first["submitted_ms"] + 4500
    stage.becomes("a", JobProgress("scaling", 3, 1, "grows by 2", now_ms, failures=1, done=True))
    row = next(line for line in edl("get", "jobs").splitlines() if " a " in line)
    assert (edl.job("a")["failures"], edl.job("a")["done"]) == (1, True)
    for words in ("scaling", "1 -> 3", "1:3", "7", "4.5 s", "grows by 2"):
        assert words in row

    edl("scale", "job", "a", 2)
    assert edl.job("a")["asked_nodes"] == 2
    assert "1:3 (at most 2)" in edl("get", "jobs")
    with pytest.raises(UsageError, match="job a runs with 1 to 3 nodes, not with 4"):
        edl("scale", "job", "a", 4)
    with pytest.raises(UsageError, match="expects a number of nodes or 'auto'"):
        edl("scale", "job", "a", "more")
    edl("scale", "job", "a", "auto")
    assert edl.job("a")["asked_nodes"] is None

    with pytest.raises(UnavailableError, match=r"job a has not ended in 0\.01 s"):
        edl("delete", "job", "a", "--wait", 0.01)
    assert edl.job("a")["asked_to_stop"]
    assert not edl.job("b")["asked_to_stop"]
    stage.becomes("a", JobProgress("stopped", 0, 0, "it was asked to stop", now_ms, now_ms + 1))
    assert (edl.job("a")["state"], edl.job("a")["pending_s"]) == ("stopped", 4.5)
    for ask in (("scale", "job", "a", 2), ("delete", "job", "a")):
        with pytest.raises(UsageError, match="job a has ended already"):
            edl(*ask)
    for ask in (("scale", "job", "c", 2), ("delete", "job", "c"), ("logs", "job", "c")):
        with pytest.raises(UsageError, match="there is no job 'c' in "):
            edl(*ask)

    edl("apply", "-f", edl.file("a"))  # the name is free again
    again = edl.job("a")
    assert (again["state"], again["asked_to_stop"], again["failures"]) == ("creating", False, 0)


def test_a_job_whose_fleet_was_killed_is_lost(stage: Stage, edl: Said) -> None:
    edl("apply", "-f", edl.file("a"))
    stage.becomes("a", JobProgress("running", target=1, running=1, first_ms=1))
    edl("apply", "-f", edl.file("b"))
    assert [edl.job(name)["state"] for name in "ab"] == ["running", "creating"]
    if isinstance(stage, OnCluster):
        return  # its nodes do not end with the operator
    stage.board.resign("r")  # as a lease ends that nobody prolongs
    lost = edl.job("a")
    assert [lost["state"], edl.job("b")["state"]] == ["lost", "creating"]
    assert "does not answer any more" in lost["reason"]
    assert re.search(r"\ba +│? *lost\b", edl("get", "jobs"))


def test_what_nodes_print_steers_no_terminal(stage: Stage, edl: Said) -> None:
    edl("apply", "-f", edl.file("a"))
    stage.prints("a", 1, "a\x1b[2Jb\tc\x9bd\re")
    assert edl("logs", "job", "a") == "node 1 | a\\x1b[2Jb\tc\\x9bd\\x0de\n"
    stage.happens("a", "Scaled: to \x1b]0;x\x07 nodes")
    assert r"a: Scaled: to \x1b]0;x\x07 nodes" in edl("events", "--jobs")
    stage.becomes("a", JobProgress("failed", reason="\x1bc"))
    assert "\x1b" not in edl("get", "jobs")


def test_what_nodes_print_and_what_happens(stage: Stage, edl: Said) -> None:
    edl("apply", "-f", edl.file("a"))
    edl("apply", "-f", edl.file("b"))
    assert edl("logs", "job", "a") == ""
    stage.prints("a", 1, "up")
    stage.prints("a", 2, "up", "[step 1]")
    stage.prints("b", 1, "of another job")
    stage.prints("a", 1, "step 1")
    assert edl("logs", "job", "a").splitlines() == [
        "node 1 | up", "node 2 | up", "node 2 | [step 1]", "node 1 | step 1",
    ]  # fmt: skip
    stage.becomes("a", JobProgress("succeeded", reason="a node has ended well", ended_ms=1))
    assert len(edl("logs", "job", "a", "--follow").splitlines()) == 4

    stage.happens("a", "Scaled: to 2 nodes")
    stage.happens("b", "Waits: behind a")
    told = edl("events", "--jobs")
    assert re.search(r"^\d\d:\d\d:\d\d  a: Scaled: to 2 nodes$", told, re.MULTILINE)
    assert "b: Waits: behind a" in told
    last = json.loads(edl("events", "--jobs", "--last", 1, "--json").splitlines()[-1])
    assert {"at_ms", "kind", "job", "what"} == last.keys()


def test_logs_follow_until_the_end(
    stage: Stage, edl: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    for interval in ("queue_backend._LOG_POLL_S", "kubernetes_backend._POLL_S"):
        monkeypatch.setattr(f"edl.mesh.jobs.{interval}", 0.02)
    edl("apply", "-f", edl.file("a"))
    stage.prints("a", 1, "up")
    with closing(open_backend(stage.context)) as backend:
        lines = backend.log_lines(backend.listing().find("a"), follow=True)
        assert next(lines) == "node 1 | up"
        stage.prints("a", 2, "up")
        stage.prints("a", 1, "step 1")
        assert [next(lines), next(lines)] == ["node 2 | up", "node 1 | step 1"]
        stage.prints("a", 1, "done")
        stage.becomes("a", JobProgress("succeeded", ended_ms=1))
        assert list(lines) == ["node 1 | done"]
