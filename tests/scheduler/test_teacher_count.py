"""What of a cluster is others', and for how many teachers that leaves room."""

from __future__ import annotations

import pytest

from edl.scheduler.elastic import Pool
from edl.scheduler.job_pods.values import Machine
from edl.scheduler.teacher_count import Promise, pool_of, room_for


@pytest.mark.parametrize(
    ("machine", "teaches", "held"),
    [
        ("counted", False, True),
        ("counted", True, True),
        ("none", True, True),
        ("none", False, False),
        ("closed", True, False),
        ("silent", True, False),
    ],
)
def test_teachers_that_wait_want_room_back_and_strangers_that_wait_do_not(
    machine: Machine, teaches: bool, held: bool
) -> None:
    pool = pool_of([{"cpu": 4.0}], [(machine, teaches, {"cpu": 3.0})])
    assert pool == Pool({"cpu": 4.0}, {"cpu": 3.0} if held else {})


def test_amounts_are_summed_over_machines_and_pods() -> None:
    machines = [{"cpu": 4.0, "gpu": 1.0}, {"cpu": 2.0}]
    others: list[tuple[Machine, bool, dict[str, float]]] = [
        ("counted", False, {"cpu": 0.5, "gpu": 0.0}),
        ("none", True, {"cpu": 1.0, "tape drives": 1.0}),
    ]
    pool = pool_of(machines, others)
    assert pool == Pool({"cpu": 6.0, "gpu": 1.0}, {"cpu": 1.5}), (
        "of what nobody has nothing is held"
    )
    assert room_for(pool, {"cpu": 1.5}, 1.0) == 3


def test_what_others_have_been_promised_and_have_not_is_no_room() -> None:
    pool = Pool({"cpu": 8.0, "gpu": 2.0}, {"cpu": 1.0})
    need = {"cpu": 1.0}
    assert room_for(pool, need, 1.0) == 7
    assert room_for(pool, need, 1.0, [Promise(3, 1, {"cpu": 2.0, "tape drives": 1.0})]) == 3
    assert room_for(pool, need, 1.0, [Promise(3, 1, {"cpu": 2.0}), Promise(1, 0, need)]) == 2
    assert room_for(pool, need, 1.0, [Promise(1, 4, {"cpu": 2.0})]) == 7, "what leaves is held yet"
    assert room_for(pool, need, 1.0, [Promise(9, 0, {"cpu": 9.0})]) == 0
