"""When a reader says that its student starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.hunger import STARVING_S, WINDOW_S, Hunger, follow

STEP_S = 0.05


def followed(waits_s: list[float]) -> list[bool]:
    """What is said after each step, in which the student waits for so long."""
    hunger, starved_s, said = Hunger(), 0.0, []
    for number, waits in enumerate(waits_s, 1):
        starved_s += waits
        hunger = follow(hunger, starved_s, number * STEP_S)
        said.append(hunger.starves)
    return said


def test_a_moment_without_labels_at_each_epoch_is_no_starving() -> None:
    epoch = [0.03, 0.0] + [0.0] * 24  # 1.3 s
    assert not any(followed(epoch * 20))


def test_lasting_hunger_is_told_at_once_and_its_end_after_a_quiet_window() -> None:
    hungry = round(2 / STEP_S)
    said = followed([STEP_S] * hungry + [0.0] * 60)
    assert said.index(True) * STEP_S <= STARVING_S
    assert all(said[said.index(True) : hungry])
    ends = hungry + said[hungry:].index(False)
    assert (ends - hungry) * STEP_S <= 2 * WINDOW_S
    assert not any(said[ends:])


def test_who_waits_a_third_of_its_time_starves() -> None:
    said = followed([STEP_S, 0.0, 0.0] * 40)
    assert all(said[round(2 * WINDOW_S / STEP_S) :])


@given(st.lists(st.floats(0.0, STEP_S), max_size=100))
def test_nothing_is_said_of_less_than_the_least(waits_s: list[float]) -> None:
    if sum(waits_s) < STARVING_S:
        assert not any(followed(waits_s))
