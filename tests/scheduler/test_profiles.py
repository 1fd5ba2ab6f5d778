"""What is remembered of a job, when it counts, and when it is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.flow import FlowConfig, FlowMemory, FlowView, decide
from edl.scheduler.profiles import (
    ANSWERS,
    BELIEVED_S,
    SETTLED_STEPS,
    SPACING_S,
    STALE_S,
    STEPS,
    Measured,
    Profile,
    facts_of,
    profile_of,
    times,
    to_save,
)

WALL = 1.7e9
LAST_RUN = Profile(0.05, 0.01, "m1", WALL - 3600)
NOTHING_YET = Measured(content_id="m1")
SETTLED = Measured(0.05, SETTLED_STEPS, 0.01, SETTLED_STEPS, "m1")


def test_a_remembered_profile_gives_n_before_the_first_batch() -> None:
    known = times(LAST_RUN, NOTHING_YET, WALL)
    assert known.presumed
    view = FlowView(0, 0, 0, 0, 0, 0, 0, 0, False, False, known.t_t_s, known.t_s_s)
    decision, _ = decide(view, FlowMemory.start(), 0.0, FlowConfig(2, 1))
    assert decision.needed == decision.want == LAST_RUN.needed == 5


def test_without_one_it_is_learned_from_enough() -> None:
    assert times(None, NOTHING_YET, WALL) == (None, None, False)
    few = Measured(0.2, ANSWERS - 1, 0.1, STEPS - 1)
    assert times(None, few, WALL) == (None, None, False)
    assert times(None, few._replace(answers=ANSWERS), WALL) == (0.2, None, False)
    assert times(None, few._replace(steps=STEPS), WALL) == (None, 0.1, False)


def test_each_time_is_replaced_when_enough_was_measured() -> None:
    cold = Measured(0.9, ANSWERS - 1, 0.7, STEPS - 1, "m1")
    assert times(LAST_RUN, cold, WALL) == (0.05, 0.01, True)
    assert times(LAST_RUN, cold._replace(answers=ANSWERS), WALL) == (0.9, 0.01, True)
    assert times(LAST_RUN, cold._replace(steps=STEPS), WALL) == (0.05, 0.7, True)
    warm = cold._replace(answers=ANSWERS, steps=STEPS)
    assert times(LAST_RUN, warm, WALL) == (0.9, 0.7, False)


def test_another_content_has_another_t_t() -> None:
    assert times(LAST_RUN, Measured(content_id="m2"), WALL) == (None, 0.01, True)
    assert times(LAST_RUN, Measured(content_id=""), WALL) == (0.05, 0.01, True), "not known yet"


@pytest.mark.parametrize("age_s", [BELIEVED_S + 1, -1.0])
def test_what_is_too_old_or_of_the_future_is_not_believed(age_s: float) -> None:
    old = replace(LAST_RUN, saved_at=WALL - age_s)
    assert times(old, NOTHING_YET, WALL) == (None, None, False)


class TestSaving:
    def test_what_has_settled_is_saved(self) -> None:
        assert to_save(None, SETTLED, WALL) == Profile(0.05, 0.01, "m1", WALL)
        assert to_save(None, SETTLED._replace(steps=SETTLED_STEPS - 1), WALL) is None
        assert to_save(None, SETTLED._replace(answers=SETTLED_STEPS - 1), WALL) is None
        assert to_save(None, NOTHING_YET, WALL) is None

    def test_and_again_when_it_has_moved_or_grown_stale(self) -> None:
        saved = to_save(None, SETTLED, WALL)
        later = WALL + SPACING_S
        assert to_save(saved, SETTLED, later) is None
        assert to_save(saved, SETTLED._replace(t_t_s=0.052), later) is None
        assert to_save(saved, SETTLED._replace(t_t_s=0.1), later - 1) is None
        assert to_save(saved, SETTLED._replace(t_t_s=0.1), later) is not None
        assert to_save(saved, SETTLED._replace(content_id="m2"), later) is not None
        assert to_save(saved, SETTLED, WALL + STALE_S) is not None


@given(
    st.builds(
        Profile,
        st.floats(1e-9, 1e6),
        st.floats(1e-9, 1e6),
        st.text(max_size=8),
        st.floats(0, 1e10),
    )
)
def test_what_was_written_is_read_again_exactly(profile: Profile) -> None:
    assert profile_of(facts_of(profile)) == profile


@given(st.dictionaries(st.sampled_from([*facts_of(LAST_RUN), "other"]), st.text(max_size=6)))
def test_anything_else_is_no_profile_and_no_error(facts: dict[str, str]) -> None:
    found = profile_of(facts)
    if found is not None:
        assert found.needed >= 1


@pytest.mark.parametrize(
    ("key", "text"), [("t_t_seconds", "0"), ("t_s_seconds", "nan"), ("saved_at", "inf")]
)
def test_times_that_cannot_be_are_no_profile(key: str, text: str) -> None:
    assert profile_of({**facts_of(LAST_RUN), key: text}) is None
