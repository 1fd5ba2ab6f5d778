"""How many nodes elastic jobs get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.elastic import (
    ElasticConfig,
    ElasticJob,
    ElasticMemory,
    Pool,
    Target,
    decide,
    fulfilment,
)
from edl.scheduler.job_states import Ending, Life, ending_of, limits_of, state_of

AT_ONCE = ElasticConfig(freeze_s=0)


CPU = {"cpu": 1.0, "memory_mb": 100.0}


def ask(
    pool: Pool,
    *jobs: ElasticJob,
    config: ElasticConfig = AT_ONCE,
    memory: ElasticMemory | None = None,
    now: float = 100.0,
) -> dict[str, Target]:
    targets, _ = decide(pool, jobs, memory or ElasticMemory(), now, config)
    return {target.job: target for target in targets}


def nodes(pool: Pool, *jobs: ElasticJob, config: ElasticConfig = AT_ONCE) -> list[int]:
    found = ask(pool, *jobs, config=config)
    return [found[job.name].nodes for job in jobs]


def settled(pool: Pool, jobs: Sequence[ElasticJob], config: ElasticConfig) -> list[int]:
    """The nodes once nothing changes any more; fails when that takes more than 20 decisions."""
    memory = ElasticMemory()
    for step in range(20):
        targets, memory = decide(pool, jobs, memory, float(step), config)
        if all(target.nodes == target.was for target in targets):
            return [target.nodes for target in targets]
        jobs = [replace(j, nodes=t.nodes) for j, t in zip(jobs, targets, strict=True)]
    raise AssertionError(f"never rests: {jobs}")


class TestElastic:
    # The cases of the controller's own tests: CPUs, memory and GPUs of a cluster, one job on it.
    @pytest.mark.parametrize(
        ("capacity", "reserved", "needs", "bounds", "cur", "max_load", "want"),
        [
            pytest.param({"cpu": 2, "memory_mb": 1000}, {}, CPU, (1, 2), 2, 1.0, 2, id="has all"),
            pytest.param({"cpu": 3, "memory_mb": 1000}, {}, CPU, (1, 3), 1, 1.0, 3, id="more cpu"),
            pytest.param(
                {"cpu": 1, "memory_mb": 1000}, {}, CPU, (1, 3), 1, 1.0, 1, id="no more cpu"
            ),
            pytest.param(
                {"cpu": 9, "gpu": 10}, {}, {"cpu": 1, "gpu": 1}, (1, 3), 1, 1.0, 3, id="more gpu"
            ),
            pytest.param(
                {"cpu": 9, "gpu": 10},
                {"gpu": 9},
                {"cpu": 1, "gpu": 1},
                (1, 3),
                1,
                1.0,
                1,
                id="no more gpu",
            ),
            pytest.param(
                {"cpu": 9, "memory_mb": 1000},
                {},
                CPU,
                (1, 3),
                6,
                1.0,
                3,
                id="more than its maximum",
            ),
            pytest.param(
                {"cpu": 3, "memory_mb": 1000},
                {"cpu": 2},
                CPU,
                (1, 3),
                3,
                1.0,
                1,
                id="down to its min",
            ),
            pytest.param({"cpu": 1, "memory_mb": 1000}, {}, CPU, (1, 3), 3, 1.0, 1, id="over full"),
            pytest.param({"cpu": 9, "memory_mb": 100}, {}, CPU, (1, 3), 1, 1.0, 1, id="no memory"),
            pytest.param(
                {"cpu": 3, "memory_mb": 1000}, {}, CPU, (1, 3), 1, 0.8, 2, id="max load up"
            ),
            pytest.param(
                {"cpu": 3, "memory_mb": 1000}, {}, CPU, (1, 3), 3, 0.8, 2, id="max load down"
            ),
            pytest.param(
                {"cpu": 3, "memory_mb": 1000}, {"cpu": 1}, CPU, (1, 3), 1, 1.0, 2, id="less"
            ),
            pytest.param({"cpu": 3}, {}, CPU, (1, 3), 0, 1.0, 0, id="a kind the pool has none of"),
        ],
    )
    def test_one_job_has_what_fits(
        self,
        capacity: dict[str, float],
        reserved: dict[str, float],
        needs: dict[str, float],
        bounds: tuple[int, int],
        cur: int,
        max_load: float,
        want: int,
    ) -> None:
        job = ElasticJob("a", *bounds, nodes=cur, needs=needs)
        config = ElasticConfig(freeze_s=0, max_load=max_load)
        assert nodes(Pool(capacity, reserved), job, config=config) == [want]

    def test_fewest_fulfilled_grows_first(self) -> None:
        assert fulfilment(ElasticJob("a", 1, 2), 2) == 1
        assert fulfilment(ElasticJob("a", 1, 2), 1) == 0
        assert fulfilment(ElasticJob("a", 1, 3), 2) == 0.5
        assert fulfilment(ElasticJob("a", 2, 2), 2) == 1  # a fixed job has all
        a = ElasticJob("a", 1, 2, nodes=1)
        b = ElasticJob("b", 1, 20, nodes=2)
        c = ElasticJob("c", 1, 10, nodes=2)
        d = ElasticJob("d", 1, 1, nodes=1)
        assert nodes(Pool.of_slots(7), a, b, c, d) == [2, 2, 2, 1]  # a had 0, b 1/19, c 1/9
        assert nodes(Pool.of_slots(8), a, b, c, d) == [2, 3, 2, 1]
        small = ElasticJob("z", 1, 2, nodes=1, needs={"cpu": 1, "gpu": 0})
        large = ElasticJob("a", 1, 2, nodes=1, needs={"cpu": 1, "gpu": 1})
        assert nodes(Pool({"cpu": 3, "gpu": 2}), large, small) == [1, 2]

    def test_most_fulfilled_gives_first(self) -> None:
        half = ElasticJob("half", 1, 9, nodes=5)
        most = ElasticJob("most", 1, 5, nodes=4)
        comes = ElasticJob("comes", 1, 1, submitted_s=9)
        assert nodes(Pool.of_slots(9), half, most, comes) == [5, 3, 0]  # 4/8 and 3/4
        two = replace(comes, min_nodes=2, max_nodes=2)
        assert nodes(Pool.of_slots(9), replace(half, submitted_s=5), most, two) == [4, 3, 0]

    def test_full_of_gpus_at_a_load_of_97_percent_it_comes_to_rest(self) -> None:
        """Growing up to all GPUs and shrinking above 97 % of them would go on for ever."""
        pool = Pool({"gpu": 10, "cpu": 100})
        jobs = [
            ElasticJob(name, 1, 10, nodes=5, needs={"gpu": 1, "cpu": 1}, submitted_s=at)
            for at, name in enumerate("ab")
        ]
        assert settled(pool, jobs, ElasticConfig(max_load=0.97, freeze_s=0)) == [5, 4]
        assert settled(pool, jobs, ElasticConfig(max_load=1.0, freeze_s=0)) == [5, 5]

    def test_a_job_that_waits_gets_its_minimum_from_running_ones_once_they_let_go(self) -> None:
        running = ElasticJob("running", 1, 4, nodes=4)
        comes = ElasticJob("comes", 2, 4, submitted_s=9)
        pool = Pool.of_slots(4)
        now = ask(pool, running, comes)
        assert (now["running"].nodes, now["comes"].nodes) == (2, 0)
        assert now["running"].reason == "gives 2 nodes to make room for comes"
        assert now["comes"].reason == "waits for nodes that are leaving to make room"
        half = replace(running, nodes=2, leaving=1)
        assert nodes(pool, half, comes) == [2, 0]  # all or nothing of its minimum
        gone = replace(running, nodes=2)
        later = ask(pool, gone, comes)
        assert (later["running"].nodes, later["comes"].nodes) == (2, 2)
        assert later["comes"].reason == "starts with 2 nodes"

    def test_job_grows_when_leaving_nodes_are_gone(self) -> None:
        greedy = ElasticJob("greedy", 1, 9, nodes=2)
        gives = ElasticJob("gives", 1, 9, nodes=2, leaving=1)
        comes = ElasticJob("comes", 2, 2, submitted_s=9)
        assert nodes(Pool.of_slots(6), greedy, gives, comes) == [2, 2, 0]
        grows = ElasticJob("grows", 1, 9, nodes=2)
        ends = ElasticJob("ends", 1, 3, nodes=1, leaving=2)
        now = ask(Pool.of_slots(6), grows, ends)
        assert now["grows"].nodes == 2
        assert now["grows"].reason == "grows as soon as nodes that are leaving have made room"

    def test_higher_priority_takes_nodes(self) -> None:
        low = ElasticJob("low", 1, 8, nodes=8)
        high = ElasticJob("high", 2, 7, priority=1, submitted_s=9)
        assert settled(Pool.of_slots(8), [low, high], AT_ONCE) == [1, 7]
        low = ElasticJob("low", 2, 4, nodes=2)
        high = ElasticJob("high", 3, 3, priority=1, submitted_s=9)
        found = ask(Pool.of_slots(4), low, high)
        assert found["low"].nodes == 0
        assert found["low"].reason == "stopped for high, of a higher priority"

    def test_a_running_job_whose_minimum_was_raised_keeps_what_it_has_until_there_is_room(
        self,
    ) -> None:
        raised = ElasticJob("raised", 3, 3, nodes=1)
        other = ElasticJob("other", 1, 2, nodes=2)
        full = ask(Pool.of_slots(3), raised, replace(other, min_nodes=2))["raised"]
        assert (full.nodes, full.reason) == (1, "no room for another node")
        assert settled(Pool.of_slots(4), [raised, other], AT_ONCE) == [3, 1]

    def test_jobs_get_out_of_the_way_of_an_online_service(self) -> None:
        first = ElasticJob("first", 1, 1, nodes=1)
        second = ElasticJob("second", 1, 2, nodes=2, submitted_s=1)
        one = ask(Pool.of_slots(3, reserved=1), first, second)
        assert (one["first"].nodes, one["second"].nodes) == (1, 1)
        assert one["second"].reason == "gives 1 node back to online services"
        two = ask(Pool.of_slots(3, reserved=2), first, second)
        assert (two["first"].nodes, two["second"].nodes) == (1, 0)  # who came last goes first
        assert "online services want back" in two["second"].reason
        after = ask(Pool.of_slots(3, reserved=2), first, replace(second, nodes=0))
        assert "first and online services leave less" in after["second"].reason
        alone = ask(Pool.of_slots(3, reserved=3), replace(second, nodes=0))["second"]
        assert alone.reason.startswith("waits for online services to give back: it needs 1 node at")

    def test_a_changed_job_does_not_grow_before_its_freeze_is_over(self) -> None:
        job = ElasticJob("a", 1, 4, nodes=2)
        memory = ElasticMemory({"a": 90.0})
        config = ElasticConfig(freeze_s=30)
        frozen = ask(Pool.of_slots(4), job, config=config, memory=memory, now=100)["a"]
        assert (frozen.nodes, frozen.reason) == (2, "changed a moment ago; it may grow in 20 s")
        assert ask(Pool.of_slots(4), job, config=config, memory=memory, now=120)["a"].nodes == 4

    def test_it_remembers_changes_and_who_waits_and_forgets_jobs_that_are_gone(self) -> None:
        jobs = [ElasticJob("a", 1, 4, nodes=4), ElasticJob("b", 1, 1)]
        _, memory = decide(Pool.of_slots(4), jobs, ElasticMemory({"gone": 1.0}), 7.0, AT_ONCE)
        assert dict(memory.changed_s) == {"a": 7.0}
        assert dict(memory.waiting_since_s) == {"b": 7.0}
        _, memory = decide(Pool.of_slots(4), jobs[1:], memory, 8.0, AT_ONCE)
        assert dict(memory.changed_s) == {}  # a first start is no change
        assert dict(memory.waiting_since_s) == {}

    def test_near_its_end_or_forming_a_job_does_not_grow(self) -> None:
        ends = ElasticJob("ends", 1, 4, nodes=2, progress=0.98)
        declined = ask(Pool.of_slots(4), ends)["ends"]
        assert (declined.nodes, declined.reason) == (2, "98 % done: it does not grow any more")
        other = ElasticJob("other", 1, 9, nodes=2)
        comes = ElasticJob("comes", 1, 1, submitted_s=9)
        assert nodes(Pool.of_slots(4), ends, other, comes) == [2, 1, 0]
        job = ElasticJob("a", 1, 4, nodes=2, steady=False)
        assert nodes(Pool.of_slots(4), job) == [2]

    @pytest.mark.parametrize(("gap", "want"), [(0.5, [7, 4]), (0.2, [6, 5]), (1.0, [10, 1])])
    def test_nodes_move_between_running_jobs_that_are_far_apart(
        self, gap: float, want: list[int]
    ) -> None:
        rich = ElasticJob("rich", 1, 10, nodes=10)
        poor = ElasticJob("poor", 1, 10, nodes=1, submitted_s=9)
        config = ElasticConfig(freeze_s=0, rebalance_gap=gap)
        found = settled(Pool.of_slots(11), [rich, poor], config)
        assert found == want
        if gap < 1:
            target = ask(Pool.of_slots(11), rich, poor, config=config)["rich"]
            assert target.reason.endswith("to poor, which is fulfilled less")

    def test_small_jobs_overtake_large_ones_for_a_while(self) -> None:
        runs = ElasticJob("runs", 3, 3, nodes=3)
        large = ElasticJob("large", 4, 4, submitted_s=1)
        small = ElasticJob("small", 1, 1, submitted_s=2)
        pool = Pool.of_slots(4)
        since = ElasticMemory(waiting_since_s={"large": 0.0})
        assert ask(pool, runs, large, small, memory=since, now=599)["small"].nodes == 1
        late = ask(pool, runs, large, small, memory=since, now=600)["small"]
        assert (late.nodes, late.reason) == (0, "waits behind large, which came first")
        huge = ElasticJob("huge", 9, 9)
        small = ElasticJob("small", 1, 1, submitted_s=2)
        found = ask(Pool.of_slots(4), huge, small, memory=ElasticMemory({}, {"huge": 0.0}), now=1e6)
        assert found["small"].nodes == 1
        assert found["huge"].reason == (
            "waits for a larger pool: it needs 9 nodes at least, 9 slots; ask for less"
        )

    def test_gang_scheduling_gives_all_or_nothing_in_the_order_of_arrival(self) -> None:
        config = ElasticConfig(mode="gang")
        a, b = ElasticJob("a", 1, 1), ElasticJob("b", 1, 2, submitted_s=1)
        c = ElasticJob("c", 1, 1, submitted_s=2)
        assert nodes(Pool.of_slots(2), a, b, c, config=config) == [1, 0, 0]  # c behind b
        assert nodes(Pool.of_slots(2), b, c, config=config) == [2, 0]
        assert nodes(Pool.of_slots(3), replace(a, nodes=1), b, c, config=config) == [1, 2, 0]

    def test_what_a_job_holds_besides_its_nodes_counts(self) -> None:
        first = ElasticJob("first", 1, 2, nodes=2, needs={"cpu": 5}, base={"cpu": 3})
        second = replace(first, name="second", nodes=0, submitted_s=30)
        assert nodes(Pool({"cpu": 24}), first, second) == [2, 1]  # 13 and 8 of 24
        assert nodes(Pool({"cpu": 20}), first, second) == [1, 0]

    @pytest.mark.parametrize(
        ("values", "says"),
        [
            ({"min_nodes": 0}, "1 <= min_nodes"),
            ({"max_nodes": 0}, "1 <= min_nodes"),
            ({"nodes": -1}, "0 or more"),
            ({"needs": {"cpu": -1.0}}, "'cpu'"),
            ({"base": {"cpu": float("nan")}}, "'cpu'"),
        ],
    )
    def test_a_job_that_makes_no_sense_is_refused(
        self, values: dict[str, object], says: str
    ) -> None:
        with pytest.raises(ValueError, match=says):
            replace(ElasticJob("a", 1, 2), **values)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("values", "says"),
        [
            ({"mode": "fifo"}, "'gang'"),
            ({"max_load": 0.0}, "max_load"),
            ({"near_end": 1.5}, "near_end"),
            ({"freeze_s": float("nan")}, "freeze_s"),
        ],
    )
    def test_so_are_settings(self, values: dict[str, object], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            replace(ElasticConfig(), **values)  # type: ignore[arg-type]

    def test_names_are_unique_and_amounts_not_negative(self) -> None:
        with pytest.raises(ValueError, match="one name"):
            ask(Pool.of_slots(2), ElasticJob("a", 1, 1), ElasticJob("a", 1, 2))
        with pytest.raises(ValueError, match="capacity of 'slots'"):
            Pool.of_slots(-1)


ENDINGS: tuple[Ending, ...] = get_args(Ending)


def job_state(life: Life, **given: object) -> str:
    facts = {"stop": False, "target": 2, "least": 1, "nodes": 2, "leaving": 0, "begun": True}
    return state_of(life, **{**facts, **given})  # type: ignore[arg-type]


class TestJobStates:
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
    def test_how_a_node_ended(self, code: int, told: bool, trains: bool, ending: Ending) -> None:
        assert ending_of(code, told, trains) == ending

    def test_so_many_nodes_may_fail_and_one_more_is_too_many(self) -> None:
        life = Life(retries=2)
        for _ in range(2):
            life = life.after("failed")
            assert life.grows
        assert life.after("failed").broken
        assert not life.after("failed").grows
        assert Life(retries=9).after("hopeless").broken

    def test_the_next_try_comes_later_each_time_but_comes(self) -> None:
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
        self, life: Life, asked: int | None, nodes: int, limits: tuple[int, int]
    ) -> None:
        assert limits_of(life, 2, 4, asked=asked, nodes=nodes) == limits

    def test_states_of_a_job_that_goes(self) -> None:
        life = Life(retries=3)
        assert job_state(life, nodes=0, begun=False) == "creating"
        assert job_state(life, nodes=1, least=2, begun=False) == "creating"
        assert job_state(life) == "running"
        assert job_state(life, nodes=1) == "scaling"
        assert job_state(life, leaving=1) == "scaling"
        assert job_state(life, nodes=0, leaving=1, target=0) == "scaling"
        assert job_state(life, nodes=0, target=0) == "creating"  # it has made room, and waits
        assert job_state(life, stop=True) == "scaling"
        assert job_state(life, stop=True, nodes=0) == "stopped"
        assert job_state(life.after("done"), nodes=1) == "running"

    @given(
        st.lists(st.sampled_from(ENDINGS), max_size=12),
        st.integers(0, 4),
        st.booleans(),
        st.integers(0, 3),
        st.integers(0, 3),
        st.booleans(),
    )  # fmt: skip
    def test_a_job_ends_when_its_last_node_does_and_never_before(
        self, endings: list[Ending], retries: int, stop: bool, nodes: int, leaving: int, begun: bool
    ) -> None:
        life = Life(retries)
        for ending in endings:
            grew = life.grows
            life = life.after(ending)
            assert grew or not life.grows, "what is over stays over"
        bad = sum(ending in ("failed", "hopeless") for ending in endings)
        assert life.failures == bad
        found = job_state(life, stop=stop, nodes=nodes, leaving=leaving, begun=begun)
        ended = found in ("succeeded", "failed", "stopped")
        assert ended == (nodes + leaving == 0 and (stop or not life.grows))
        if ended:
            assert (found == "failed") == (bad > retries or "hopeless" in endings)
            assert found != "succeeded" or "done" in endings
