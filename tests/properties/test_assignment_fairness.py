"""Small cases, compared with the best of all possible assignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.assignment import (
    AssignmentEvent,
    AssignmentState,
    StudentReported,
    TeacherUp,
    reduce,
)

from . import assignment_laws as laws


@dataclass(frozen=True)
class Demand:
    job: str
    want: int
    least: int
    priority: int


JOBS, WANTS = st.sampled_from("abc"), st.integers(1, 4)
demands = st.builds(Demand, JOBS, WANTS, st.just(1), st.just(0))
guarantees = st.builds(Demand, JOBS, WANTS, st.integers(1, 3), st.integers(0, 2))


def assigned(teachers: int, asked: list[Demand]) -> list[int]:
    events: list[AssignmentEvent] = [
        *(TeacherUp(f"t{index}") for index in range(teachers)),
        *(
            StudentReported(f"{demand.job}/{rank}", demand.want, (), demand.least, demand.priority)
            for rank, demand in enumerate(asked)
        ),
    ]
    state, _ = reduce(AssignmentState(), events, 0.0)
    laws.check(state)
    return [len(entry.teachers) for entry in state.students.values()]


def all_counts(teachers: int, asked: list[Demand]) -> Iterator[tuple[int, ...]]:
    """Every way to give each at least one and at most what it wants, with nothing left idle."""

    def split(left: int, rest: list[Demand]) -> Iterator[tuple[int, ...]]:
        if not rest:
            yield ()
            return
        for count in range(1, min(rest[0].want, left) + 1):
            yield from ((count, *others) for others in split(left - count, rest[1:]))

    usable = min(teachers, sum(demand.want for demand in asked))
    return (counts for counts in split(teachers, asked) if sum(counts) == usable)


def slowest_ranks(counts: tuple[int, ...], asked: list[Demand]) -> list[int]:
    """What decides the pace of each job: the least that one of its ranks has, which wants more."""
    jobs: dict[str, int] = defaultdict(lambda: 99)
    for count, demand in zip(counts, asked, strict=True):
        jobs[demand.job] = min(jobs[demand.job], count if count < demand.want else 99)
    return sorted(jobs.values())


@given(st.lists(demands, min_size=1, max_size=5), st.integers(0, 8))
def test_nobody_could_have_more_without_another_having_less_than_that(
    asked: list[Demand], more: int
) -> None:
    """Max-min fair: no other assignment is better, looked at from the one who has least."""
    teachers = len(asked) + more
    best = max(sorted(counts) for counts in all_counts(teachers, asked))
    assert sorted(assigned(teachers, asked)) == best


@given(st.lists(demands, min_size=1, max_size=5), st.integers(0, 8))
def test_as_few_jobs_as_can_be_are_held_up_by_a_rank(asked: list[Demand], more: int) -> None:
    """Among the fairest for ranks, as few jobs as possible are as slow as the slowest."""
    teachers = len(asked) + more
    fairest = max(sorted(counts) for counts in all_counts(teachers, asked))
    fair = [counts for counts in all_counts(teachers, asked) if sorted(counts) == fairest]
    paces = [slowest_ranks(counts, asked) for counts in fair]
    mine = slowest_ranks(tuple(assigned(teachers, asked)), asked)
    slowest = mine[0]
    assert all(pace[0] <= slowest for pace in paces)
    if slowest < 99:
        held_up = min(pace.count(slowest) for pace in paces if pace[0] == slowest)
        assert mine.count(slowest) == held_up


@given(st.lists(guarantees, min_size=1, max_size=5), st.integers(0, 8))
def test_first_ones_then_guarantees_then_priorities(asked: list[Demand], more: int) -> None:
    """The k-th teacher of a student has a rank; those that are given are the best there are."""
    teachers = len(asked) + more

    def place(demand: Demand, have: int) -> tuple[int, int, int]:
        kind = 0 if have == 0 else 1 if have < demand.least else 2
        return kind, 0 if have == 0 else -demand.priority, have

    places = sorted(place(demand, have) for demand in asked for have in range(demand.want))
    counts = zip(asked, assigned(teachers, asked), strict=True)
    given = [place(demand, have) for demand, count in counts for have in range(count)]
    assert sorted(given) == places[: min(teachers, len(places))]


anything, naturals = st.floats(), st.integers(0, 2**32)
reported = st.builds(
    StudentReported,
    st.sampled_from(["a/0", "b/0", "c/0"]),
    naturals,
    min=naturals,
    priority=st.integers(-(2**31), 2**31),
    needed=naturals,
    t_t_s=anything,
    t_s_s=anything,
    unreachable=naturals,
)


@given(st.lists(anything, max_size=4), st.lists(reported))
def test_no_figure_that_anybody_reports_breaks_the_rule(
    speeds: list[float], reports: list[StudentReported]
) -> None:
    state = AssignmentState()
    for index, speed in enumerate(speeds):
        state, _ = reduce(state, [TeacherUp(f"t{index}", 1, speed)], 0.0)
    for index, report in enumerate(reports):
        state, _ = reduce(state, [report], float(index))
    laws.check(state)
