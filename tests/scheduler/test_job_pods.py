"""Elastic jobs whose nodes are pods: who gets how many, how they end, what is unplaceable."""

from __future__ import annotations

import pytest

from edl.scheduler.elastic import ElasticConfig, Pool
from edl.scheduler.job_pods import JobSeen, JobWanted, PodsConfig, decide_pods

from .pod_world import AT_ONCE, Killed, PodWorld, world_of


def test_a_job_begins_with_all_that_there_is_room_for_and_says_so() -> None:
    world = world_of(3, ("a", 1, 4))
    world.turn()
    assert world.state("a") == "creating"
    assert world.staying("a") == [1, 2, 3]
    world.rest()
    assert world.state("a") == "running"
    assert world.orders["a"].ready == 3
    assert world.ledgers["a"].started_s is not None
    assert world.orders["a"].reason == "no room for another node"


def test_a_new_job_is_admitted_by_those_that_have_more_than_their_fewest() -> None:
    world = world_of(4, ("a", 1, 4))
    world.rest()
    world.submit("b", 2, 2)
    world.turn()
    assert world.staying("a") == [1, 2]  # the newest leave first
    assert world.orders["a"].reason == "gives 2 nodes to make room for b"
    assert world.orders["b"].reason == "waits for nodes that are leaving to make room"
    assert world.counts()["b"] == 0, "its room is not there yet"
    world.rest()
    assert world.counts() == {"a": 2, "b": 2}
    assert world.said.count("a: Scaled") == 2
    world.ask("b", stop=True)
    world.rest()
    assert world.counts() == {"a": 4, "b": 0}
    assert world.staying("a") == [1, 2, 5, 6], "numbers are not used again"
    assert world.state("b") == "stopped"


def test_a_higher_priority_stops_a_lower_one_and_gives_back() -> None:
    world = world_of(2, ("low", 2, 2))
    world.rest()
    world.submit("high", 1, 2, priority=5)
    world.rest()
    assert world.counts() == {"low": 0, "high": 2}
    assert world.state("low") == "creating"
    assert world.ledgers["low"].waiting_since_s is not None
    world.end("high", world.staying("high")[0], 0)
    world.end("high", world.staying("high")[0], 0)
    world.rest()
    assert world.state("high") == "succeeded"
    assert world.counts() == {"low": 2, "high": 0}


def test_by_hand_it_runs_with_as_many_within_its_limits() -> None:
    world = world_of(8, ("a", 2, 6))
    world.rest()
    assert world.counts() == {"a": 6}
    world.ask("a", asked=3)
    world.rest()
    assert world.counts() == {"a": 3}
    world.ask("a", asked=0)
    world.rest()
    assert world.counts() == {"a": 2}
    world.ask("a", asked=None)
    world.rest()
    assert world.counts() == {"a": 6}


def test_a_stopped_job_leaves_and_may_begin_again() -> None:
    world = world_of(2, ("a", 1, 2))
    world.rest()
    world.ask("a", stop=True)
    world.turn()
    assert world.state("a") == "scaling"
    assert world.orders["a"].reason == "its nodes are leaving: it was asked to stop"
    world.rest()
    assert world.state("a") == "stopped"
    assert world.ledgers["a"].ended_s is not None
    world.ask("a", stop=False)
    world.rest()
    assert world.state("a") == "running"
    assert world.ledgers["a"].ended_s is None
    assert world.staying("a") == [3, 4]


def test_it_is_done_when_a_node_ends_well_unasked_and_no_other_is_left() -> None:
    world = world_of(2, ("a", 1, 2))
    world.rest()
    world.end("a", 1, 0)
    world.rest()
    assert world.state("a") == "running"
    assert world.staying("a") == [2], "nobody comes in its place"
    assert world.orders["a"].reason == "a node has ended well; the last ones are waited for"
    world.end("a", 2, 0)
    world.rest()
    assert world.state("a") == "succeeded"
    world.pods["a"].clear()
    world.rest()
    assert world.state("a") == "succeeded", "also when nobody sees its pods any more"
    assert world.said.count("a: Succeeded") == 1


@pytest.mark.parametrize(("trains", "state"), [(True, "succeeded"), (False, "stopped")])
def test_one_that_ends_well_as_it_was_told_to_leave(trains: bool, state: str) -> None:
    world = PodWorld(1)
    world.submit("a", 1, 1, trains=trains)
    world.rest()
    world.ask("a", stop=True)
    world.turn()
    world.end("a", 1, 0)
    world.turn()
    assert world.state("a") == state


def test_a_node_that_fails_is_started_again_later_each_time_until_too_many_have() -> None:
    world = PodWorld(2)
    world.submit("a", 1, 1, retries=2)
    world.rest()
    for number, pause_s in ((1, 0.5), (2, 1.0)):
        world.end("a", number, 3, "no such file")
        world.turn()
        assert world.staying("a") == []
        words = world.orders["a"].reason
        assert words.startswith("a node is started again: node ")
        assert words.endswith("exit code 3; its last lines: no such file")
        world.now += pause_s - 0.1
        world.turn()
        assert world.staying("a") == []
        world.live(0.1)
        world.turn()
        world.live(0)
        assert world.staying("a") == [number + 1]
    world.end("a", 3, 1)
    world.rest()
    assert world.state("a") == "failed"
    assert world.ledgers["a"].failures == 3
    assert world.orders["a"].reason == (
        "3 nodes ended badly: node 3 ended with exit code 1; it said nothing"
    )


def test_what_can_never_work_fails_at_once_and_its_other_nodes_leave() -> None:
    world = PodWorld(2)
    world.submit("a", 1, 2, trains=True, retries=9)
    world.rest()
    world.end("a", 2, 2, "no such job file")
    world.turn()
    assert world.state("a") == "scaling"
    world.rest()
    assert world.state("a") == "failed"
    assert "no such job file" in world.orders["a"].reason


def test_nodes_of_a_job_that_is_over_hold_their_room_until_they_are_gone() -> None:
    world = world_of(2, ("a", 2, 2))
    world.rest()
    world.submit("b", 2, 2)
    world.ask("a", stop=True)
    world.turn()
    world.turn()
    assert world.counts() == {"a": 0, "b": 0}
    assert world.orders["b"].reason == "waits for nodes that are leaving to make room"
    world.rest()
    assert world.counts() == {"a": 0, "b": 2}


def test_a_frozen_job_is_left_alone_across_a_restart() -> None:
    world = world_of(4, ("a", 1, 4), config=PodsConfig(ElasticConfig(freeze_s=30)))
    world.reserved = 2
    world.rest()
    world.reserved = 0
    world.turn()
    assert world.counts() == {"a": 4}
    changed_s = world.ledgers["a"].changed_s
    world.submit("b", 1, 4)
    world.live()
    world.rest()
    assert world.counts() == {"a": 3, "b": 1}, "who could not run otherwise is let in"
    assert world.ledgers["a"].changed_s != changed_s
    world.live(31)
    world.rest()
    assert world.counts() == {"a": 2, "b": 2}


@pytest.mark.parametrize("kill_at", [1, 2, 3, 4])
def test_a_number_that_was_given_out_is_used_up_whatever_becomes_of_its_pod(kill_at: int) -> None:
    world = world_of(3, ("a", 1, 3))
    with pytest.raises(Killed):
        world.turn(kill_at)
    world.pods["a"].clear()  # the cluster takes them away before anybody looks again
    world.rest()
    assert len(world.staying("a")) == 3
    assert len(set(world.made["a"])) == len(world.made["a"])


def test_of_ended_pods_the_last_are_kept() -> None:
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


def test_what_cannot_be_understood_starts_nothing_and_ends_nothing() -> None:
    world = world_of(3, ("a", 1, 3))
    world.submit("b", 1, 3, wrong="train: --nodes is what the fleet says")
    world.rest()
    assert world.counts() == {"a": 3, "b": 0}
    assert world.orders["b"].degraded == "SpecRefused"
    assert world.orders["b"].reason.endswith("train: --nodes is what the fleet says")
    world.ask("a", wrong="no image")
    world.end("a", 1, 1)
    world.rest(60)
    assert world.staying("a") == [2, 3]


def test_jobs_have_names_of_their_own() -> None:
    jobs = [JobSeen("a", JobWanted()), JobSeen("a", JobWanted())]
    with pytest.raises(ValueError, match="two jobs have one name"):
        decide_pods(Pool({}), jobs, 0.0, AT_ONCE)
    with pytest.raises(ValueError, match="place_within_s"):
        PodsConfig(place_within_s=-1)
