"""The ladder behind a rank that failed: again, without its node, stop."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from edl.scheduler.students.ladder import (
    IN_VAIN,
    SAME_STEP,
    Failure,
    GiveUp,
    Restart,
    Without,
    climb,
    positions_in_words,
)

BOTH = frozenset({"a", "b"})


def failures(*steps: int, node: str = "a", how: str = "crash", **more: object) -> list[Failure]:
    return [
        Failure(number, node, 1, how, step, error="ValueError: x", **more)  # type: ignore[arg-type]
        for number, step in enumerate(steps, 1)
    ]


def test_the_first_time_it_is_tried_again() -> None:
    assert climb(failures(7), BOTH, 1) == Restart()


def test_the_second_time_the_others_go_on_without_the_node() -> None:
    rung = climb(failures(7, 7), BOTH, 1)
    assert isinstance(rung, Without)
    assert rung.node == "a"
    assert "rank 1 on node a crashed on step 7" in rung.why


def test_who_is_needed_is_not_left_out() -> None:
    assert climb(failures(7, 7), BOTH, 2) == Restart()
    assert climb(failures(7, 7), frozenset({"a"}), 1) == Restart()


def test_a_node_that_comes_further_each_time_stays() -> None:
    assert climb(failures(7, 8, 9, 10), BOTH, 1) == Restart()


def test_two_nodes_that_fail_in_turn_stay() -> None:
    both = [*failures(7), Failure(2, "b", 0, "killed", 7)]
    assert climb(both, BOTH, 1) == Restart()


def test_the_third_time_on_one_step_names_it_and_its_batch() -> None:
    told = failures(7, 7, 7, epoch=2, positions=(3, 4, 5, 9))
    rung = climb(told, BOTH, 2)
    assert isinstance(rung, GiveUp)
    assert not rung.usage
    assert "step 7 of epoch 2 (positions 3-5, 9): ValueError: x" in rung.report
    assert "3 times" in rung.report


def test_whoever_fails_on_it() -> None:
    told = [Failure(n, "ab"[n % 2], n, "crash", 7, error="x") for n in range(1, SAME_STEP + 1)]
    assert isinstance(climb(told, BOTH, 1), GiveUp)


def test_several_ranks_of_one_generation_count_once() -> None:
    told = [Failure(1, "a", rank, "crash", 7) for rank in range(5)]
    assert climb(told, BOTH, 1) == Restart()


def test_starting_from_other_checkpoints_is_not_the_same_step() -> None:
    told = [Failure(n, "a", 0, "killed", 0, restored=10 * n) for n in range(1, 6)]
    assert climb(told, frozenset({"a"}), 1) == Restart()
    same = [Failure(n, "a", 0, "killed", 0, restored=10) for n in range(1, SAME_STEP + 1)]
    assert isinstance(climb(same, frozenset({"a"}), 1), GiveUp)


def test_what_the_user_gave_wrong_is_not_tried_again() -> None:
    rung = climb(failures(0, usage=True), BOTH, 1)
    assert rung == GiveUp("ValueError: x", usage=True)


def test_lost_nodes_and_ranks_without_peers_are_not_blamed() -> None:
    for how in ("lost", "adrift"):
        assert climb(failures(7, 7, 7, 7, how=how), BOTH, 1) == Restart()


def test_generations_in_vain_end() -> None:
    told = failures(*([9, *[5, 4, 3, 2, 1][: IN_VAIN - 1]]), how="lost")
    assert isinstance(climb(told, BOTH, 1), GiveUp)
    assert climb(told[:-1], BOTH, 1) == Restart()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40, unique=True).map(sorted))
def test_progress_is_never_stopped(steps: list[int]) -> None:
    assert climb(failures(*steps), BOTH, 1) == Restart()


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab")), min_size=1, max_size=60))
def test_what_comes_no_further_stops(told: list[tuple[int, str]]) -> None:
    """However ranks die, a job that makes no progress ends within a bounded number of tries."""
    found = [Failure(n, node, 0, "killed", step) for n, (step, node) in enumerate(told, 1)]
    rungs = [climb(found[: count + 1], BOTH, 2) for count in range(len(found))]
    first = next((n for n, rung in enumerate(rungs) if isinstance(rung, GiveUp)), None)
    furthest = sorted({step for step, _ in told})
    if len(told) > IN_VAIN * (len(furthest) + 1):
        assert first is not None


@given(st.integers(), st.lists(st.integers(0, 99)), st.text())
def test_json_both_ways(generation: int, positions: list[int], error: str) -> None:
    failure = Failure(generation, "a", 1, "hang", 3, 1, tuple(positions), error, True, 2)
    assert Failure.from_json(failure.to_json()) == failure


def test_positions_in_words() -> None:
    assert positions_in_words([4]) == "position 4"
    assert positions_in_words([9, 4, 5, 6]) == "positions 4-6, 9"
    assert positions_in_words(range(0, 100, 2)).endswith("and 38 more runs")
