"""How a job ends, as its nodes do; what state it is in on the way."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.job_states import Ending, Life, ending_of, limits_of, state_of

ENDINGS: tuple[Ending, ...] = get_args(Ending)


@pytest.mark.parametrize(
    ("code", "told", "trains", "ending"),
    [
        (0, False, False, "done"),
        (0, True, False, "left"),  # a program that ends in order when it is told to
        (0, True, True, "done"),  # a training that was finished at that very moment
        (-15, True, True, "left"),
        (-15, False, True, "failed"),  # somebody else ended it
        (-9, True, False, "left"),
        (3, False, False, "failed"),
        (2, False, False, "failed"),
        (2, False, True, "hopeless"),  # its job file or options cannot work
        (2, True, True, "left"),
    ],
)
def test_how_a_node_ended(code: int, told: bool, trains: bool, ending: Ending) -> None:
    assert ending_of(code, told, trains) == ending


def test_so_many_nodes_may_fail_and_one_more_is_too_many() -> None:
    life = Life(retries=2)
    for _ in range(2):
        life = life.after("failed")
        assert life.grows
    assert life.after("failed").broken
    assert not life.after("failed").grows
    assert Life(retries=9).after("hopeless").broken


def test_the_next_try_comes_later_each_time_but_comes() -> None:
    life, delays = Life(retries=50), []
    for _ in range(40):
        life = life.after("failed")
        delays.append(life.delay_s)
    assert delays[:3] == [0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert delays[-1] == 30.0


@pytest.mark.parametrize(
    ("life", "asked", "nodes", "limits"),
    [
        (Life(), None, 0, (2, 4)),
        (Life(), 3, 4, (2, 3)),
        (Life(), 1, 4, (2, 2)),  # of a queue that anybody may write to: never below its fewest
        (Life(), 9, 4, (2, 4)),
        (Life(done=True), None, 3, (2, 3)),
        (Life(done=True), 4, 1, (1, 1)),
        (Life(hopeless=True), 4, 0, (1, 1)),
    ],
)
def test_how_many_nodes_a_job_may_have(
    life: Life, asked: int | None, nodes: int, limits: tuple[int, int]
) -> None:
    assert limits_of(life, 2, 4, asked=asked, nodes=nodes) == limits


def state(life: Life, **given: object) -> str:
    facts = {"stop": False, "target": 2, "least": 1, "nodes": 2, "leaving": 0, "begun": True}
    return state_of(life, **{**facts, **given})  # type: ignore[arg-type]


def test_states_of_a_job_that_goes() -> None:
    life = Life(retries=3)
    assert state(life, nodes=0, begun=False) == "creating"
    assert state(life, nodes=1, least=2, begun=False) == "creating"
    assert state(life) == "running"
    assert state(life, nodes=1) == "scaling"
    assert state(life, leaving=1) == "scaling"
    assert state(life, nodes=0, leaving=1, target=0) == "scaling"
    assert state(life, nodes=0, target=0) == "creating"  # it has made room, and waits
    assert state(life, stop=True) == "scaling"
    assert state(life, stop=True, nodes=0) == "stopped"
    assert state(life.after("done"), nodes=1) == "running"


@given(
    st.lists(st.sampled_from(ENDINGS), max_size=12),
    st.integers(0, 4),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
)  # fmt: skip
def test_a_job_ends_when_its_last_node_does_and_never_before(
    endings: list[Ending], retries: int, stop: bool, nodes: int, leaving: int, begun: bool
) -> None:
    life = Life(retries)
    for ending in endings:
        grew = life.grows
        life = life.after(ending)
        assert grew or not life.grows, "what is over stays over"
    bad = sum(ending in ("failed", "hopeless") for ending in endings)
    assert life.failures == bad
    found = state(life, stop=stop, nodes=nodes, leaving=leaving, begun=begun)
    ended = found in ("succeeded", "failed", "stopped")
    assert ended == (nodes + leaving == 0 and (stop or not life.grows))
    if ended:
        assert (found == "failed") == (bad > retries or "hopeless" in endings)
        assert found != "succeeded" or "done" in endings
