"""Algorithm 1, how many teachers are wanted: one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edl.scheduler.flow import FlowDecision, FlowView
from edl.tests.scheduler.flowing import (
    CALM,
    CONFIG,
    FIVE_NEEDED,
    PAUSED,
    SOURCE_WAIT,
    STARVED,
    Flow,
)


class TestRatio:
    def test_line_1_wants_n_teachers(self) -> None:
        decision = Flow().see(CALM._replace(t_t_s=0.045, t_s_s=0.01))
        assert (decision.needed, decision.want) == (5, 5)
        assert "ceil(0.045 / 0.01" in decision.reason

    def test_before_anything_is_measured_the_least_is_wanted(self) -> None:
        assert Flow().see(CALM).want == 1
        config = replace(CONFIG, teachers_min=3)
        assert Flow(config).see(CALM._replace(t_t_s=0.1)).want == 3

    def test_the_bounds_hold(self) -> None:
        config = replace(CONFIG, teachers_min=2, teachers_max=4)
        assert Flow(config).see(CALM._replace(t_t_s=0.001, t_s_s=0.01)).want == 2
        decision = Flow(config).see(CALM._replace(t_t_s=0.1, t_s_s=0.01))
        assert (decision.needed, decision.want) == (10, 4)

    def test_a_throttled_teacher_triples_n_at_once(self) -> None:
        flow = Flow()
        assert flow.see(CALM._replace(t_t_s=0.02, t_s_s=0.01)).needed == 2
        assert flow.see(CALM._replace(t_t_s=0.06, t_s_s=0.01)).needed == 6

    def test_noise_around_an_integer_does_not_flap(self) -> None:
        flow = Flow()
        flow.run(CALM._replace(t_t_s=0.0298, t_s_s=0.01), 1.0)
        for _ in range(100):
            for t_t_s in (0.0302, 0.0298):
                assert flow.run(CALM._replace(t_t_s=t_t_s, t_s_s=0.01), 0.1).want == 3

    def test_what_stays_beyond_the_edge_is_believed_in_the_end(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(t_t_s=0.0298, t_s_s=0.01))
        above = CALM._replace(t_t_s=0.0302, t_s_s=0.01)
        assert flow.run(above, CONFIG.cooldown_s - 0.1).want == 3
        assert flow.run(above, 0.2).want == 4

    def test_a_time_that_is_none_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="t_t"):
            Flow().see(CALM._replace(t_t_s=0.0, t_s_s=0.01))


class TestAskingForOneMore:
    def test_lines_7_to_9_starving_asks_for_one_more(self) -> None:
        flow = Flow()
        assert flow.run(STARVED, 0.2).want == 1
        decision = flow.run(STARVED, 0.2)
        assert decision.want == 2
        assert "starved with every window of 1 full" in decision.reason

    def test_the_next_one_only_when_the_last_has_come(self) -> None:
        flow = Flow()
        assert flow.run(STARVED, 60.0).want == 2
        assert flow.run(STARVED._replace(teachers=2), 2.5).want == 3

    def test_the_next_one_only_after_the_cool_down(self) -> None:
        flow = Flow()
        wants = [flow.run_granted(STARVED, 0.1).want for _ in range(50)]
        assert wants[-1] == 1 + 3  # after 0.3 s, 2.3 s and 4.3 s
        assert wants == sorted(wants)

    def test_one_that_does_not_answer_is_replaced_at_once(self) -> None:
        flow = Flow()
        dead = CALM._replace(teachers=4, unreachable=1, **FIVE_NEEDED)
        assert flow.see(dead).want == 6
        assert flow.run(dead, 60.0).want == 6
        assert flow.see(CALM._replace(teachers=5, **FIVE_NEEDED)).want == 5
        config = replace(CONFIG, teachers_max=5)
        assert Flow(config).see(dead).want == 5

    def test_a_judge_of_those_who_contradict_each_other_is_wanted_besides(self) -> None:
        flow = Flow()
        disputed = CALM._replace(teachers=5, judges=1, **FIVE_NEEDED)
        assert flow.see(disputed).want == 6
        assert flow.run(disputed, 60.0).want == 6
        assert flow.see(disputed._replace(judges=0)).want == 5
        assert Flow(replace(CONFIG, teachers_max=5)).see(disputed).want == 5

    def test_the_most_is_the_most(self) -> None:
        flow = Flow(replace(CONFIG, teachers_max=2))
        assert flow.run_granted(STARVED, 60.0).want == 2

    @pytest.mark.parametrize(
        "view",
        [
            SOURCE_WAIT,
            STARVED._replace(free_windows=1),  # a teacher has room, so what lacks is a batch
            STARVED._replace(queued=0, unlabelled=2),  # one more would have nothing to do
            STARVED._replace(teachers=0, windows=0),  # even the first is still to come
            CALM._replace(waiting=True),
            STARVED._replace(waiting=False),
        ],
    )
    def test_nothing_else_asks(self, view: FlowView) -> None:
        assert Flow().run(view, 60.0).want == 1

    def test_short_starving_adds_up(self) -> None:
        flow = Flow()
        for _ in range(8):  # 50 ms of each 500 ms
            flow.run(CALM, 0.45)
            flow.run(STARVED, 0.05)
        assert flow.see(CALM).want == 2

    def test_rare_starving_is_tolerated(self) -> None:
        flow = Flow(replace(CONFIG, surplus_window_s=1e9))
        for _ in range(50):  # 0.1 s of each 10 s
            flow.run(CALM, 9.9)
            flow.run(STARVED, 0.1)
        assert flow.see(CALM).want == 1

    def test_a_source_that_lags_clears_the_teachers(self) -> None:
        """A bursting source: the student starves through the burst, then waits for the next."""
        flow = Flow()
        for _ in range(20):
            flow.run(SOURCE_WAIT, 2.0)
            flow.run(STARVED, 0.8)
        assert flow.see(CALM).want == 1

    def test_that_credit_is_bounded(self) -> None:
        flow = Flow()
        flow.run(SOURCE_WAIT, 600.0)
        assert flow.run(STARVED, CONFIG.source_credit_s + CONFIG.starved_for_s + 0.1).want == 2

    def test_the_correction_stays_when_n_moves(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(t_t_s=0.02, t_s_s=0.01))
        starved = STARVED._replace(teachers=2, t_t_s=0.02, t_s_s=0.01)
        assert flow.run(starved, 2.5).want == 3
        assert flow.see(CALM._replace(teachers=3, t_t_s=0.06, t_s_s=0.01)).want == 7

    def test_what_stood_in_for_an_unknown_n_is_replaced_by_it(self) -> None:
        flow = Flow()
        assert flow.run_granted(STARVED, 5.0).want == 4
        assert flow.see(CALM._replace(teachers=4, t_t_s=0.02, t_s_s=0.01)).want == 2


class TestFollowingTheRatio:
    """n = ceil(t_t / t_s), though measurements scatter about a border."""

    def of(self, ratio: float) -> FlowView:
        return CALM._replace(teachers=5, t_t_s=ratio / 100, t_s_s=0.01)

    def test_it_rises_a_little_after_the_cool_down_as_far_as_all_measurements_say(self) -> None:
        flow = Flow()
        assert flow.see(self.of(4.9)).needed == 5
        assert flow.run(self.of(6.2), 1.0).needed == 5
        assert flow.run(self.of(5.9), 1.1).needed == 6

    def test_it_rises_at_once_where_that_is_no_noise(self) -> None:
        flow = Flow()
        flow.see(self.of(4.9))
        assert flow.see(self.of(6.3)).needed == 7

    def test_it_falls_after_a_whole_window_as_far_as_all_measurements_say(self) -> None:
        flow = Flow()
        flow.see(self.of(4.9))
        assert flow.run(self.of(2.1), 14.0).needed == 5
        assert flow.run(self.of(3.5), 1.1).needed == 4

    def test_one_measurement_on_the_other_side_begins_it_anew(self) -> None:
        flow = Flow()
        flow.see(self.of(4.9))
        for _ in range(20):
            flow.run(self.of(3.9), 14.0)
            assert flow.see(self.of(4.1)).needed == 5

    def test_what_the_correction_made_up_for_n_says_itself_when_it_moves_a_little(self) -> None:
        flow = Flow()
        flow.see(self.of(4.9))
        starved = STARVED._replace(teachers=5, t_t_s=0.049, t_s_s=0.01)
        assert flow.run(starved, 2.5).want == 6
        assert flow.run(self.of(5.1), 2.5).want == 6
        assert flow.memory.needed == 6


class TestSettling:
    """Where the want came back from it does not go again, while the rates are what they are."""

    def at_the_border(self) -> Flow:
        """Of five too many idle, and four are not enough."""
        flow = Flow()
        flow.see(CALM._replace(teachers=5, **FIVE_NEEDED))
        assert self.calm(flow, 16.0) == 4
        assert flow.run(STARVED._replace(teachers=4, **FIVE_NEEDED), 3.0).want == 5
        return flow

    def calm(self, flow: Flow, seconds: float, idle: float = 1.5, ratio: float = 5.0) -> int:
        """The want when so many idle of as many as are wanted."""
        times: dict[str, Any] = {"t_t_s": ratio / 100, "t_s_s": 0.01}
        want = flow.see(CALM._replace(teachers=5, **times)).want
        for _ in range(round(seconds)):
            have = want
            flow.run(PAUSED._replace(teachers=have, idle=have, **times), idle / have)
            want = flow.run(CALM._replace(teachers=have, **times), 1 - idle / have).want
        return want

    def test_it_is_not_given_back_twice(self) -> None:
        assert self.calm(self.at_the_border(), 600.0) == 5

    def test_it_is_where_so_many_idle_that_it_is_another_matter(self) -> None:
        assert self.calm(self.at_the_border(), 16.0, idle=2.5) == 4

    def test_it_is_where_the_student_needs_clearly_fewer(self) -> None:
        assert self.calm(self.at_the_border(), 33.0, ratio=3.9) < 5

    def test_it_is_not_for_a_moment_in_which_it_seems_so(self) -> None:
        flow = self.at_the_border()
        for _ in range(20):
            assert self.calm(flow, 10.0, ratio=3.9) == 5
            assert self.calm(flow, 5.0) == 5

    def test_what_had_another_reason_than_coming_back_holds_nothing(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(teachers=5, **FIVE_NEEDED))
        flow.run(STARVED._replace(teachers=5, **FIVE_NEEDED), 3.0)
        assert flow.memory.held == 0


class TestGivingBack:
    def idle_for(self, flow: Flow, share: float, seconds: int) -> FlowDecision:
        """All teachers idle for a share of each second, the coordinator giving what is wanted."""
        decision = flow.see(CALM._replace(**FIVE_NEEDED))
        for _ in range(seconds):
            have = decision.want
            flow.run(PAUSED._replace(teachers=have, idle=have, **FIVE_NEEDED), share)
            decision = flow.run(CALM._replace(teachers=have, **FIVE_NEEDED), 1 - share)
        return decision

    def test_a_teacher_that_idles_is_given_back(self) -> None:
        decision = self.idle_for(Flow(), 0.3, seconds=16)
        assert (decision.needed, decision.want) == (5, 4)
        assert "1.5 teachers of 5 idled for 15 s" in decision.reason

    def test_less_than_one_and_a_margin_is_kept(self) -> None:
        assert self.idle_for(Flow(), 0.2, seconds=120).want == 5

    def test_one_at_a_time(self) -> None:
        assert self.idle_for(Flow(), 0.9, seconds=29).want == 4
        assert self.idle_for(Flow(), 0.9, seconds=32).want == 3

    def test_the_least_is_kept(self) -> None:
        flow = Flow(replace(CONFIG, teachers_min=3))
        assert self.idle_for(flow, 1.0, seconds=300).want == 3
        assert flow.see(CALM._replace(teachers=3, t_t_s=0.1, t_s_s=0.01)).want == 10 - 2

    def test_less_than_there_are_is_wanted_if_more_were_wanted(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(**FIVE_NEEDED))
        assert flow.run(PAUSED._replace(teachers=3, idle=2, **FIVE_NEEDED), 16.0).want == 2

    def test_those_that_are_on_their_way_out_idle_for_no_others(self) -> None:
        """The coordinator takes its time to take two of three back that have become faster."""
        flow = Flow()
        flow.see(CALM._replace(**FIVE_NEEDED))
        fast: dict[str, Any] = {"t_t_s": 0.014, "t_s_s": 0.01}
        for _ in range(60):  # 1.4 of them would do
            flow.run(PAUSED._replace(teachers=5, idle=5, **fast), 0.72)
            decision = flow.run(CALM._replace(teachers=5, **fast), 0.28)
        assert decision.want == 2

    def test_a_slow_source_idles_teachers_too(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(**FIVE_NEEDED))
        waiting = SOURCE_WAIT._replace(windows=10, free_windows=9, idle=4, **FIVE_NEEDED)
        assert flow.run_granted(waiting, 16.0).want == 4

    def test_who_starved_in_between_keeps_all(self) -> None:
        flow = Flow()
        flow.see(CALM._replace(teachers=5, **FIVE_NEEDED))
        for _ in range(10):
            flow.run(PAUSED._replace(teachers=5, idle=5, **FIVE_NEEDED), 14.0)
            decision = flow.run(STARVED._replace(teachers=5, **FIVE_NEEDED), 0.1)
        assert decision.want == 5

    def test_starving_below_n_goes_back_to_n_at_once(self) -> None:
        flow = Flow()
        assert self.idle_for(flow, 1.0, seconds=50).want == 2
        starved = STARVED._replace(teachers=2, **FIVE_NEEDED)
        assert flow.run(starved, 2.0).want == 5
