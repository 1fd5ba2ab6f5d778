"""What a batch does whose labels may lie in a store."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.shelving import FIRST_ANSWER_S, OFFLINE_AFTER_S, Standing, step

STANDINGS = st.builds(
    Standing,
    known=st.booleans(),
    mute=st.booleans(),
    remembered=st.booleans(),
    usable=st.integers(0, 3),
    asked=st.booleans(),
    waited_s=st.floats(0, 20),
)
NEW = Standing(known=False, mute=False, remembered=True, usable=0, asked=False, waited_s=0.0)


@given(STANDINGS)
def test_nothing_is_looked_up_by_a_guess_while_a_teacher_could_say(now: Standing) -> None:
    if step(now) == "look":
        assert now.known
    if step(now) == "recall":
        assert now.remembered
        assert not now.known
        assert not now.usable
        assert not now.mute


@given(STANDINGS)
def test_nobody_waits_for_ever(now: Standing) -> None:
    late = replace(now, waited_s=max(FIRST_ANSWER_S, OFFLINE_AFTER_S))
    assert step(late) != "wait"


@given(STANDINGS)
def test_who_waits_does_so_for_something_that_may_come(now: Standing) -> None:
    if step(now) == "wait":
        assert not now.known
        assert now.asked or not now.usable


def test_a_stream_from_its_first_batch_on() -> None:
    assert step(NEW) == "wait"
    assert step(replace(NEW, usable=1)) == "ask"
    assert step(replace(NEW, usable=1, asked=True)) == "wait"
    assert step(replace(NEW, usable=1, known=True)) == "look"
    assert step(replace(NEW, usable=1, mute=True)) == "ask"


def test_a_stream_without_teachers() -> None:
    late = replace(NEW, waited_s=OFFLINE_AFTER_S)
    assert step(late) == "recall"
    assert step(replace(late, remembered=False)) == "ask"
    assert step(replace(late, known=True)) == "look"
