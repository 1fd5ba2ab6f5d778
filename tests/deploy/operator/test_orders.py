"""Elastic jobs whose nodes are pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.jobs.decisions import decide_pods
from edl.deploy.operator.jobs.ledger import (
    DesiredJob,
    NodePod,
    ObservedJob,
    PodLedger,
    record_refusal,
)
from edl.scheduler.elastic_values import Pool

from .pod_world import AT_ONCE, PodWorld, world_of


def at_rest(room: float, *jobs: tuple[str, int, int], config: OperatorConfig = AT_ONCE) -> PodWorld:
    """A world of these jobs in which all nodes run that have room."""
    world = world_of(room, *jobs, config=config)
    world.rest()
    return world


class TestPods:
    def test_stopped_job_may_start_again(self) -> None:
        world = at_rest(2, ("a", 1, 2))
        world.ask("a", stop=True)
        world.reconcile()
        assert world.state("a") == "scaling"
        world.end("a", 1, 0)
        world.rest()
        assert world.state("a") == "stopped", "one that ends as it is told to has not succeeded"
        assert world.ledgers["a"].ended_s is not None
        world.ask("a", stop=False)
        world.rest()
        assert world.state("a") == "running"
        assert world.ledgers["a"].ended_s is None
        assert world.staying("a") == [3, 4]

    def test_success_when_the_last_node_ends_well(self) -> None:
        world = at_rest(2, ("a", 1, 2))
        world.end("a", 1, 0)
        world.rest()
        assert world.state("a") == "running"
        assert world.staying("a") == [2], "nobody comes in its place"
        world.end("a", 2, 0)
        world.rest()
        assert world.state("a") == "succeeded"
        world.pods["a"].clear()
        world.rest()
        assert world.state("a") == "succeeded", "also when nobody sees its pods any more"
        assert world.said.count("a: Succeeded") == 1

    def test_failed_nodes_are_restarted_until_too_many(self) -> None:
        world = PodWorld(2)
        world.submit("a", 1, 1, retries=2)
        world.rest()
        for number, pause_s in ((1, 0.5), (2, 1.0)):
            world.end("a", number, 3, "no such file")
            world.reconcile()
            assert world.staying("a") == []
            assert "no such file" in world.orders["a"].reason
            world.now += pause_s - 0.1
            world.reconcile()
            assert world.staying("a") == []
            world.live(0.1)
            world.reconcile()
            world.live(0)
            assert world.staying("a") == [number + 1]
        world.end("a", 3, 1)
        world.rest()
        assert world.state("a") == "failed"
        assert world.ledgers["a"].failures == 3

    def test_nodes_that_fail_together_use_one_retry(self) -> None:
        world = PodWorld(4)
        world.submit("a", 1, 4, retries=1)
        world.rest()
        for number in world.staying("a"):
            world.end("a", number, 1)
        world.reconcile()
        assert (world.ledgers["a"].failures, world.state("a")) == (1, "creating")

    def test_hopeless_job_fails_at_once(self) -> None:
        world = PodWorld(2)
        world.submit("a", 1, 2, trains=True, retries=9)
        world.rest()
        world.end("a", 2, 2, "no such job file")
        world.reconcile()
        assert world.state("a") == "scaling"
        world.rest()
        assert world.state("a") == "failed"
        assert "no such job file" in world.orders["a"].reason

    def test_last_ended_pods_are_kept(self) -> None:
        world = PodWorld(1)
        world.submit("a", 1, 1, retries=20)
        for _ in range(8):
            world.rest(40)
            world.end("a", world.staying("a")[0], 1)
        world.rest(40)
        ended = sorted(n for n, pod in world.pods["a"].items() if pod.ended)
        assert ended == [4, 5, 6, 7, 8]
        assert world.ledgers["a"].counted == frozenset(ended)
        assert world.ledgers["a"].failures == 8

    def test_invalid_input_is_refused(self) -> None:
        jobs = [ObservedJob("a", DesiredJob()), ObservedJob("a", DesiredJob())]
        with pytest.raises(ValueError, match="two jobs have one name"):
            decide_pods(Pool({}), jobs, 0.0, AT_ONCE)


class TestFailures:
    def test_refusing_machine_gets_few_pods(self) -> None:
        world = world_of(1, ("a", 1, 1), config=replace(AT_ONCE, lost_pause_s=2))
        for _ in range(1800):
            world.reconcile()
            for number in world.staying("a"):
                world.end("a", number, None, "OutOfcpu")
            world.now += 1
        assert 30 < len(world.made["a"]) < 80, "half an hour of one each two seconds is 900"
        assert world.ledgers["a"].failures == 0
        world.live(60)
        world.rest()
        assert world.state("a") == "running"
        made = len(world.made["a"])
        world.end("a", world.staying("a")[0], None, "Evicted")
        world.reconcile()
        world.live(60)
        world.reconcile()
        assert len(world.made["a"]) == made + 1

    def test_clock_that_was_ahead(self) -> None:
        world = at_rest(4, ("a", 1, 4), config=OperatorConfig())
        late_s = world.now + 7200
        ahead = {
            "retry_at_s": late_s,
            "changed_s": late_s,
            "placeable": 2,
            "placeable_until_s": late_s,
        }
        world.ledgers["a"] = replace(world.ledgers["a"], **ahead)  # type: ignore[arg-type]
        world.end("a", 4, None)
        world.live(301)
        world.reconcile()
        world.live(301)
        world.rest()
        assert world.counts() == {"a": 4}

    def test_nodes_on_lost_machines_leave_first(self) -> None:
        world = at_rest(4, ("a", 1, 4))
        world.pods["a"][1] = replace(world.pods["a"][1], machine="closed")
        world.pods["a"][2] = replace(world.pods["a"][2], machine="silent")
        world.room = 2
        world.reconcile()
        assert world.orders["a"].leave == (1, 2)

    def test_silent_machine_does_not_block_the_end(self) -> None:
        world = at_rest(2, ("a", 1, 1))
        world.pods["a"][1] = replace(world.pods["a"][1], machine="silent", deleting=True)
        world.ask("a", stop=True)
        world.reconcile()
        assert world.state("a") == "stopped"

    def test_unplaceable_nodes_are_given_up_for_a_while(self) -> None:
        world = world_of(4, ("a", 1, 4))
        world.placeable = 2
        world.reconcile()
        world.live()
        world.reconcile()
        assert world.orders["a"].degraded == "NodeWaits"
        assert world.counts() == {"a": 4}
        world.live(60)
        world.rest()
        assert world.staying("a") == [1, 2]
        assert world.said.count("a: Unplaceable") == 1
        assert world.state("a") == "running"
        assert "0/3 nodes are available" in world.orders["a"].reason
        world.submit("b", 2, 2)
        world.rest()
        assert world.counts() == {"a": 2, "b": 2}, "it does not hold others up"
        world.ask("b", stop=True)
        world.placeable = None
        world.live(300)
        world.rest()
        assert world.counts() == {"a": 4, "b": 0}

    def test_refused_pods(self) -> None:
        config = OperatorConfig()
        once = record_refusal(PodLedger(failures=1), 2, "x" * 1000, 100.0, config, never=True)
        assert (once.failures, once.retry_at_s, once.placeable) == (2, 101.0, None)
        assert once.why == "x" * 600
        again = record_refusal(replace(once, retry_at_s=500.0), 2, "no", 100.0, config, never=True)
        assert (again.failures, again.retry_at_s) == (3, 500.0), (
            "what waits already waits no shorter"
        )
        config = OperatorConfig(place_again_s=40.0)
        found = record_refusal(
            PodLedger(target=4, failures=1), 2, "quota", 100.0, config, never=False
        )
        assert found == PodLedger(
            target=4, failures=1, placeable=2, placeable_until_s=140.0, why="quota"
        )

    def test_unplaced_node_leaves_before_newer_running_ones(self) -> None:
        world = at_rest(3, ("a", 1, 3))
        world.pods["a"][1] = NodePod(1, unplaced_since_s=world.now - 60, message="no such image")
        world.reconcile()
        assert world.orders["a"].leave == (1,)
        assert world.ledgers["a"].why == "node 1 cannot be placed or started: no such image"

    def test_lingering_pod_is_not_kept(self) -> None:
        world = at_rest(1, ("a", 1, 1))
        world.end("a", 1, 0)
        world.pods["a"][1] = replace(world.pods["a"][1], sidecars_run=True)
        world.reconcile()
        assert world.state("a") == "succeeded"
        assert world.pods["a"] == {}
        world.rest()
        assert world.state("a") == "succeeded"
