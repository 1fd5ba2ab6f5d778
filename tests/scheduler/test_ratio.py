"""n = ceil(t_t / t_s), times per sample, and the pooled time of unequal teachers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.ratio import pooled_t_t, teachers_needed, time_ratio

seconds = st.floats(min_value=1e-6, max_value=1e3)


def test_the_papers_figure_3_needs_five_p4_for_one_v100() -> None:
    v100_s, p4_s = 1 / 350, 1 / 75  # seconds per image: a P4 labels slower than a V100 trains
    assert teachers_needed(t_t=p4_s, t_s=v100_s) == 5


def test_a_fast_teacher_is_still_one_teacher() -> None:
    assert teachers_needed(t_t=0.001, t_s=1.0) == 1


def test_a_teacher_three_times_slower_is_three_times_as_many() -> None:
    assert teachers_needed(0.02, 0.01) == 2
    assert teachers_needed(0.06, 0.01) == 6


@given(t_t=seconds, t_s=seconds)
def test_n_teachers_keep_up_and_one_fewer_would_not(t_t: float, t_s: float) -> None:
    n = teachers_needed(t_t, t_s)
    ratio = t_t / t_s
    assert n >= 1
    assert n >= ratio
    assert n - 1 < ratio


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="seconds per sample"):
        teachers_needed(bad, 1.0)
    with pytest.raises(ValueError, match="seconds per sample"):
        teachers_needed(1.0, bad)
    with pytest.raises(ValueError, match="seconds per sample"):
        pooled_t_t([1.0, bad])


def test_a_ratio_beyond_floats_is_refused() -> None:
    for t_t, t_s in ((1e-320, 1e300), (1e300, 1e-320)):
        with pytest.raises(ValueError, match="float"):
            time_ratio(t_t, t_s)


def test_no_teacher_has_no_pooled_time() -> None:
    with pytest.raises(ValueError, match="no teacher"):
        pooled_t_t([])


def test_speeds_add_up_and_times_do_not() -> None:
    # 10 and 2.5 samples a second together do as much as two of 6.25.
    assert pooled_t_t([0.1, 0.4]) == pytest.approx(1 / 6.25)


@given(st.lists(seconds, min_size=1, max_size=64))
def test_as_many_teachers_of_the_pooled_time_label_as_fast(times: list[float]) -> None:
    pooled = pooled_t_t(times)
    assert len(times) / pooled == pytest.approx(math.fsum(1 / t for t in times))
    assert min(times) * (1 - 1e-9) <= pooled <= max(times) * (1 + 1e-9)
