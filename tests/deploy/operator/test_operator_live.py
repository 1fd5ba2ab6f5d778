"""`edl operator run` as processes: it sees changes, one acts, and another one goes on after it."""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from edl.mesh.kubernetes.resources import DEPLOYMENT, DISTILL_JOB, JOB_LABEL, LEASE, TEACHER_SERVICE
from edl.supervise import Process, python_command, start
from edl.tests.deploy.kube_api.cluster import Cluster
from edl.tests.deploy.operator.teachers_world import NAME, SPEC
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system


@contextmanager
def operator(cluster: Cluster, name: str) -> Iterator[Process]:
    """An operator that looks by itself so seldom that it has to see changes."""
    process = start(
        python_command(
            name, "edl", "operator", "run", "--kubeconfig", cluster.kubeconfig,
            "--namespace", cluster.namespace, "--coordinator", "redis://127.0.0.1:1",
            "--interval", 300, "--lease-duration", 6, "--metrics-listen", "0",
        )
    )  # fmt: skip
    try:
        yield process
    finally:
        process.stop(grace_s=5.0)


def _replicas(cluster: Cluster) -> int:
    found = cluster.client.find(DEPLOYMENT, NAME)
    return -1 if found is None else int(found["spec"]["replicas"])


def _holder(cluster: Cluster) -> str:
    found = cluster.client.find(LEASE, "edl-operator")
    return "" if found is None else str(found["spec"].get("holderIdentity"))


def _metrics(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        return str(answer.read(), "utf-8").splitlines()


def _scale(cluster: Cluster, count: int) -> None:
    changes = {"spec": {"replicas": count}}
    cluster.client.patch(TEACHER_SERVICE, NAME, changes, subresource="scale")


def test_it_sees_changes_and_another_goes_on_when_it_is_killed(cluster: Cluster) -> None:
    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "replicas": 2})
    with ExitStack() as undo:
        both = [undo.enter_context(operator(cluster, f"operator-{n}")) for n in range(2)]
        for one in both:
            one.expect(r"operator ready: namespace \S+ of http", DEADLINE_S)
        wait_until(lambda: _replicas(cluster) == 2)
        cluster.node("m1", cpu="4")
        job = {"image": "x", "command": "work", "minNodes": 1, "maxNodes": 2}
        cluster.create(DISTILL_JOB, "ctr", job)
        wait_until(lambda: len(cluster.pods(**{JOB_LABEL: "ctr"})) == 2)
        _scale(cluster, 4)
        wait_until(lambda: _replicas(cluster) == 4)
        pids = {f"_{one.pid}_": one for one in both}
        leader = pids.pop(next(pid for pid in pids if pid in _holder(cluster)))
        (other,) = pids.values()
        leader.kill()
        _scale(cluster, 1)
        wait_until(lambda: _replicas(cluster) == 1)
        assert f"_{other.pid}_" in _holder(cluster)
        address = other.expect(r"metrics and health at (http://\S+)", DEADLINE_S)[1]
        # A machine that does other things too lets its lead lapse, and it takes it again.
        wait_until(lambda: "edl_operator_leading 1.0" in _metrics(address))
        other.send_signal(signal.SIGTERM)
        assert other.wait(DEADLINE_S) == 0
        assert _holder(cluster) == ""
        assert _replicas(cluster) == 1, "what was made stays"
        assert len(cluster.pods(**{JOB_LABEL: "ctr"})) == 2
