"""How many teachers are desired: the cases that the rule was made for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.scheduler.autoscale import (
    AutoscaleConfig,
    AutoscaleMemory,
    Desired,
    ServiceLoad,
    decide,
    resumed,
)

CONFIG = AutoscaleConfig(
    max=10, freeze_s=10.0, up_after_s=4.0, down_after_s=20.0, idle_to_zero_s=30.0
)
#: One student that needs 2.5 teachers' time.
STEADY = ServiceLoad(1, serving=3, wanted=3, t_t_s=0.05, demand_per_s=50.0)


class Office:
    """Decides once a second and keeps what it has decided."""

    def __init__(self, config: AutoscaleConfig = CONFIG, count: int = 3) -> None:
        self.config = config
        self.now = 100.0
        self.memory = AutoscaleMemory(desired=count)
        self.changes: list[tuple[float, Desired]] = []

    def run(self, view: ServiceLoad, for_s: float, blocked: float = 0.0) -> int:
        """Let time pass, for `blocked` of which students pause; the number at its end."""
        end, paused_s = self.now + for_s, self.memory.blocked_s
        while self.now < end:
            self.now += 1.0
            paused_s += blocked * view.students
            before = self.memory.desired
            told, self.memory = decide(replace(view, blocked_s=paused_s), self.memory, self.now,
                                       self.config)  # fmt: skip
            if told.count != before:
                self.changes.append((self.now, told))
        return self.memory.desired or 0


def test_what_is_needed_and_enough_stays() -> None:
    office = Office()
    assert office.run(STEADY, 300.0) == 3
    assert office.changes == []


def test_students_that_starve_need_not_wait() -> None:
    office = Office()
    quick = replace(STEADY, wanted=6, starving=1, demand_per_s=110.0)
    assert office.run(quick, 1.0) == 6
    assert office.changes[0][1].reason == (
        "1 student, which starves: wants 6, worth 5.50 by their times"
    )


def test_who_starves_until_teachers_have_started_needs_no_more() -> None:
    office = Office(count=4)
    assert office.run(replace(STEADY, starving=1, wanted=9, serving=2), 3.0) == 4


def test_a_need_without_starving_has_to_last() -> None:
    office = Office()
    more = replace(STEADY, wanted=5, demand_per_s=90.0)
    assert office.run(more, 3.0) == 3
    assert office.run(STEADY, 1.0) == 3  # over: the next one begins anew
    assert office.run(more, 4.0) == 3
    assert office.run(more, 2.0) == 5


def test_labels_in_plenty_let_it_fall_to_what_the_times_ask_for() -> None:
    office = Office(count=8)
    shared = replace(STEADY, students=8, serving=8, wanted=8, demand_per_s=30.0)
    assert office.run(shared, 60.0) == 8, "nobody says that there is too much"
    assert office.run(shared, 60.0, blocked=0.8) == 2  # 1.5 teachers' time, and a quarter more
    (_, told) = office.changes[-1]
    assert told.reason.startswith("fewer were enough for 20 s: 8 students want 8")


def test_a_number_with_which_students_starved_is_not_tried_again() -> None:
    office = Office(count=8)
    shared = replace(STEADY, students=8, serving=8, wanted=8, demand_per_s=30.0)
    office.run(shared, 60.0, blocked=0.8)
    assert office.run(replace(shared, serving=2, starving=3), 10.0) == 3
    assert office.run(replace(shared, serving=3), 300.0, blocked=0.8) == 3, "it swings"
    less = replace(shared, serving=3, demand_per_s=15.0)
    assert office.run(less, 60.0, blocked=0.8) == 1


def test_a_tenth_less_is_noise_where_there_are_many() -> None:
    office = Office(replace(CONFIG, max=100), count=50)
    many = ServiceLoad(10, serving=50, wanted=46)
    assert office.run(many, 120.0) == 50
    assert office.run(replace(many, wanted=44), 120.0) == 44


def test_the_last_student_takes_all_teachers_with_it() -> None:
    office = Office()
    empty = ServiceLoad(0, serving=3)
    assert office.run(empty, 29.0) == 3
    assert office.run(STEADY, 1.0) == 3  # it was back in time
    assert office.run(empty, 32.0) == 0
    assert office.run(replace(STEADY, serving=0), 12.0) == 3
    assert office.changes[-1][1].reason == (
        "1 student and no teacher: wants 3, worth 2.50 by their times"
    )


def test_what_was_there_before_anybody_decided_is_begun_with() -> None:
    empty = ServiceLoad(0, serving=3, starting=1)
    assert decide(empty, AutoscaleMemory(), 0.0, CONFIG)[0].count == 4
    assert decide(replace(empty, serving=50), AutoscaleMemory(), 0.0, CONFIG)[0].count == 10


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        (CONFIG, "; max is 10"),
        (
            replace(CONFIG, price_per_teacher_hour=0.1, cost_ceiling_per_hour=0.3),
            "; the cost ceiling pays for no more than 3",
        ),
    ],
)
def test_the_reason_says_what_bounds_the_number(config: AutoscaleConfig, bound: str) -> None:
    office = Office(config)
    office.run(ServiceLoad(4, serving=3, wanted=40, starving=4), 1.0)
    office.run(ServiceLoad(4, serving=10, wanted=40), 30.0)
    told, _ = decide(ServiceLoad(4, 10, wanted=40), office.memory, office.now, config)
    assert told.count == config.most
    assert told.reason.endswith(bound)
    again = resumed(told.count, told.reason, office.now)
    assert decide(ServiceLoad(4, 10, wanted=40), again, office.now, config)[0] == told


def test_nothing_is_taken_away_while_not_all_may_be_back() -> None:
    office = Office(count=5)
    assert office.run(ServiceLoad(0, serving=1, recovering=True), 300.0) == 5
    assert office.run(replace(STEADY, wanted=7, recovering=True, demand_per_s=0.0), 20.0) == 7


@pytest.mark.parametrize(
    "settings",
    [
        {"min": 3, "max": 2},
        {"min": -1},
        {"freeze_s": -1.0},
        {"up_after_s": float("nan")},
        {"price_per_teacher_hour": -1.0},
        {"cost_ceiling_per_hour": float("inf")},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not"):
        AutoscaleConfig(**settings)  # type: ignore[arg-type]
