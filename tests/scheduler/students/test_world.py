"""Worlds of ranks: when they form, fail and hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from edl.scheduler.students.failures import (
    NO_PROGRESS,
    SAME_STEP,
    START_S,
    ExcludeNode,
    RankFailure,
    RankProgress,
    StopJob,
    deadlocked,
    hung,
    positions_in_words,
    react_to_failures,
    straggler,
)
from edl.scheduler.students.saving import CheckpointEntry
from edl.scheduler.students.world import (
    GATHER_S,
    FinishJob,
    FormWorld,
    KeepWorld,
    LiveNode,
    RecallWorld,
    World,
    WorldDecision,
    WorldLimits,
    WorldProgress,
    recovered_world,
)
from edl.scheduler.students.world import decide as decide_from

ANY = WorldLimits(1, 4)
STEPPING = WorldProgress(stepped=True, left_s=1000.0, forming_s=5.0)
OLD_S = 60.0


def entry(step: int) -> CheckpointEntry | None:
    """The checkpoint of a step; None: of step 0 there is none."""
    return CheckpointEntry(f"step-{step}", step, "digest") if step else None


def decide(
    limits: WorldLimits,
    world: World | None,
    members: Sequence[LiveNode],
    progress: WorldProgress,
    saved: int,
    settled: bool = True,
) -> WorldDecision:
    return decide_from(limits, world, members, progress, entry(saved), settled=settled)


def waiting(*names: str, seen_s: float = OLD_S) -> list[LiveNode]:
    return [LiveNode(name, number, seen_s) for number, name in enumerate(names)]


def running(number: int, *names: str) -> list[LiveNode]:
    return [replace(one, phase="running", generation=number) for one in waiting(*names)]


def ended(number: int, *names: str, ending: str = "left", snapshot: int = -1) -> list[LiveNode]:
    told = {"phase": "ended", "ending": ending, "snapshot": snapshot}
    return [replace(one, **told) for one in running(number, *names)]  # type: ignore[arg-type]


def formed(decision: WorldDecision) -> World:
    assert isinstance(decision, FormWorld), decision
    return decision.world


class TestWorld:
    def test_job_begins_with_the_first_nodes_there_is_room_for(self) -> None:
        world = formed(decide(ANY, None, waiting("a", "b"), WorldProgress(), saved=7))
        assert (world.number, world.nodes) == (1, ("a", "b"))
        assert (world.restored_step, world.keeper) == (7, "")
        too_few = decide(WorldLimits(2, 4), None, waiting("a"), WorldProgress(), 0)
        assert isinstance(too_few, KeepWorld)
        assert "1 of at least 2" in too_few.reason
        fresh = waiting("a", seen_s=GATHER_S / 2)
        assert isinstance(decide(ANY, None, fresh, WorldProgress(), 0), KeepWorld)
        assert formed(decide(WorldLimits(1, 1), None, fresh, WorldProgress(), 0)).nodes == ("a",)
        world = formed(decide(WorldLimits(1, 2), None, waiting("c", "a", "b"), WorldProgress(), 0))
        assert world.nodes == ("c", "a")

    def test_rows_limit_the_world(self) -> None:
        limits = WorldLimits(1, 4, ranks=2, rows=5)
        assert limits.capacity == 2
        pairs = [replace(one, ranks=2) for one in waiting("a", "b", "c")]
        assert formed(decide(limits, None, pairs, WorldProgress(), 0)).nodes == ("a", "b")
        full = [replace(one, ranks=2) for one in [*running(3, "a", "b"), *waiting("c")]]
        says = decide(limits, World(3, ("a", "b")), full, STEPPING, 0)
        assert says == KeepWorld("c in reserve: a step has 5 rows, too few for 6 ranks")
        a, b, c = *running(3, "a"), *waiting("b", "c")
        b, world = replace(b, ranks=5), World(3, ("a",))
        says = decide(WorldLimits(1, 4, rows=5), world, [a, b], STEPPING, 0)
        assert says == KeepWorld("b in reserve: a step has 5 rows, too few for 6 ranks")
        says = decide(WorldLimits(1, 4, rows=5), world, [a, b, c], STEPPING, 0)
        assert says == RecallWorld(3, False, "c came")
        (over,) = ended(3, "a")
        following = decide(WorldLimits(1, 4, rows=5), world, [over, b, c], STEPPING, 0)
        assert formed(following).nodes == ("a", "c")
        assert WorldLimits(3, 4, ranks=2, rows=5).capacity == 3  # its ranks say what is wrong
        assert WorldLimits(1, 4).capacity == 4

    def test_a_lost_generation_has_the_nodes_that_began_it(self) -> None:
        members = [*running(3, "a"), *ended(2, "b"), replace(waiting("c")[0], generation=3)]
        for remembered_nodes in (("b", "a"), ()):
            world = World(3, remembered_nodes)
            assert recovered_world(world, members, settled=False).nodes == remembered_nodes
            assert recovered_world(world, members, settled=True).nodes == ("a",)
        wait = decide(ANY, World(3, ()), members, WorldProgress(), 0, settled=False)
        assert wait == KeepWorld(
            "waiting for the nodes of generation 3: the job board was unavailable"
        )

    def test_nodes_join_at_a_safe_point(self) -> None:
        world = World(3, ("a",))
        members = [*running(3, "a"), *waiting("b")]
        assert decide(ANY, world, members, STEPPING, 0) == RecallWorld(3, False, "b came")
        near_end = replace(STEPPING, left_s=4.0)
        for progress in (WorldProgress(), near_end):  # no step yet; near the end
            assert isinstance(decide(ANY, world, members, progress, 0), KeepWorld)
        assert isinstance(decide(WorldLimits(1, 1), world, members, STEPPING, 0), KeepWorld)
        fresh = [*running(3, "a"), *waiting("b", seen_s=0.0)]
        assert isinstance(decide(ANY, world, fresh, STEPPING, 0), KeepWorld)
        assert isinstance(decide(WorldLimits(1, 2), world, fresh, STEPPING, 0), RecallWorld)
        barred = replace(world, barred=("b",))
        assert decide(ANY, barred, members, STEPPING, 0) == KeepWorld()

    def test_nodes_leave_at_a_safe_point(self) -> None:
        world = World(3, ("a", "b"))
        a, b = running(3, "a", "b")
        leaving = replace(b, leaving=True)
        assert decide(ANY, world, [a, leaving], STEPPING, 0) == RecallWorld(
            3, False, "node b leaves"
        )
        a, b = ended(3, "a", "b", snapshot=50)
        following = formed(decide(ANY, world, [a, replace(b, leaving=True)], STEPPING, 0))
        assert following.nodes == ("a",)
        assert following.reason == "b left"
        assert (following.restored_step, following.keeper) == (50, "a")

    def test_nodes_with_another_fingerprint_do_not_count(self) -> None:
        a, b, c = waiting("a", "b", "c")
        a, c = (replace(one, fingerprint={"seed": 0}) for one in (a, c))
        b = replace(b, fingerprint={"seed": 7})
        first = formed(decide(ANY, None, [a, b, c], WorldProgress(), 0))  # who joined first decides
        assert (first.nodes, first.fingerprint) == (("a", "c"), {"seed": 0})
        assert isinstance(decide(WorldLimits(2, 4), None, [a, b], WorldProgress(), 0), KeepWorld)
        runs = replace(running(1, "a")[0], fingerprint={"seed": 0})
        world = World(1, ("a",), fingerprint={"seed": 0})
        assert decide(ANY, world, [runs, b], STEPPING, 0) == KeepWorld()
        assert decide(ANY, world, [runs, b, c], STEPPING, 0) == RecallWorld(1, False, "c came")
        over = replace(runs, phase="ended", ending="left")
        assert formed(decide(ANY, world, [over, b, c], STEPPING, 0)).nodes == ("a", "c")
        again = formed(decide(ANY, world, [b], WorldProgress(), 9))  # a new run of the job
        assert (again.nodes, again.fingerprint) == (("b",), {"seed": 7})

    def test_a_mistake_of_a_node_that_joined_does_not_end_the_job(self) -> None:
        world = World(1, ("a",))
        came = formed(decide(ANY, world, [*ended(1, "a"), *waiting("b")], STEPPING, 5))
        assert (came.nodes, came.untried) == (("a", "b"), ("b",))
        wrong = RankFailure(2, "b", 1, "crash", 6, usage=True, error="no such data", restored=5)
        alone = RankFailure(2, "b", 1, "crash", gave_up=True, error="no teacher")
        tried = replace(came, untried=())  # it has made a step, so it is the job that cannot work
        for failure, stop in (
            (wrong, StopJob("no such data", usage=True)),
            (alone, StopJob(alone.in_words(), gave_up=True)),
        ):
            a, b = ended(2, "a", "b")
            both = [a, replace(b, failures=(failure,), leaving=True)]
            following = formed(decide(ANY, came, both, WorldProgress(), 5))
            assert (following.nodes, following.failures) == (("a",), ())
            assert failure.error in following.reason
            assert decide(ANY, tried, both, WorldProgress(), 5) == stop
            later = [a, replace(b, failures=(replace(failure, step=7, restored=5),))]
            assert isinstance(decide(ANY, came, later, STEPPING, 5), StopJob)
        assert "gave up while it started: no teacher" in alone.in_words()
        both = ended(2, "a", "b")
        assert formed(decide(ANY, came, both, WorldProgress(), 5)).untried == ("b",)
        assert formed(decide(ANY, came, both, STEPPING, 5)).untried == ()

    def test_failure_ends_all_ranks(self) -> None:
        world = World(3, ("a", "b"), entry(10))
        a, b = running(3, "a", "b")
        failure = RankFailure(3, "b", 1, "killed", 17, error="ended by SIGKILL")
        failed = replace(b, phase="ended", ending="failed", failures=(failure,), snapshot=15)
        reason = "rank 1 on node b died on step 17 of epoch 0: ended by SIGKILL"
        assert decide(ANY, world, [a, failed], STEPPING, 0) == RecallWorld(3, True, reason)
        following = formed(decide(ANY, world, [*ended(3, "a"), failed], STEPPING, saved=10))
        assert following.nodes == ("a", "b")
        assert (following.restored_step, following.keeper) == (15, "b")
        assert following.failures == (failure,)

    def test_lost_nodes(self) -> None:
        world = World(3, ("a", "b"))
        recall = RecallWorld(3, True, "node b was lost: its lease ran out")
        assert decide(ANY, world, running(3, "a"), STEPPING, 0) == recall
        following = formed(decide(ANY, world, ended(3, "a"), STEPPING, saved=4))
        assert following.nodes == ("a",)
        assert following.restored_step == 4
        waits = decide(ANY, world, running(3, "a"), STEPPING, 0, settled=False)
        assert waits == KeepWorld("waiting for b: the job board was unavailable")
        there = running(3, "a", "b")
        assert decide(ANY, world, there, STEPPING, 0, settled=False) == KeepWorld()

    def test_lost_peers_are_the_last_cause(self) -> None:
        world = World(3, ("a", "b"))
        adrift = RankFailure(3, "a", 0, "adrift", 9, error="a peer is gone")
        cause = RankFailure(3, "b", 1, "crash", 9, error="ValueError")
        a, b = ended(3, "a", "b")
        a = replace(a, failures=(adrift,))
        both = [a, replace(b, failures=(cause,))]
        assert formed(decide(ANY, world, both, STEPPING, 0)).failures == (cause,)
        assert formed(decide(ANY, world, [a, b], STEPPING, 0)).failures == (adrift,)

    def test_old_snapshots_and_failures_do_not_count(self) -> None:
        world = World(3, ("a",))
        stale = replace(ended(2, "b", snapshot=99)[0], phase="waiting")
        following = formed(decide(ANY, world, [*ended(3, "a", snapshot=20), stale], STEPPING, 10))
        assert (following.restored_step, following.keeper) == (20, "a")
        past = tuple(RankFailure(n, "old", 0, "crash", 7) for n in (1, 2))
        world = formed(
            decide(ANY, World(3, ("old",), failures=past), waiting("new"), WorldProgress(), 6)
        )
        assert (world.number, world.failures, world.restored_step) == (4, (), 6)

    def test_excluded_node_keeps_no_checkpoint(self) -> None:
        """It leaves when it sees that it is excluded."""
        before, again = (RankFailure(n, "a", 0, "crash", 7, error="x") for n in (2, 3))
        world = World(3, ("a", "b"), entry(2), failures=(before,))
        a, b = ended(3, "a", "b", snapshot=6)
        a = replace(a, failures=(again,))
        following = formed(decide(ANY, world, [a, b], STEPPING, saved=2))
        assert (following.nodes, following.barred) == (("b",), ("a",))
        assert (following.restored_step, following.keeper) == (6, "b")
        b = replace(b, snapshot=-1)
        following = formed(decide(ANY, world, [a, b], STEPPING, saved=2))
        assert (following.restored_step, following.keeper) == (2, "")

    def test_the_end(self) -> None:
        world = World(3, ("a", "b"))
        members = [*ended(3, "a", ending="finished"), *running(3, "b")]
        assert decide(ANY, world, members, STEPPING, 0) == FinishJob()
        usage = RankFailure(3, "a", 0, "crash", error="no model()", usage=True)
        failed = [replace(one, failures=(usage,)) for one in ended(3, "a", ending="failed")]
        assert decide(ANY, World(3, ("a",)), failed, WorldProgress(), 0) == StopJob(
            "no model()", usage=True
        )


HANG_S = 10.0
TIME_S, WAITS = st.floats(0, 100), st.sampled_from(["", "teachers"])
PLACE = (st.integers(0, 9), st.integers(0, 3))
SIGN = st.builds(RankProgress, *PLACE, TIME_S, TIME_S, st.booleans(), WAITS, st.booleans())


def sign(rank: int, **more: object) -> RankProgress:
    return RankProgress(rank, **({"step": 5, "at_s": 0.0, "heard_s": 0.0} | more))  # type: ignore[arg-type]


class TestHangs:
    def test_rank_hangs_after_its_time(self) -> None:
        assert hung([sign(0)], HANG_S, 9.9) == ()
        assert hung([sign(0)], HANG_S, 10.0) == (0,)
        starting = sign(0, step=0, started=False)
        assert hung([starting], HANG_S, START_S - 0.1) == ()
        assert hung([starting], HANG_S, START_S) == (0,)
        assert hung([starting], 100.0, 299.0) == ()
        waits = sign(1, waiting_for="teachers", heard_s=95.0)
        assert hung([sign(0), waits], HANG_S, 100.0) == (0,)
        assert hung([waits], HANG_S, 105.0) == (1,)  # it died saying it

    def test_suspended_or_slowest_rank_is_blamed(self) -> None:
        signs = [sign(0), sign(1, suspended=True), sign(2)]
        assert hung(signs, HANG_S, 10.0) == (1,)
        assert hung([sign(1, suspended=True, waiting_for="the other ranks")], HANG_S, 10.0) == (1,)
        assert hung([sign(0), sign(1, step=4), sign(2)], HANG_S, 10.0) == (1,)

    def test_a_world_whose_ranks_all_wait_for_each_other_is_deadlocked(self) -> None:
        assert deadlocked({1: 12.0, 0: 10.0}, 2, HANG_S) == (0, 1)
        assert not deadlocked({0: 9.9, 1: 12.0}, 2, HANG_S), "one has just come"
        assert not deadlocked({0: START_S}, 2, HANG_S), "the other one has not started"
        assert not deadlocked({0: 300.0, 1: 0.0}, 2, HANG_S), "rank 1 may wait for labels"
        assert not deadlocked({}, 0, HANG_S)

    def test_the_leader_recalls_a_deadlocked_world_at_once(self) -> None:
        world, members = World(3, ("a", "b")), running(3, "a", "b")
        progress = replace(STEPPING, deadlocked=(0, 1))
        recall = RecallWorld(3, True, "all 2 ranks waited for each other", (0, 1))
        assert decide(ANY, world, members, progress, 0) == recall
        assert decide(ANY, world, members, progress, 0, settled=False) == KeepWorld(), (
            "ranks may have waited for the board"
        )

    @given(st.lists(SIGN, max_size=6, unique_by=lambda one: one.rank))
    def test_silence_is_blamed_on_a_rank(self, signs: list[RankProgress]) -> None:
        assert bool(hung(signs, HANG_S, 100.0 + START_S)) == bool(signs)
        assert hung(signs, 1000.0, 100.0) == ()

    def test_a_straggler_is_slower_than_the_others(self) -> None:
        assert straggler({0: [1.0] * 3, 1: [3.0] * 3, 2: [1.1] * 3}) == 1
        assert straggler({0: [1.0] * 3, 1: [1.4] * 3}) is None
        assert straggler({0: [1.0] * 3, 1: [9.0] * 2}) is None  # too few to tell
        assert straggler({0: [1.0] * 3}) is None
        assert straggler({0: [1.0] * 5, 1: [1.0, 1.0, 1.0, 9.0, 9.0]}) is None  # now and then


BOTH = frozenset({"a", "b"})


def failed_at(
    *steps: int, node: str = "a", how: str = "crash", **more: object
) -> list[RankFailure]:
    return [
        RankFailure(number, node, 1, how, step, error="ValueError: x", **more)  # type: ignore[arg-type]
        for number, step in enumerate(steps, 1)
    ]


def stopped(reaction: ExcludeNode | StopJob | None) -> str:
    assert isinstance(reaction, StopJob)
    assert not reaction.usage
    return reaction.report


class TestLadder:
    def test_restart_then_without_the_node(self) -> None:
        assert react_to_failures(failed_at(7), BOTH, 1) is None
        reaction = react_to_failures(failed_at(7, 7), BOTH, 1)
        assert isinstance(reaction, ExcludeNode)
        assert reaction.node == "a"
        assert "rank 1 on node a crashed on step 7" in reaction.why
        assert react_to_failures(failed_at(7, 7), BOTH, 2) is None
        assert react_to_failures(failed_at(7, 7), frozenset({"a"}), 1) is None
        both = [*failed_at(7), RankFailure(2, "b", 0, "killed", 7)]
        assert react_to_failures(both, BOTH, 1) is None

    def test_third_failure_on_one_step_gives_up(self) -> None:
        told = failed_at(7, 7, 7, epoch=2, positions=(3, 4, 5, 9))
        report = stopped(react_to_failures(told, BOTH, 2))
        assert "step 7 of epoch 2 (positions 3-5, 9): ValueError: x" in report
        assert "3 times" in report
        told = [
            RankFailure(n, "ab"[n % 2], n, "crash", 7, error="x") for n in range(1, SAME_STEP + 1)
        ]
        assert isinstance(react_to_failures(told, BOTH, 1), StopJob)
        told = [RankFailure(1, "a", rank, "crash", 7) for rank in range(5)]
        assert react_to_failures(told, BOTH, 1) is None
        reaction = react_to_failures(failed_at(0, usage=True), BOTH, 1)
        assert reaction == StopJob("ValueError: x", usage=True)

    def test_a_world_of_many_ranks_that_all_fail_on_one_step_gives_up(self) -> None:
        limits, world, reactions = WorldLimits(1, 1, ranks=16), World(1, ("a",)), []
        for _ in range(SAME_STEP):
            failures = tuple(RankFailure(world.number, "a", rank, "crash", 7) for rank in range(16))
            (member,) = ended(world.number, "a", ending="failed")
            member = replace(member, failures=failures)
            reactions.append(decide(limits, world, [member], STEPPING, 0))
            if isinstance(reactions[-1], FormWorld):
                world = formed(reactions[-1])
        assert [type(one) for one in reactions] == [FormWorld, FormWorld, StopJob]
        assert len(world.failures) == SAME_STEP - 1

    def test_other_checkpoints_are_other_steps(self) -> None:
        told = [RankFailure(n, "a", 0, "killed", 0, restored=10 * n) for n in range(1, 6)]
        assert react_to_failures(told, frozenset({"a"}), 1) is None
        same = [RankFailure(n, "a", 0, "killed", 0, restored=10) for n in range(1, SAME_STEP + 1)]
        assert isinstance(react_to_failures(same, frozenset({"a"}), 1), StopJob)

    def test_lost_nodes_are_not_blamed_but_progress_is_needed(self) -> None:
        for how in ("lost", "adrift"):
            assert react_to_failures(failed_at(7, 7, 7, 7, how=how), BOTH, 1) is None
        told = failed_at(*([9, *[5, 4, 3, 2, 1][: NO_PROGRESS - 1]]), how="lost")
        assert isinstance(react_to_failures(told, BOTH, 1), StopJob)
        assert react_to_failures(told[:-1], BOTH, 1) is None

    def test_a_restored_checkpoint_is_progress_once(self) -> None:
        told = failed_at(*[0] * NO_PROGRESS, how="lost", restored=40)
        assert react_to_failures(told[:-1], BOTH, 1) is None
        assert "came no further than step 40" in stopped(react_to_failures(told, BOTH, 1))

    def test_the_report_names_the_furthest_step_of_several_ranks(self) -> None:
        told = failed_at(9, 5, 4, 3, 2, 1)
        told += [replace(told[-1], rank=rank) for rank in range(NO_PROGRESS)]
        assert "came no further than step 9" in stopped(react_to_failures(told, BOTH, 2))

    def test_a_lost_node_does_not_exclude_the_one_that_failed_before(self) -> None:
        told = [*failed_at(7, 7), RankFailure(3, "b", how="lost")]
        assert react_to_failures(told, frozenset({"a", "c"}), 1) is None

    @given(st.lists(st.integers(1, 60), min_size=1, max_size=40, unique=True).map(sorted))
    def test_progress_goes_on(self, steps: list[int]) -> None:
        assert react_to_failures(failed_at(*steps), BOTH, 1) is None

    @given(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), min_size=5 * NO_PROGRESS + 1)
    )
    def test_no_progress_ends(self, told: list[tuple[int, str]]) -> None:
        """However ranks die, a job that makes no progress ends within a bounded number of tries."""
        found = [RankFailure(n, node, 0, "killed", step) for n, (step, node) in enumerate(told, 1)]
        reactions = (
            react_to_failures(found[:count], BOTH, 2) for count in range(1, len(found) + 1)
        )
        assert any(isinstance(reaction, StopJob) for reaction in reactions)

    def test_positions_in_words(self) -> None:
        assert positions_in_words([4]) == "position 4"
        assert positions_in_words([9, 4, 5, 6]) == "positions 4-6, 9"
        assert positions_in_words(range(0, 100, 2)).endswith("and 38 more runs")
