"""The loop goes on whatever fails, and each part by itself."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from edl.deploy.operator.loop import Loop, Wake
from edl.deploy.operator.metrics import OperatorMetrics
from edl.deploy.operator.watching import Watching
from edl.errors import KubernetesUnavailable, LeaseSuperseded, ObjectMissing
from edl.lifecycle import Stop
from edl.mesh.kubernetes.resources import DEPLOYMENT, TEACHER_SERVICE
from edl.tests.deploy.kube_api.cluster import Cluster
from edl.tests.deploy.operator.teaching import NAME, SPEC, Operator, Said


class Noted:
    """A part that does what a test says."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.turns = 0

    def turn(self, now: float) -> None:
        self.turns += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error


def _loop(metrics: OperatorMetrics | None = None, **parts: Noted) -> Loop:
    metrics = metrics or OperatorMetrics()
    return Loop(parts, lambda: True, 60.0, Wake(), metrics, random.Random(1))


def _count(registry: CollectorRegistry, part: str, result: str) -> float:
    labels = {"part": part, "result": result}
    return registry.get_sample_value("edl_operator_turns_total", labels) or 0.0


def test_one_parts_trouble_is_not_the_others() -> None:
    metrics = OperatorMetrics(lambda: True)
    well, ill = Noted(), Noted(KubernetesUnavailable("away"), ValueError("never thought of"))
    loop = _loop(metrics, ill=ill, well=well)
    assert [loop.turn(float(now)) for now in range(3)] == [False, False, True]
    assert (ill.turns, well.turns) == (3, 3)
    assert _count(metrics.registry, "ill", "failed") == 2
    assert _count(metrics.registry, "well", "done") == 3
    assert metrics.registry.get_sample_value("edl_operator_leading") == 1


def test_a_lead_that_was_lost_is_no_failure() -> None:
    assert _loop(part=Noted(LeaseSuperseded("not we"))).turn(0.0)


def _eventually(what: Callable[[], bool], limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < until, "it has not come"
        time.sleep(0.005)


def test_a_change_wakes_it_and_without_the_lead_it_rests() -> None:
    part, wake, leads, stop = Noted(), Wake(), [False], Stop()
    loop = Loop({"part": part}, lambda: leads[0], 600.0, wake, OperatorMetrics())
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        wake()
        leads[0] = True
        wake()
        _eventually(lambda: part.turns == 1)
        wake()
        _eventually(lambda: part.turns == 2)
    finally:
        stop.request()
        thread.join(10)
    assert not thread.is_alive()


def test_definitions_that_come_later_are_watched(cluster: Cluster) -> None:
    woken = threading.Event()
    there = [False]
    asked = threading.Event()

    class Watched(Watching):
        def _find(self) -> None:
            asked.set()
            if not there[0]:
                raise ObjectMissing("no such definition", True)
            super()._find()

    watching = Watched(cluster.connection, cluster.namespace, woken.set, again_s=0.05)
    watching.start()
    try:
        assert asked.wait(20)
        there[0] = True

        def seen() -> bool:
            cluster.create(TEACHER_SERVICE, f"s{time.monotonic_ns()}", SPEC)
            return woken.wait(0.2)

        _eventually(seen)
    finally:
        watching.stop()
    assert not watching.alive


def test_an_api_that_is_away_for_a_while_is_waited_for(cluster: Cluster) -> None:
    cluster.node("m1")
    operator = Operator(cluster, Said(resnet101=1))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    failing = [True]

    def hook(method: str, path: str) -> None:
        if failing[0]:
            raise KubernetesUnavailable("away")

    with cluster.calling(hook) as client:

        class Part:
            def turn(self, now: float) -> None:
                operator.turn(client)

        loop = Loop({"teachers": Part()}, lambda: True, 1.0, Wake(), OperatorMetrics())
        assert [loop.turn(0.0), loop.turn(1.0)] == [False, False]
        failing[0] = False
        assert loop.turn(2.0)
    assert cluster.client.get(DEPLOYMENT, NAME)["spec"]["replicas"] == 1
