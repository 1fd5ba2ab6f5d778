"""The loop goes on whatever fails, each part by itself; processes of `edl operator run`."""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from edl.deploy.operator.loop import Loop, Wake
from edl.deploy.operator.metrics import OperatorMetrics
from edl.deploy.operator.watching import Watching
from edl.errors import KubernetesUnavailable, LeaseSuperseded
from edl.lifecycle import Stop
from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    DISTILL_JOB,
    JOB_LABEL,
    LEASE,
    POD,
    TEACHER_SERVICE,
)
from edl.supervise import Process, python_command, start
from edl.tests.deploy.kube_api.cluster import Cluster, emulated_in
from edl.tests.deploy.operator.teachers_world import NAME, SPEC
from edl.tests.waiting import DEADLINE_S, wait_until

INTERVAL_S = 600.0
WATCHED = (TEACHER_SERVICE, DISTILL_JOB, POD, DEPLOYMENT)


class Noted:
    """A part that does what a test says."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = iter(errors)
        self.turns = 0

    def turn(self, now: float) -> None:
        self.turns += 1
        if (error := next(self.errors, None)) is not None:
            raise error


class Away(Noted):
    """A part that always fails."""

    def __init__(self) -> None:
        super().__init__()
        self.errors = itertools.repeat(KubernetesUnavailable("away"))


class Time:
    """Seconds that pass when a test says so, and rests that are the longest."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s

    def random(self) -> float:
        return 1.0


def _loop(
    clock: Time,
    parts: dict[str, Noted],
    leads: Callable[[], bool] = lambda: True,
    wake: Wake | None = None,
    metrics: OperatorMetrics | None = None,
) -> Loop:
    metrics = metrics or OperatorMetrics()
    return Loop(parts, leads, INTERVAL_S, wake or Wake(), metrics, clock, clock)


@contextmanager
def _running(loop: Loop) -> Iterator[None]:
    stop = Stop()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.request()
        thread.join(10)
    assert not thread.is_alive()


def _count(registry: CollectorRegistry, part: str, result: str) -> float:
    labels = {"part": part, "result": result}
    return registry.get_sample_value("edl_operator_turns_total", labels) or 0.0


def test_a_failing_part_does_not_stop_the_others() -> None:
    metrics, clock = OperatorMetrics(lambda: True), Time()
    well, ill = Noted(), Noted(KubernetesUnavailable("away"), ValueError("never thought of"))
    loop = _loop(clock, {"ill": ill, "well": well}, metrics=metrics)
    assert loop.turn(0.0) == 2.0, "seconds until the one that failed has rested"
    clock.s += 2
    assert loop.turn(1.0) == 4.0
    clock.s += 4
    assert loop.turn(2.0) == INTERVAL_S
    assert (ill.turns, well.turns) == (3, 3)
    assert _count(metrics.registry, "ill", "failed") == 2
    assert _count(metrics.registry, "well", "done") == 3
    assert metrics.registry.get_sample_value("edl_operator_leading") == 1


def test_while_one_part_fails_the_other_sees_changes_at_once() -> None:
    clock, wake, ill, well = Time(), Wake(), Away(), Noted()

    def looks(part: Noted) -> None:
        """A change wakes the loop until this part has looked at it."""
        before = part.turns

        def looked() -> bool:
            wake()
            return part.turns > before

        wait_until(looked)

    with _running(_loop(clock, {"ill": ill, "well": well}, wake=wake)):
        for _ in range(4):
            looks(well)
        assert ill.turns == 1, "by the loop's clock no time has passed"
        clock.s += 2
        looks(ill)
        clock.s += 2
        looks(well)
        looks(well)
        assert ill.turns == 2, "it rests longer each time"
        clock.s += 2
        looks(ill)


def test_a_failed_part_is_retried_without_a_wake_up() -> None:
    ill, rests = Noted(*[KubernetesUnavailable("away")] * 2), Random(0)
    rests.random = lambda: 0.001  # type: ignore[method-assign]
    parts = {"ill": ill, "well": Noted()}
    with _running(Loop(parts, lambda: True, INTERVAL_S, Wake(), OperatorMetrics(), rests)):
        wait_until(lambda: ill.turns == 3)


class Lead:
    """Whether this operator leads, as a test says; counts how often it is asked."""

    def __init__(self, leads: bool) -> None:
        self.leads, self.asked = leads, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.leads


def test_backoff_ends_when_the_lead_is_regained() -> None:
    wake, ill, lead = Wake(), Away(), Lead(True)
    with _running(_loop(Time(), {"ill": ill}, lead, wake)):
        wait_until(lambda: ill.turns == 1)
        lead.leads = False
        before = lead.asked
        wake()
        wait_until(lambda: lead.asked > before)
        lead.leads = True
        wake()
        wait_until(lambda: ill.turns == 2)


def test_a_lasting_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, again = Time(), [KubernetesUnavailable("away")] * 2
    loop = _loop(clock, {"part": Noted(*again, KubernetesUnavailable("still"))})
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            loop.turn(0.0)
            clock.s += 30
    said = [one.getMessage() for one in caplog.records]
    assert said == ["part wait: away", "part wait: still", "part go on"]


def test_a_lead_that_was_lost_is_no_failure() -> None:
    loop = _loop(Time(), {"part": Noted(LeaseSuperseded("not we"))})
    assert loop.turn(0.0) == INTERVAL_S


def test_a_change_wakes_it_and_without_the_lead_it_rests() -> None:
    part, wake, lead = Noted(), Wake(), Lead(False)

    def asks() -> bool:
        wake()
        return lead.asked >= 3

    with _running(_loop(Time(), {"part": part}, lead, wake)):
        wait_until(asks)
        assert part.turns == 0
        lead.leads = True
        for turns in (1, 2):
            wake()
            wait_until(lambda count=turns: part.turns >= count)  # type: ignore[misc]


@pytest.mark.system
def test_definitions_that_are_created_later_are_watched(tmp_path: Path) -> None:
    with emulated_in(tmp_path) as cluster:
        store, before = cluster.server.store, len(cluster.server.requests)
        missing = store.known.pop((TEACHER_SERVICE.api_version, TEACHER_SERVICE.plural))

        def asked() -> set[str]:
            paths = {path for _, path in cluster.server.requests[before:]}
            return {path.rpartition("/")[2] for path in paths if "/namespaces/" in path}

        woken = threading.Event()
        watching = Watching(cluster.connection, cluster.namespace, woken.set, again_s=0.05)
        watching.start()
        try:
            wait_until(asked)
            store.known[missing.key] = missing

            def seen() -> bool:
                cluster.create(TEACHER_SERVICE, f"s{time.monotonic_ns()}", SPEC)
                return woken.wait(0.2)

            wait_until(seen)
            # The rights to these are in deploy/kubernetes; see test_kubernetes_operator.py.
            wait_until(lambda: asked() == {kind.plural for kind in WATCHED})
        finally:
            watching.stop()
        assert not watching.alive


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


@pytest.mark.system
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
