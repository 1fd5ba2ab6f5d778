"""Elastic jobs whose pods the cluster ends, refuses, cannot place, or hears nothing of."""

from __future__ import annotations

from dataclasses import replace

from edl.scheduler.elastic import ElasticConfig
from edl.scheduler.job_pods import Ledger, PodsConfig, refused

from .pod_world import PodWorld, world_of


def _two_have_a_place(least: int) -> PodWorld:
    """One job of up to 4 nodes that has waited for a place of its third until it gave it up."""
    world = world_of(4, ("a", least, 4))
    world.placeable = 2
    world.turn()
    world.live()
    world.live(60)
    world.rest()
    return world


def test_what_the_cluster_ends_is_replaced_and_no_failure_of_the_job() -> None:
    world = world_of(3, ("a", 1, 3))
    world.rest()
    world.end("a", 1, None, "Evicted: the node was low on memory")
    world.pods["a"][2] = replace(world.pods["a"][2], going=True)  # a drain, or preemption
    world.rest()
    assert world.staying("a") == [3, 4, 5]
    assert world.ledgers["a"].failures == 0
    assert world.said.count("a: NodeLost") == 1
    assert world.state("a") == "running"


def test_a_machine_that_refuses_pods_is_not_sent_one_after_another() -> None:
    world = world_of(1, ("a", 1, 1), config=PodsConfig(ElasticConfig(freeze_s=0), lost_pause_s=2))
    for _ in range(1800):
        world.turn()
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
    world.turn()
    world.live(60)
    world.turn()
    assert len(world.made["a"]) == made + 1


def test_times_of_a_clock_that_is_ahead_hold_nobody_up_for_long() -> None:
    world = world_of(4, ("a", 1, 4), config=PodsConfig())
    world.rest()
    ahead_s = world.now + 7200
    world.ledgers["a"] = replace(
        world.ledgers["a"], retry_s=ahead_s, changed_s=ahead_s, fits=2, fits_until_s=ahead_s
    )
    world.end("a", 4, None)
    world.live(301)
    world.turn()
    world.live(301)
    world.rest()
    assert world.counts() == {"a": 4}


def test_nodes_on_machines_that_are_lost_or_closed_leave_first() -> None:
    world = world_of(4, ("a", 1, 4))
    world.rest()
    world.pods["a"][1] = replace(world.pods["a"][1], machine="closed")
    world.pods["a"][2] = replace(world.pods["a"][2], machine="silent")
    world.room = 2
    world.turn()
    assert world.orders["a"].leave == (1, 2)


def test_a_node_on_a_silent_machine_does_not_keep_its_job_from_ending() -> None:
    world = world_of(2, ("a", 1, 1))
    world.rest()
    world.pods["a"][1] = replace(world.pods["a"][1], machine="silent", going=True)
    world.ask("a", stop=True)
    world.turn()
    assert world.state("a") == "stopped"


def test_what_cannot_be_placed_is_given_up_after_a_patience_and_asked_for_again() -> None:
    world = world_of(4, ("a", 1, 4))
    world.placeable = 2
    world.turn()
    world.live()
    world.turn()
    assert world.orders["a"].reason == "node 3 waits: 0/3 nodes are available"
    assert world.orders["a"].degraded == "NodeWaits"
    assert world.counts() == {"a": 4}
    world.live(60)
    world.rest()
    assert world.staying("a") == [1, 2]
    assert world.said.count("a: Unplaceable") == 1
    assert world.state("a") == "running"
    assert world.orders["a"].reason.startswith("has the 2 nodes that have a place, asks for more")
    assert "0/3 nodes are available" in world.orders["a"].reason
    world.submit("b", 2, 2)
    world.rest()
    assert world.counts() == {"a": 2, "b": 2}, "it does not hold others up"
    world.ask("b", stop=True)
    world.placeable = None
    world.live(300)
    world.rest()
    assert world.counts() == {"a": 4, "b": 0}


def test_what_waits_of_a_spec_that_is_wrong_is_left_alone_until_it_is_mended() -> None:
    world = world_of(4, ("a", 1, 4))
    world.placeable = 2
    world.turn()
    world.live()
    world.ask("a", wrong="podTemplate is no template of a pod")
    world.live(61)
    world.turn()
    calls = world.calls
    for _ in range(5):
        world.turn()
        world.live(30)
    assert world.calls == calls, "nothing is written, nothing is told"
    assert world.counts() == {"a": 4}
    assert "a: Unplaceable" not in world.said
    assert world.orders["a"].degraded == "SpecRefused"
    world.ask("a", wrong="")
    world.rest()
    assert world.staying("a") == [1, 2]


def test_what_runs_of_a_spec_that_is_wrong_stays_whatever_it_asks_for() -> None:
    world = _two_have_a_place(1)
    assert (world.staying("a"), world.ledgers["a"].fits) == ([1, 2], 2)
    world.ask("a", least=3, wrong="podTemplate is no template of a pod")
    world.rest()
    assert world.staying("a") == [1, 2]


def test_a_pod_that_is_never_taken_is_a_node_that_failed() -> None:
    config = PodsConfig()
    once = refused(Ledger(failures=1), 2, "x" * 1000, 100.0, config, never=True)
    assert (once.failures, once.retry_s, once.fits) == (2, 101.0, None)
    assert once.why == "x" * 600
    again = refused(replace(once, retry_s=500.0), 2, "no", 100.0, config, never=True)
    assert (again.failures, again.retry_s) == (3, 500.0), "what waits already waits no shorter"


def test_a_pod_that_is_not_allowed_has_no_place() -> None:
    config = PodsConfig(place_again_s=40.0)
    found = refused(Ledger(target=4, failures=1), 2, "quota", 100.0, config, never=False)
    assert found == Ledger(target=4, failures=1, fits=2, fits_until_s=140.0, why="quota")


def test_one_that_cannot_begin_is_given_up_rather_than_a_newer_one_that_runs() -> None:
    world = world_of(3, ("a", 1, 3))
    world.rest()
    since_s = world.now - 60
    world.pods["a"][1] = replace(
        world.pods["a"][1], runs=False, ready=False, unplaced_since_s=since_s, said="no such image"
    )
    world.turn()
    assert world.orders["a"].leave == (1,)
    assert world.ledgers["a"].why == "node 1 has no place: no such image"


def test_a_job_whose_fewest_nodes_cannot_be_placed_makes_room_and_tries_again() -> None:
    world = _two_have_a_place(3)
    assert world.counts() == {"a": 0}
    assert world.state("a") == "creating"
    assert world.orders["a"].degraded == "Unplaceable"
    reason = world.orders["a"].reason
    assert reason.startswith("waits, as 2 nodes have a place and it needs 3: node 3 has no place:")
    world.submit("b", 1, 4)
    world.placeable = None
    world.rest()
    assert world.counts() == {"a": 0, "b": 4}
    world.live(300)
    world.rest()
    assert world.counts() == {"a": 3, "b": 1}


def test_a_pod_in_which_others_go_on_is_not_kept() -> None:
    world = world_of(1, ("a", 1, 1))
    world.rest()
    world.end("a", 1, 0)
    world.pods["a"][1] = replace(world.pods["a"][1], lingers=True)
    world.turn()
    assert world.state("a") == "succeeded"
    assert world.pods["a"] == {}
    world.rest()
    assert world.state("a") == "succeeded"
