"""The loop goes on whatever fails, each part by itself; processes of `edl operator run`."""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

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
AWAY = KubernetesUnavailable("away")


class Part:
    """A part that raises these errors, one a turn."""

    def __init__(self, errors: Iterable[Exception] = ()) -> None:
        self._errors = iter(errors)
        self.turns = 0

    def turn(self, now: float) -> None:
        self.turns += 1
        if (error := next(self._errors, None)) is not None:
            raise error


class Time:
    """Seconds that pass when a test says so, and rests that are the longest."""

    s = 1000.0

    def __call__(self) -> float:
        return self.s

    def random(self) -> float:
        return 1.0


class Lead:
    """Whether this operator leads, as a test says; counts how often it is asked."""

    def __init__(self, leads: bool = True) -> None:
        self.leads, self.asked = leads, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.leads


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


class World:
    """A loop in virtual time, of the parts `ill` and `well`."""

    def __init__(self, ill: Iterable[Exception], leads: bool = True) -> None:
        self.clock, self.wake, self.lead = Time(), Wake(), Lead(leads)
        self.ill, self.well = Part(ill), Part()
        self.metrics = OperatorMetrics(lambda: True)
        parts = {"ill": self.ill, "well": self.well}
        self.loop = Loop(
            parts, self.lead, INTERVAL_S, self.wake, self.metrics, self.clock, self.clock
        )

    def until(self, count: Callable[[], int]) -> None:
        """Report changes until a count has grown by one."""
        before = count()

        def grown() -> bool:
            self.wake()
            return count() > before

        wait_until(grown)


def test_a_failing_part_does_not_stop_the_others() -> None:
    world = World([AWAY, ValueError("never thought of"), LeaseSuperseded("not we")])
    assert world.loop.turn(0.0) == 2.0, "seconds until the one that failed has rested"
    world.clock.s += 2
    assert world.loop.turn(1.0) == 4.0
    world.clock.s += 4
    assert world.loop.turn(2.0) == INTERVAL_S, "a lead that was lost is no failure"
    assert (world.ill.turns, world.well.turns) == (3, 3)
    sample = world.metrics.registry.get_sample_value
    assert sample("edl_operator_turns_total", {"part": "ill", "result": "failed"}) == 2
    assert sample("edl_operator_turns_total", {"part": "well", "result": "done"}) == 3
    assert sample("edl_operator_leading") == 1


def test_while_one_part_fails_the_other_sees_changes_at_once() -> None:
    world = World(itertools.repeat(AWAY))
    with _running(world.loop):
        for _ in range(4):
            world.until(lambda: world.well.turns)
        assert world.ill.turns == 1, "by the loop's clock no time has passed"
        world.clock.s += 2
        world.until(lambda: world.ill.turns)
        world.clock.s += 2
        for _ in range(2):
            world.until(lambda: world.well.turns)
        assert world.ill.turns == 2, "it rests longer each time"
        world.clock.s += 2
        world.until(lambda: world.ill.turns)


def test_a_failed_part_is_retried_without_a_wake_up() -> None:
    ill, rests = Part([AWAY] * 2), Random(0)
    rests.random = lambda: 0.001  # type: ignore[method-assign]
    parts = {"ill": ill, "well": Part()}
    with _running(Loop(parts, lambda: True, INTERVAL_S, Wake(), OperatorMetrics(), rests)):
        wait_until(lambda: ill.turns == 3)


def test_without_the_lead_it_rests_and_with_it_begins_anew() -> None:
    world = World(itertools.repeat(AWAY), leads=False)
    with _running(world.loop):
        for _ in range(3):
            world.until(lambda: world.lead.asked)
        assert world.ill.turns == 0
        world.lead.leads = True
        world.until(lambda: world.ill.turns)
        world.lead.leads = False
        for _ in range(2):  # by the second time the loop has acted on the first answer
            world.until(lambda: world.lead.asked)
        world.lead.leads = True
        world.until(lambda: world.ill.turns)


def test_a_lasting_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World([AWAY, AWAY, KubernetesUnavailable("still")])
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            world.loop.turn(0.0)
            world.clock.s += 30
    said = [one.getMessage() for one in caplog.records]
    assert said == ["ill wait: away", "ill wait: still", "ill go on"]


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
