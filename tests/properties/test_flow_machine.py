"""Whatever a reader sees, in whatever order, flow control keeps to its rules.

The views are arbitrary, also such as no reader would ever see: the rules hold without any help from
the ledger. What flow control does to a reader is in `test_simulated_flow.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edl.scheduler.flow import (
    COOLDOWN_S,
    STARVED_FOR_S,
    SURPLUS_WINDOW_S,
    FlowConfig,
    FlowDecision,
    FlowMemory,
    FlowView,
    PullTransition,
    decide,
    wanted,
)
from edl.scheduler.rates import teachers_needed, time_ratio
from edl.scheduler.stream_stats import (
    ANSWERS,
    PULLS,
    STEP_WINDOW,
    STEPS,
    WARM_UP,
    Measured,
    StreamStats,
    times,
)

NOTHING = FlowView(0, 0, 0, 0, 0, 0, 0, False, False, None, None)
small = st.integers(0, 4)
seconds_per_sample = st.none() | st.sampled_from([0.01, 0.0199, 0.02, 0.0201, 0.021, 0.05, 0.3])


class FlowMachine(RuleBasedStateMachine):
    @initialize(
        lower=st.integers(0, 50),
        above=st.integers(1, 50),
        least=st.integers(1, 3),
        more=st.integers(0, 6),
        buffer=st.none() | st.integers(0, 400),
    )
    def a_reader_opens(
        self, lower: int, above: int, least: int, more: int, buffer: int | None
    ) -> None:
        limit = None if buffer is None else lower + above + buffer
        self.config = FlowConfig(lower + above, lower, least, least + more, buffer_bytes=limit)
        self.view, self.now = NOTHING, 0.0
        self.memory = FlowMemory()
        self.decision = FlowDecision(0, self.config.teachers_min)
        self.raised_at: float | None = None
        self.pulling = True
        self.hungry_s = 0.0  # in all
        self.look(0.0)

    def look(self, after_s: float) -> None:
        """Decide, `after_s` after the last decision; check the step from that one to this."""
        before, memory = self.decision, self.memory
        old_want = wanted(memory, self.config)
        was_hungry = self.hungry(old_want)
        self.now += after_s
        self.decision, self.memory = decide(self.view, memory, self.now, self.config)
        assert (self.decision, self.memory) == decide(self.view, memory, self.now, self.config)
        self.hungry_s += after_s * was_hungry
        if self.view.volume_bytes > self.config.upper_bytes:
            self.pulling = False
        elif self.view.volume_bytes in range(max(self.config.lower_bytes, 1)):
            self.pulling = True
        self.check_transition(before.transition)
        if self.decision.needed == before.needed:
            self.check_correction(old_want)

    def check_transition(self, before: PullTransition | None) -> None:
        """The event log says when pulling paused above `ut` and went on below `lt`."""
        transition, config = self.decision.transition, self.config
        if transition is before:
            assert self.pulling == (before is None or before.pulling)
            return
        assert transition is not None
        assert transition.pulling == self.pulling != (before is None or before.pulling)
        assert transition.volume_bytes == self.view.volume_bytes
        assert transition.threshold_bytes == (
            config.lower_bytes if self.pulling else config.upper_bytes
        )
        assert str(transition.volume_bytes) in transition.why or not transition.volume_bytes

    def hungry(self, want: int) -> bool:
        """By the definition: it waits for labels, and a further teacher would have a batch."""
        view = self.view
        starved = view.waiting and view.unlabelled > 0
        full = view.window_room == 0 and view.queued > 0
        return starved and full and view.teachers >= want

    def check_correction(self, old: int) -> None:
        want = wanted(self.memory, self.config)
        if want > old:
            assert self.hungry(old), "asked for more without need"
            assert self.hungry_s >= STARVED_FOR_S - 1e-9, "asked in haste"
            assert want == max(old + 1, min(self.decision.needed, self.config.teachers_max))
            if self.raised_at is not None:
                assert self.now - self.raised_at >= COOLDOWN_S
            self.raised_at, self.hungry_s = self.now, 0.0
        elif want < old:
            assert not self.hungry(old), "gave back while starving"
            assert want == min(old, self.view.teachers) - 1

    @rule(after_s=st.sampled_from([0.0, 0.01, 0.1, 1.0, 5.0, 16.0]))
    def time_goes_by(self, after_s: float) -> None:
        self.look(after_s)

    @rule(volume=st.integers(0, 120))
    def the_buffer_is(self, volume: int) -> None:
        self.view = self.view._replace(volume_bytes=volume)
        self.look(0.0)

    @rule(queued=small, in_flight=small)
    def the_work_is(self, queued: int, in_flight: int) -> None:
        self.view = self.view._replace(queued=queued, unlabelled=queued + in_flight)
        self.look(0.0)

    @rule(batch_bytes=st.sampled_from([0, 7, 30]))
    def a_batch_weighs(self, batch_bytes: int) -> None:
        self.view = self.view._replace(batch_bytes=batch_bytes)
        self.look(0.0)

    @rule(windows=small, free=small, teachers=st.integers(0, 10), idle=small)
    def the_teachers_are(self, windows: int, free: int, teachers: int, idle: int) -> None:
        free, idle = min(free, windows), min(idle, teachers)
        self.view = self.view._replace(window_batches=windows, window_room=free)
        self.view = self.view._replace(teachers=teachers, idle=idle)
        self.look(0.0)

    @rule(waiting=st.booleans(), ended=st.booleans())
    def the_student_is(self, waiting: bool, ended: bool) -> None:
        self.view = self.view._replace(waiting=waiting, source_ended=ended)
        self.look(0.0)

    @rule(t_t_s=seconds_per_sample, t_s_s=seconds_per_sample)
    def the_times_are(self, t_t_s: float | None, t_s_s: float | None) -> None:
        self.view = self.view._replace(t_t_s=t_t_s, t_s_s=t_s_s)
        self.look(0.0)

    @rule()
    def it_starves_and_gets_what_it_asks_for(self) -> None:
        want = wanted(self.memory, self.config)
        self.view = NOTHING._replace(
            queued=1, unlabelled=3, window_batches=2, teachers=want, waiting=True
        )
        self.look(0.0)
        self.look(0.3)

    @rule(unreachable=small, judges=st.integers(0, 2))
    def some_do_not_answer_or_contradict_each_other(self, unreachable: int, judges: int) -> None:
        self.view = self.view._replace(unreachable=unreachable, judges=judges)
        self.look(0.0)

    @invariant()
    def the_want_is_within_bounds(self) -> None:
        most = self.config.teachers_max
        want = wanted(self.memory, self.config)
        assert self.config.teachers_min <= want <= most
        besides = self.view.unreachable + self.view.judges
        assert self.decision.want == min(want + besides, most)

    @invariant()
    def it_pulls_by_the_thresholds_and_no_further_than_the_read_ahead(self) -> None:
        view = self.view
        room = max(2, view.window_batches) - view.queued
        if view.batch_bytes:
            fits = max(self.config.upper_bytes - view.volume_bytes, 0) // view.batch_bytes
            room = min(room, fits + max(view.window_batches, 1) - view.unlabelled)
        room, pull = max(room, 0) if self.pulling else 0, self.decision.pull
        limit, empty = self.config.buffer_bytes, not view.volume_bytes and not view.unlabelled
        assert pull <= room
        assert pull == room or limit is not None
        if limit is not None:
            held = view.volume_bytes + view.unlabelled * view.batch_bytes
            assert pull == 0 or (empty and pull == 1) or held + pull * view.batch_bytes <= limit
            if pull < room and view.batch_bytes:
                assert held + (pull + 1) * view.batch_bytes > limit
            assert pull or not (empty and room), "an empty buffer takes one batch, however large"
        most = view.volume_bytes + (view.unlabelled + self.decision.pull) * view.batch_bytes
        if self.decision.pull:
            assert most <= self.config.upper_bytes + max(view.window_batches, 1) * view.batch_bytes
        if view.volume_bytes == 0:
            assert self.pulling, "an empty buffer must pull"

    @invariant()
    def n_is_the_ratio_or_was_a_moment_ago(self) -> None:
        t_t_s, t_s_s = self.view.t_t_s, self.view.t_s_s
        if t_t_s is None or t_s_s is None:
            return
        n, ratio = self.decision.needed, t_t_s / t_s_s
        assert n >= 1
        if n != teachers_needed(t_t_s, t_s_s):
            assert ratio <= 1.25 * n + 1e-9, "clearly too few"
            since = self.memory.off_ratio_since
            assert since is not None
            patience_s = COOLDOWN_S if ratio > n else SURPLUS_WINDOW_S
            assert self.now - since < patience_s

    @invariant()
    def no_time_is_booked_twice(self) -> None:
        memory = self.memory
        assert min(memory.starved_s, memory.blocked_s, memory.source_wait_s) >= 0
        assert memory.starved_s + memory.source_wait_s <= self.now + 1e-6
        assert memory.blocked_s <= self.now + 1e-6


TestFlowMachine = FlowMachine.TestCase

CONFIG = FlowConfig(upper_bytes=1000, lower_bytes=400)
T_S_S = 0.01
RATIOS = st.floats(0.01, 60.0)


def view(ratio: float, teachers: int, *, presumed: bool) -> FlowView:
    t_t_s = ratio * T_S_S
    return FlowView(500, 1, 3, 2, 0, 0, teachers, False, False, t_t_s, T_S_S, presumed=presumed)


def n_of(ratio: float) -> int:
    return teachers_needed(ratio * T_S_S, T_S_S)


@given(RATIOS, RATIOS, st.floats(0.0, 60.0))
@example(5.0, 4.9, 0.0)
@example(3.0, 3.1, 0.0)
@example(14.0, 42.4, 60.0)  # 14.0 * 0.01 / 0.01 > 14
def test_what_is_measured_replaces_at_once_what_was_remembered(
    remembered: float, measured: float, after_s: float
) -> None:
    first, memory = decide(view(remembered, 1, presumed=True), FlowMemory(), 1000.0, CONFIG)
    assert first.needed == n_of(remembered)
    now = 1000.0 + after_s
    second, _ = decide(view(measured, first.want, presumed=False), memory, now, CONFIG)
    assert second.needed == second.want == n_of(measured)


ROWS = 32
SECONDS = st.floats(1e-4, 10.0)


def known(figures: StreamStats) -> tuple[float | None, float | None]:
    """(t_t, t_s) to decide by, of a job that nothing is remembered of."""
    measured = Measured(figures.t_t_s, figures.answers, figures.t_s_s, figures.steps)
    found = times(None, measured, 0.0)
    return found.t_t_s, figures.pace_s(found.t_s_s)


@given(st.data(), SECONDS, SECONDS, st.integers(1, 4), st.integers(0, 40), st.integers(0, 40))
def test_one_measurement_that_is_wrong_does_not_show(
    data: st.DataObject, answer_s: float, step_s: float, teachers: int, answers: int, steps: int
) -> None:
    figures = StreamStats()
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
        counted = min(steps - (WARM_UP if steps >= 2 * WARM_UP else 0), STEP_WINDOW)
        assert -1e-9 < time_ratio(t_t_s, t_s_s) / right - 1 < 1 / (counted - 1)


STEP_S = 0.1
TRACES = {
    "synchronous": [STEP_S],
    "asynchronous: four run ahead": [0.005] * 4 + [5 * STEP_S - 4 * 0.005],
    "asynchronous: fifteen run ahead": [0.001] * 15 + [16 * STEP_S - 15 * 0.001],
    "bursts": [STEP_S / 2, STEP_S / 2, 2 * STEP_S],
}


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
@given(st.integers(0, 30), st.integers(1, 9), st.integers(0, 300))
def test_n_is_the_ratio_however_the_steps_come(
    trace: list[float], offset: int, n: int, paused: int
) -> None:
    """Also with slow first steps, and one pause of a minute once pauses can be told."""
    figures = StreamStats()
    for _ in range(WARM_UP):
        figures.step(20 * STEP_S, ROWS)
    for number in range(8 * STEP_WINDOW):
        pause_s = 60.0 if number == STEP_WINDOW + paused else 0.0
        figures.step(trace[(number + offset) % len(trace)] + pause_s, ROWS)
        for _ in range(ANSWERS):
            figures.answer("a", (n - 0.5) * STEP_S, ROWS)
        t_t_s, t_s_s = known(figures)
        if number >= STEP_WINDOW:
            assert t_t_s is not None
            assert t_s_s is not None
            # A window may hold one turn of the trace more or less.
            off = abs(teachers_needed(t_t_s, t_s_s) - n)
            assert off <= (0 if len(trace) == 1 else max(1, n / 2))


@pytest.mark.parametrize("last", [1, ROWS, 4 * ROWS])
def test_t_s_is_of_all_rows_where_batches_differ(last: int) -> None:
    """A loop runs ahead for four batches and waits for all of them at the fifth, of other size."""
    figures = StreamStats()
    for _ in range(WARM_UP + 2 * STEP_WINDOW):
        for _ in range(4):
            figures.step(0.005, ROWS)
        figures.step(0.48, last)
    assert figures.t_s_s == pytest.approx(0.5 / (4 * ROWS + last), rel=0.1)


@given(st.floats(0.1, 10.0))
def test_a_throttled_student_shows_within_the_window(factor: float) -> None:
    figures = StreamStats()
    for number in range(WARM_UP + 2 * STEP_WINDOW):
        figures.step(STEP_S * (1 if number < WARM_UP + STEP_WINDOW else factor), ROWS)
    assert figures.t_s_s == pytest.approx(factor * STEP_S / ROWS)


@given(st.integers(1, PULLS // 4), st.integers(STEPS, 4 * PULLS), SECONDS, st.floats(0.0, 1.0))
def test_a_slow_source_asks_for_no_teachers_however_it_bursts(
    burst: int, pulled: int, source_s: float, of_source: float
) -> None:
    # A loader with `burst` workers: a long wait, then as many batches as it has workers.
    figures = StreamStats()
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
    figures = StreamStats()
    for epoch in range(3):
        if epoch:
            figures.begin()
            figures.pulled(source_s * longer, ROWS)
        for _ in range(pulled):
            figures.pulled(source_s, ROWS)
    pace_s = figures.pace_s(1e-9)
    assert pace_s is not None
    assert abs(pace_s * ROWS / source_s - 1) < 1e-9
