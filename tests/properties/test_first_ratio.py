"""What n is computed from: nothing that was measured once makes it many times what it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.profiles import ANSWERS, STEPS, Measured, times
from edl.scheduler.ratio import teachers_needed, time_ratio
from edl.scheduler.stream_figures import PULLS, Figures

ROWS = 32
SECONDS = st.floats(1e-4, 10.0)


def known(figures: Figures) -> tuple[float | None, float | None]:
    """(t_t, t_s) to decide by, of a job that nothing is remembered of."""
    measured = Measured(figures.t_t_s, figures.answers, figures.t_s_s, figures.steps)
    found = times(None, measured, 0.0)
    return found.t_t_s, figures.pace_s(found.t_s_s)


@given(st.data(), SECONDS, SECONDS, st.integers(1, 4), st.integers(0, 40), st.integers(0, 40))
def test_one_measurement_that_is_wrong_does_not_show(
    data: st.DataObject, answer_s: float, step_s: float, teachers: int, answers: int, steps: int
) -> None:
    figures = Figures()
    late = data.draw(st.fixed_dictionaries({t: st.integers(0, 20) for t in range(teachers)}))
    short = data.draw(st.integers(0, 40))
    wrong = data.draw(st.floats(2.0, 1e4))
    for number in range(answers):
        teacher, turn = number % teachers, number // teachers
        took_s = answer_s * wrong if turn == late[teacher] else answer_s
        figures.answer(str(teacher), took_s, ROWS)
    for number in range(steps):
        figures.step(step_s / wrong if number == short else step_s, ROWS)
    t_t_s, t_s_s = known(figures)
    assert (t_s_s is not None) == (steps >= STEPS)
    if answers >= max(ANSWERS, 2 * teachers):
        assert t_t_s is not None
    if t_t_s is not None and t_s_s is not None:
        right = time_ratio(answer_s, step_s)
        assert abs(time_ratio(t_t_s, t_s_s) / right - 1) < 1e-9


@given(st.integers(1, PULLS // 4), st.integers(STEPS, 4 * PULLS), SECONDS, st.floats(0.0, 1.0))
def test_a_slow_source_asks_for_no_teachers_however_it_bursts(
    burst: int, pulled: int, source_s: float, of_source: float
) -> None:
    # A loader with `burst` workers: a long wait, then as many batches as it has workers.
    figures = Figures()
    for number in range(pulled):
        figures.pulled(0.0 if number % burst else burst * source_s, ROWS)
        figures.step(1e-6 * source_s, ROWS)
    for _ in range(ANSWERS):
        figures.answer("a", max(of_source * 0.75, 1e-3) * source_s, ROWS)
    t_t_s, pace_s = known(figures)
    assert t_t_s is not None
    assert pace_s is not None
    assert teachers_needed(t_t_s, pace_s) == 1


@given(st.integers(1, PULLS), SECONDS, st.floats(1.0, 1e3))
def test_what_a_loader_needs_to_begin_is_not_its_pace(
    pulled: int, source_s: float, longer: float
) -> None:
    figures = Figures()
    for epoch in range(3):
        if epoch:
            figures.begin()
            figures.pulled(source_s * longer, ROWS)
        for _ in range(pulled):
            figures.pulled(source_s, ROWS)
    pace_s = figures.pace_s(1e-9)
    assert pace_s is not None
    assert abs(pace_s * ROWS / source_s - 1) < 1e-9
