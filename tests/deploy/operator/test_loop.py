"""The loop goes on whatever fails, each part by itself; processes of `edl operator run`."""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from edl.deploy.operator.loop import ReconcileLoop
from edl.deploy.operator.watcher import ResourceWatcher
from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    DISTILL_JOB,
    JOB_LABEL,
    LEASE,
    POD,
    TEACHER_SERVICE,
)
from edl.runtime.errors import KubernetesUnavailable, LeaseSuperseded
from edl.runtime.supervise import Process, python_command, start
from edl.tests.deploy.kube_api.cluster import Cluster, emulated_in
from edl.tests.deploy.operator.teachers_world import NAME, SPEC
from edl.tests.mesh.threads import in_thread
from edl.tests.waiting import DEADLINE_S, wait_until

INTERVAL_S = 600.0
WATCHED = (TEACHER_SERVICE, DISTILL_JOB, POD, DEPLOYMENT)
AWAY = KubernetesUnavailable("away")


class World:
    """A loop in virtual time, of the parts `ill`, which raises these errors, and `well`."""

    def __init__(self, errors: Iterable[Exception], leads: bool = True) -> None:
        self.now_s = 1000.0
        self.lead, self.wake = Mock(return_value=leads), threading.Event()
        self.ill, self.well, rests = Mock(), Mock(), Mock()
        self.ill.reconcile.side_effect = itertools.chain(errors, itertools.repeat(None))
        rests.random.return_value = 1.0  # each rest is the longest
        parts = {"ill": self.ill.reconcile, "well": self.well.reconcile}
        known = (self.lead, INTERVAL_S, self.wake, rests, lambda: self.now_s)
        self.loop = ReconcileLoop(parts, *known)

    def until(self, called: Mock, after_s: float = 0.0) -> None:
        """Let time pass; report changes until it was called once more, and that round is over."""
        before = called.call_count
        self.now_s += after_s
        self._until_called(called, before)
        self._until_called(self.lead, self.lead.call_count)  # the next round begins

    def _until_called(self, called: Mock, before: int) -> None:
        def again() -> bool:
            self.wake.set()
            return called.call_count > before

        wait_until(again)


def test_a_failing_part_does_not_stop_the_others() -> None:
    world = World([AWAY, ValueError("never thought of"), LeaseSuperseded("not we")])
    assert world.loop.round(0.0) == 2.0, "seconds until the one that failed has rested"
    world.now_s += 2
    assert world.loop.round(1.0) == 4.0
    world.now_s += 4
    assert world.loop.round(2.0) == INTERVAL_S, "a lead that was lost is no failure"
    assert world.ill.reconcile.call_count == world.well.reconcile.call_count == 3
    sample = world.loop.metrics.registry.get_sample_value
    assert sample("edl_operator_reconciliations_total", {"part": "ill", "result": "failed"}) == 2
    assert sample("edl_operator_reconciliations_total", {"part": "well", "result": "done"}) == 3
    assert sample("edl_operator_leading") == 1


def test_while_one_part_fails_the_other_sees_changes_at_once() -> None:
    world = World(itertools.repeat(AWAY))
    with in_thread(world.loop.run):
        for _ in range(4):
            world.until(world.well.reconcile)
        assert world.ill.reconcile.call_count == 1, "by the loop's clock no time has passed"
        world.until(world.ill.reconcile, after_s=2)
        for after_s in (2, 0):
            world.until(world.well.reconcile, after_s)
        assert world.ill.reconcile.call_count == 2, "it rests longer each time"
        world.until(world.ill.reconcile, after_s=2)


def test_a_failed_part_is_retried_without_a_wake_up() -> None:
    ill, rests = Mock(side_effect=[AWAY, AWAY, None]), Mock()
    rests.random.return_value = 0.001
    loop = ReconcileLoop({"ill": ill}, lambda: True, INTERVAL_S, threading.Event(), rests)
    with in_thread(loop.run):
        wait_until(lambda: ill.call_count == 3)


def test_without_the_lead_it_rests_and_with_it_begins_anew() -> None:
    world = World(itertools.repeat(AWAY), leads=False)
    with in_thread(world.loop.run):
        for _ in range(3):
            world.until(world.lead)
        assert world.ill.reconcile.call_count == 0
        world.lead.return_value = True
        world.until(world.ill.reconcile)
        world.lead.return_value = False
        for _ in range(2):  # by the second time the loop has acted on the first answer
            world.until(world.lead)
        world.lead.return_value = True
        world.until(world.ill.reconcile)


def test_a_lasting_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World([AWAY, AWAY, KubernetesUnavailable("still")])
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            world.loop.round(0.0)
            world.now_s += 30
    away, still = (f"ill are not reconciled: {why}" for why in ("away", "still"))
    said = [one.getMessage() for one in caplog.records]
    assert said == [away, still, "ill are reconciled again"]


@pytest.mark.system
def test_definitions_that_are_created_later_are_watched(tmp_path: Path) -> None:
    with emulated_in(tmp_path) as cluster:
        store, before = cluster.server.store, len(cluster.server.requests)
        missing = store.known.pop((TEACHER_SERVICE.api_version, TEACHER_SERVICE.plural))

        def asked() -> set[str]:
            paths = {path for _, path in cluster.server.requests[before:]}
            return {path.rpartition("/")[2] for path in paths if "/namespaces/" in path}

        woken = threading.Event()
        watching = ResourceWatcher(cluster.connection, cluster.namespace, woken.set, again_s=0.05)
        watching.start()
        try:
            wait_until(asked)
            store.known[missing.key] = missing
            for number in range(300):
                cluster.create(TEACHER_SERVICE, f"s{number}", SPEC)
                if woken.wait(0.2):
                    break
            assert woken.is_set()
            # The rights to these are in deploy/kubernetes; see test_kubernetes_operator.py.
            wait_until(lambda: asked() == {kind.plural for kind in WATCHED})
        finally:
            watching.stop()
        assert "edl-watch" not in {thread.name for thread in threading.enumerate()}


@contextmanager
def operator(cluster: Cluster, name: str) -> Iterator[Process]:
    """An operator that looks by itself so seldom that it has to see changes."""
    process = start(
        python_command(
            name, "edl", "operator", "run", "--kubeconfig", cluster.kubeconfig,
            "--namespace", cluster.namespace, "--redis", "redis://127.0.0.1:1",
            "--interval", 300, "--lease-duration", 6, "--metrics-listen", "0",
        )
    )  # fmt: skip
    try:
        yield process
    finally:
        process.stop(grace_s=5.0)


@pytest.mark.system
def test_it_sees_changes_and_another_goes_on_when_it_is_killed(cluster: Cluster) -> None:
    def replicas() -> int | None:
        found = cluster.client.find(DEPLOYMENT, NAME)
        return None if found is None else int(found["spec"]["replicas"])

    def scale(count: int) -> None:
        changes = {"spec": {"replicas": count}}
        cluster.client.patch(TEACHER_SERVICE, NAME, changes, subresource="scale")

    def holder() -> str:
        return str(cluster.client.get(LEASE, "edl-operator")["spec"].get("holderIdentity"))

    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "replicas": 2})
    with ExitStack() as undo:
        both = [undo.enter_context(operator(cluster, f"operator-{n}")) for n in range(2)]
        for one in both:
            one.expect(r"operator ready: namespace \S+ of http", DEADLINE_S)
        wait_until(lambda: replicas() == 2)
        cluster.node("m1", cpu="4")
        job = {"image": "x", "command": "work", "minNodes": 1, "maxNodes": 2}
        cluster.create(DISTILL_JOB, "ctr", job)
        wait_until(lambda: len(cluster.pods(**{JOB_LABEL: "ctr"})) == 2)
        scale(4)
        wait_until(lambda: replicas() == 4)
        pids = {f"_{one.pid}_": one for one in both}
        leader = pids.pop(next(pid for pid in pids if pid in holder()))
        (other,) = pids.values()
        leader.kill()
        scale(1)
        wait_until(lambda: replicas() == 1)
        assert f"_{other.pid}_" in holder()
        address = other.expect(r"metrics and health at (http://\S+)", DEADLINE_S)[1]

        def leads() -> bool:
            with urllib.request.urlopen(f"{address}/metrics") as answer:
                return b"\nedl_operator_leading 1.0\n" in answer.read()

        # A machine that does other things too lets its lead lapse, and it takes it again.
        wait_until(leads)
        other.send_signal(signal.SIGTERM)
        assert other.wait(DEADLINE_S) == 0
        assert holder() == ""
        assert replicas() == 1, "what was made stays"
        assert len(cluster.pods(**{JOB_LABEL: "ctr"})) == 2
