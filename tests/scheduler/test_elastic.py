"""How many nodes elastic jobs get, and how jobs end; laws are in tests/properties/test_elastic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.elastic import decide, fulfilment
from edl.scheduler.elastic_values import ElasticConfig, ElasticJob, ElasticMemory, Pool, Target
from edl.scheduler.job_states import NodeEnding, NodeEndings, ending_of, limits_of, state_of

AT_ONCE = ElasticConfig(freeze_s=0)
COUNTS = st.integers(0, 4)
ENDED: st.SearchStrategy[list[NodeEnding]] = st.lists(
    st.sampled_from(get_args(NodeEnding)), max_size=12
)


def ask(
    pool: Pool | int,
    *jobs: ElasticJob,
    config: ElasticConfig = AT_ONCE,
    memory: ElasticMemory | None = None,
    now: float = 100.0,
) -> dict[str, Target]:
    """Targets by job; a number is a pool of that many slots."""
    pool = Pool.of_slots(pool) if isinstance(pool, int) else pool
    targets, _ = decide(pool, jobs, memory or ElasticMemory(), now, config)
    return {target.job: target for target in targets}


def nodes(pool: Pool | int, *jobs: ElasticJob, config: ElasticConfig = AT_ONCE) -> list[int]:
    found = ask(pool, *jobs, config=config)
    return [found[job.name].nodes for job in jobs]


def settled(pool: Pool, jobs: Sequence[ElasticJob], config: ElasticConfig = AT_ONCE) -> list[int]:
    """The nodes once nothing changes any more; fails when that takes more than 20 decisions."""
    memory = ElasticMemory()
    for step in range(20):
        targets, memory = decide(pool, jobs, memory, float(step), config)
        if all(t.nodes == j.nodes for j, t in zip(jobs, targets, strict=True)):
            return [target.nodes for target in targets]
        jobs = [replace(j, nodes=t.nodes) for j, t in zip(jobs, targets, strict=True)]
    raise AssertionError(f"never settles: {jobs}")


class TestOneJob:
    def test_base_resources_count(self) -> None:
        first = ElasticJob("first", 1, 2, nodes=2, needs={"cpu": 5}, base={"cpu": 3})
        second = replace(first, name="second", nodes=0, submitted_s=30)
        assert nodes(Pool({"cpu": 24}), first, second) == [2, 1]  # 13 and 8 of 24
        assert nodes(Pool({"cpu": 20}), first, second) == [1, 0]
        assert nodes(Pool({"gpu": 9}), second) == [0], "a kind that the pool does not have"

    def test_frozen_job_does_not_grow(self) -> None:
        job, memory = ElasticJob("a", 1, 4, nodes=2), ElasticMemory({"a": 90.0})
        config = ElasticConfig(freeze_s=30)
        assert ask(4, job, config=config, memory=memory, now=100)["a"].nodes == 2
        assert ask(4, job, config=config, memory=memory, now=120)["a"].nodes == 4

    def test_near_its_end_or_while_forming_a_job_does_not_grow(self) -> None:
        ends = ElasticJob("ends", 1, 4, nodes=2, progress=0.98)
        assert nodes(4, ends) == [2]
        other, comes = ElasticJob("other", 1, 9, nodes=2), ElasticJob("x", 1, 1, submitted_s=9)
        assert nodes(4, ends, other, comes) == [2, 1, 0], "it gives last"
        assert nodes(4, ElasticJob("a", 1, 4, nodes=2, steady=False)) == [2]


class TestSeveralJobs:
    def test_least_fulfilled_grows_first(self) -> None:
        for job, count, share in (((1, 2), 2, 1), ((1, 2), 1, 0), ((1, 3), 2, 0.5), ((2, 2), 2, 1)):
            assert fulfilment(ElasticJob("a", *job), count) == share
        # Fulfilled by 0, 1/19, 1/9 and 1.
        sizes = (("a", 1, 2, 1), ("b", 1, 20, 2), ("c", 1, 10, 2), ("d", 1, 1, 1))
        jobs = [ElasticJob(name, least, most, nodes=n) for name, least, most, n in sizes]
        assert nodes(7, *jobs) == [2, 2, 2, 1]
        assert nodes(8, *jobs) == [2, 3, 2, 1]
        small = ElasticJob("z", 1, 2, nodes=1, needs={"cpu": 1, "gpu": 0})
        large = ElasticJob("a", 1, 2, nodes=1, needs={"cpu": 1, "gpu": 1})
        assert nodes(Pool({"cpu": 3, "gpu": 2}), large, small) == [1, 2]

    def test_most_fulfilled_gives_first(self) -> None:
        half, most = ElasticJob("half", 1, 9, nodes=5), ElasticJob("most", 1, 5, nodes=4)
        comes = ElasticJob("comes", 1, 1, submitted_s=9)
        assert nodes(9, half, most, comes) == [5, 3, 0]  # 4/8 and 3/4
        two = replace(comes, min_nodes=2, max_nodes=2)
        assert nodes(9, replace(half, submitted_s=5), most, two) == [4, 3, 0]

    def test_freed_nodes_are_kept_for_the_waiting_job(self) -> None:
        greedy = ElasticJob("greedy", 1, 9, nodes=2)
        gives = ElasticJob("gives", 1, 9, nodes=2, leaving=1)
        comes = ElasticJob("comes", 2, 2, submitted_s=9)
        assert nodes(6, greedy, gives, comes) == [2, 2, 0]
        ends = ElasticJob("ends", 1, 3, nodes=1, leaving=2)
        assert nodes(6, greedy, ends)[0] == 2, "it grows once, not step by step"

    def test_higher_priority_takes_nodes(self) -> None:
        low = ElasticJob("low", 1, 8, nodes=8)
        high = ElasticJob("high", 2, 7, priority=1, submitted_s=9)
        assert settled(Pool.of_slots(8), [low, high]) == [1, 7]
        gives = ask(10, low, replace(high, nodes=2))["low"]
        assert gives.reason.endswith("to high, of a higher priority")
        high = ElasticJob("high", 3, 3, priority=1, submitted_s=9)
        found = ask(4, ElasticJob("low", 2, 4, nodes=2), high)["low"]
        assert (found.nodes, found.reason) == (0, "stopped for high, of a higher priority")

    def test_jobs_make_room_for_online_services(self) -> None:
        first = ElasticJob("first", 1, 1, nodes=1)
        second = ElasticJob("second", 1, 2, nodes=2, submitted_s=1)
        found = ask(Pool.of_slots(3, reserved=1), first, second)
        assert (found["first"].nodes, found["second"].nodes) == (1, 1)
        assert found["second"].reason == "gives 1 node back to online services"
        found = ask(Pool.of_slots(1), second)
        assert found["second"].reason == "gives 1 node back: the pool became smaller"
        assert nodes(Pool.of_slots(3, reserved=2), first, second) == [1, 0], "the last to come"
        assert nodes(Pool.of_slots(3, reserved=2), first, replace(second, nodes=0)) == [1, 0]

    def test_memory_of_changes_and_waiting_jobs(self) -> None:
        jobs = [ElasticJob("a", 1, 4, nodes=4), ElasticJob("b", 1, 1)]
        _, memory = decide(Pool.of_slots(4), jobs, ElasticMemory({"gone": 1.0}), 7.0, AT_ONCE)
        assert (dict(memory.changed_s), dict(memory.waiting_since_s)) == ({"a": 7.0}, {"b": 7.0})
        _, memory = decide(Pool.of_slots(4), jobs[1:], memory, 8.0, AT_ONCE)
        assert not memory.changed_s, "a first start is no change"
        assert not memory.waiting_since_s

    @pytest.mark.parametrize(("gap", "expected"), [(0.5, [7, 4]), (0.2, [6, 5]), (1.0, [10, 1])])
    def test_nodes_move_to_the_less_fulfilled(self, gap: float, expected: list[int]) -> None:
        rich = ElasticJob("rich", 1, 10, nodes=10)
        poor = ElasticJob("poor", 1, 10, nodes=1, submitted_s=9)
        config = ElasticConfig(freeze_s=0, rebalance_gap=gap)
        assert settled(Pool.of_slots(11), [rich, poor], config) == expected
        if gap < 1:
            reason = ask(11, rich, poor, config=config)["rich"].reason
            assert reason.endswith("to poor, which is less fulfilled")

    def test_small_jobs_overtake_large_ones_for_a_while(self) -> None:
        runs = ElasticJob("runs", 3, 3, nodes=3)
        large = ElasticJob("large", 4, 4, submitted_s=1)
        small = ElasticJob("small", 1, 1, submitted_s=2)
        since = ElasticMemory(waiting_since_s={"large": 0.0})
        assert ask(4, runs, large, small, memory=since, now=599)["small"].nodes == 1
        late = ask(4, runs, large, small, memory=since, now=600)["small"]
        assert (late.nodes, late.reason) == (0, "waits behind large, which is first in the queue")
        huge = ElasticJob("huge", 9, 9)  # the pool could never hold it: nobody waits behind it
        found = ask(4, huge, small, memory=ElasticMemory({}, {"huge": 0.0}), now=1e6)
        assert found["small"].nodes == 1
        assert found["huge"].reason.startswith("waits for a larger pool: it needs at least 9 nodes")

    def test_gang_scheduling_gives_all_or_nothing_in_order(self) -> None:
        config = ElasticConfig(mode="gang")
        a, b = ElasticJob("a", 1, 1), ElasticJob("b", 1, 2, submitted_s=1)
        c = ElasticJob("c", 1, 1, submitted_s=2)
        assert nodes(2, a, b, c, config=config) == [1, 0, 0]  # c waits behind b
        assert nodes(2, b, c, config=config) == [2, 0]
        assert nodes(3, replace(a, nodes=1), b, c, config=config) == [1, 2, 0]
        assert nodes(2, a, b) == [1, 1], "elastic: b starts beside a"

    def test_names_differ(self) -> None:
        with pytest.raises(ValueError, match="one name"):
            ask(2, ElasticJob("a", 1, 1), ElasticJob("a", 1, 2))


def state(life: NodeEndings, **given: object) -> str:
    facts = {"stop": False, "target": 2, "min_nodes": 1, "nodes": 2, "leaving": 0, "begun": True}
    return state_of(life, **{**facts, **given})  # type: ignore[arg-type]


class TestJobStates:
    @pytest.mark.parametrize(
        ("code", "told", "is_edl", "ending"),
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
    def test_ending_of_a_node(
        self, code: int, told: bool, is_edl: bool, ending: NodeEnding
    ) -> None:
        assert ending_of(code, told, is_edl) == ending

    def test_failures_are_retried_later_each_time(self) -> None:
        life, delays = NodeEndings(retries=50), []
        for _ in range(40):
            life = life.after("failed")
            assert life.may_start_nodes
            delays.append(life.delay_s)
        assert delays[:3] == [0.5, 1.0, 2.0]
        assert delays == sorted(delays)
        assert delays[-1] == 30.0

    @pytest.mark.parametrize(
        ("life", "node_limit", "nodes", "limits"),
        [
            (NodeEndings(), None, 0, (2, 4)),
            (NodeEndings(), 3, 4, (2, 3)),
            (NodeEndings(), 1, 4, (2, 2)),  # anybody may write to it: never below the minimum
            (NodeEndings(), 9, 4, (2, 4)),
            (NodeEndings(done=True), None, 3, (2, 3)),
            (NodeEndings(done=True), 4, 1, (1, 1)),
            (NodeEndings(hopeless=True), 4, 0, (1, 1)),
        ],
    )
    def test_limits(
        self, life: NodeEndings, node_limit: int | None, nodes: int, limits: object
    ) -> None:
        assert limits_of(life, 2, 4, node_limit=node_limit, nodes=nodes) == limits

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"nodes": 0, "begun": False}, "creating"),
            ({"nodes": 1, "min_nodes": 2, "begun": False}, "creating"),
            ({}, "running"),
            ({"nodes": 1}, "scaling"),
            ({"leaving": 1}, "scaling"),
            ({"nodes": 0, "leaving": 1, "target": 0}, "scaling"),
            ({"nodes": 0, "target": 0}, "creating"),  # it has made room, and waits
            ({"stop": True}, "scaling"),
            ({"stop": True, "nodes": 0}, "stopped"),
        ],
    )
    def test_states(self, given: dict[str, object], expected: str) -> None:
        assert state(NodeEndings(retries=3), **given) == expected
        assert state(NodeEndings(retries=3).after("done"), nodes=1) == "running"

    @given(ENDED, COUNTS, st.booleans(), COUNTS, COUNTS, st.booleans())
    def test_job_ends_with_its_last_node(
        self, endings: Any, retries: int, stop: bool, count: int, leaving: int, begun: bool
    ) -> None:
        life = NodeEndings(retries)
        for ending in endings:
            could_start = life.may_start_nodes
            life = life.after(ending)
            assert could_start or not life.may_start_nodes, "what is over stays over"
        counted = endings[: endings.index("done")] if "done" in endings else endings
        bad = sum(ending in ("failed", "hopeless") for ending in counted)
        assert life.failures == bad
        found = state(life, stop=stop, nodes=count, leaving=leaving, begun=begun)
        ended = found in ("succeeded", "failed", "stopped")
        assert ended == (count + leaving == 0 and (stop or not life.may_start_nodes))
        if ended:
            assert (found == "failed") == (bad > retries or "hopeless" in counted)
            assert found != "succeeded" or "done" in endings
