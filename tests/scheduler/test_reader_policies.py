"""What a reader decides without teachers, and what it remembers, reports and mixes."""

from __future__ import annotations

from dataclasses import replace
from math import fsum, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler import flow
from edl.scheduler.ensemble import Ensemble, Mixture, mixture
from edl.scheduler.flow import FlowConfig, FlowMemory, FlowView
from edl.scheduler.hunger import STARVING_S, WINDOW_S, Hunger, follow
from edl.scheduler.moods import LASTING_S, Moods
from edl.scheduler.no_teacher import Action, Need, Patience, Policy, decide
from edl.scheduler.pinning import admits, pinned, promises
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

HARD_ONLY = Policy("hard_only", 5.0)


FAIL = Policy("fail", 5.0)


eighths = st.integers(0, 24).map(lambda count: count / 8)  # seconds that add up exactly


class Student:
    """One that looks at its teachers as time goes by."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.patience = policy, Patience()
        self.now, self.answers = 1000.0, 7

    def look(self, usable: int = 0, waits: bool = True, after_s: float = 0.0) -> Action:
        self.now += after_s
        need = Need(usable, waits, self.answers)
        action, self.patience = decide(need, self.patience, self.now, self.policy)
        return action


class TestNoTeacher:
    @pytest.mark.parametrize("policy", [Policy("wait", 5.0), FAIL])
    def test_it_is_told_after_the_time(self, policy: Policy) -> None:
        student = Student(policy)
        assert student.look() == "wait"
        assert student.look(after_s=4.9) == "wait"
        assert student.look(after_s=0.2) == "give_up"

    def test_it_may_wait_for_ever(self) -> None:
        student = Student(Policy())
        assert student.look() == "wait"
        assert student.look(after_s=1e9) == "wait"

    @pytest.mark.parametrize("policy", [Policy("wait", 5.0), FAIL, HARD_ONLY])
    def test_only_waiting_without_any_teacher_counts(self, policy: Policy) -> None:
        student = Student(policy)
        student.look()
        assert student.look(usable=1, after_s=4.0) == "wait"
        assert student.look(after_s=4.0) == "wait"
        assert student.look(waits=False, after_s=100.0) == "wait"
        assert student.look(after_s=0.1) == "wait"
        assert student.look(after_s=5.0) != "wait"

    @pytest.mark.parametrize("policy", [Policy("wait", 5.0), FAIL, HARD_ONLY])
    def test_one_that_comes_back_only_to_fail_is_not_waited_for_longer(
        self, policy: Policy
    ) -> None:
        student = Student(policy)
        waited_s = 0.0
        while student.look() == "wait":
            assert student.look(usable=1, after_s=1.0) == "wait"
            assert student.look(usable=1, after_s=10.0) == "wait", (
                "it works on it, it may take long"
            )
            waited_s += 1.0
            assert waited_s <= 5.0
        assert waited_s == 5.0

    @pytest.mark.parametrize("policy", [Policy("wait", 5.0), FAIL])
    def test_a_label_sets_the_clock_back(self, policy: Policy) -> None:
        student = Student(policy)
        for _ in range(20):
            assert student.look() == "wait"
            assert student.look(after_s=4.0) == "wait"
            assert student.look(usable=1, after_s=0.1) == "wait"
            student.answers += 1
            assert student.look(usable=1, after_s=0.1) == "wait"

    def test_with_hard_labels_it_goes_on_and_the_wait_is_paid_once(self) -> None:
        student = Student(HARD_ONLY)
        student.look()
        assert student.look(after_s=5.0) == "go_unlabelled"
        assert student.look(waits=False, after_s=0.1) == "wait"
        assert [student.look(after_s=0.1) for _ in range(10)] == ["go_unlabelled"] * 10

    def test_labels_are_waited_for_again_when_a_teacher_is_back(self) -> None:
        student = Student(HARD_ONLY)
        student.look()
        student.look(after_s=5.0)
        assert student.look(usable=1, after_s=0.1) == "wait"
        assert student.look(usable=1, after_s=3.0) == "wait"
        student.answers += 1
        assert student.look(usable=1, after_s=0.1) == "wait"
        assert student.look(after_s=0.1) == "wait", "and then it has its whole patience again"
        assert student.look(after_s=5.0) == "go_unlabelled"

    def test_a_teacher_that_comes_and_goes_without_a_label_is_not_waited_for_twice(self) -> None:
        student = Student(HARD_ONLY)
        student.look()
        student.look(after_s=5.0)
        student.look(usable=1, after_s=0.1)
        assert student.look(after_s=0.1) == "go_unlabelled"

    @pytest.mark.parametrize(
        ("name", "after_s"), [("panic", 1.0), ("fail", None), ("hard_only", None), ("wait", -1.0)]
    )
    def test_settings_are_checked(self, name: str, after_s: float | None) -> None:
        with pytest.raises(ValueError, match=r"policy|wait|needs"):
            Policy(name, after_s)  # type: ignore[arg-type]

    @given(
        policy=st.sampled_from([Policy(), Policy("wait", 2.0), FAIL, HARD_ONLY]),
        looks=st.lists(st.tuples(st.integers(0, 2), st.booleans(), eighths, st.booleans())),
    )
    def test_nothing_is_done_while_there_is_a_teacher_or_nobody_waits(
        self, policy: Policy, looks: list[tuple[int, bool, float, bool]]
    ) -> None:
        student = Student(policy)
        waited_s, unbroken, given = 0.0, False, False
        for usable, waits, after_s, label in looks:
            student.answers += label and usable > 0
            given = given and not (label and usable > 0)
            action = student.look(usable, waits, after_s)
            unbroken_before, unbroken = unbroken, waits and not usable
            waited_s = waited_s + after_s if unbroken and unbroken_before else 0.0
            due = policy.after_s is not None and waited_s >= policy.after_s
            if not unbroken:
                assert action == "wait"
            elif policy.name == "hard_only":
                assert (action == "go_unlabelled") == (due or given)
                given = given or due
            else:
                assert (action == "give_up") == due


STEP_S = 0.05


def followed(waits_s: list[float]) -> list[bool]:
    """What is said after each step, in which the student waits for so long."""
    hunger, starved_s, said = Hunger(), 0.0, []
    for number, waits in enumerate(waits_s, 1):
        starved_s += waits
        hunger = follow(hunger, starved_s, number * STEP_S)
        said.append(hunger.starves)
    return said


class TestStarvation:
    def test_a_moment_without_labels_at_each_epoch_is_no_starving(self) -> None:
        epoch = [0.03, 0.0] + [0.0] * 24  # 1.3 s
        assert not any(followed(epoch * 20))

    def test_lasting_hunger_is_told_at_once_and_its_end_after_a_quiet_window(self) -> None:
        hungry = round(2 / STEP_S)
        said = followed([STEP_S] * hungry + [0.0] * 60)
        assert said.index(True) * STEP_S <= STARVING_S
        assert all(said[said.index(True) : hungry])
        ends = hungry + said[hungry:].index(False)
        assert (ends - hungry) * STEP_S <= 2 * WINDOW_S
        assert not any(said[ends:])

    def test_who_waits_a_third_of_its_time_starves(self) -> None:
        said = followed([STEP_S, 0.0, 0.0] * 40)
        assert all(said[round(2 * WINDOW_S / STEP_S) :])

    @given(st.lists(st.floats(0.0, STEP_S), max_size=100))
    def test_nothing_is_said_of_less_than_the_least(self, waits_s: list[float]) -> None:
        if sum(waits_s) < STARVING_S:
            assert not any(followed(waits_s))


def told(moods: Moods, now: float) -> list[tuple[str, bool]]:
    return [(mood.student_id, mood.starved) for mood in moods.lasting(now)]


class TestStarvationReports:
    def test_what_lasts_is_told_once(self) -> None:
        moods = Moods()
        moods.hear("a", True, 0.0)
        assert told(moods, LASTING_S - 0.01) == []
        assert told(moods, LASTING_S) == [("a", True)]
        moods.hear("a", True, 2.0)
        assert told(moods, 9.0) == []
        moods.hear("a", False, 10.0)
        assert told(moods, 10.0 + LASTING_S) == [("a", False)]

    def test_a_flicker_is_not_told(self) -> None:
        moods = Moods()
        for tick in range(100):
            moods.hear("a", tick % 2 == 0, tick * 0.5)
            assert told(moods, tick * 0.5) == []

    def test_who_is_steady_from_the_start_is_no_news(self) -> None:
        moods = Moods()
        moods.hear("a", False, 0.0)
        assert told(moods, 99.0) == []

    def test_who_is_gone_is_forgotten(self) -> None:
        moods = Moods()
        moods.hear("a", True, 0.0)
        moods.forget("a")
        assert told(moods, 99.0) == []
        moods.hear("a", False, 100.0)
        assert told(moods, 199.0) == []


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


WALL = 1.7e9


LAST_RUN = Profile(0.05, 0.01, "m1", WALL - 3600)


NOTHING_YET = Measured(content_id="m1")


SETTLED = Measured(0.05, SETTLED_STEPS, 0.01, SETTLED_STEPS, "m1")


class TestProfiles:
    def test_a_remembered_profile_gives_n_before_the_first_batch(self) -> None:
        known = times(LAST_RUN, NOTHING_YET, WALL)
        assert known.presumed
        view = FlowView(0, 0, 0, 0, 0, 0, 0, 0, False, False, known.t_t_s, known.t_s_s)
        decision, _ = flow.decide(view, FlowMemory.start(), 0.0, FlowConfig(2, 1))
        assert decision.needed == decision.want == LAST_RUN.needed == 5

    def test_without_one_it_is_learned_from_enough(self) -> None:
        assert times(None, NOTHING_YET, WALL) == (None, None, False)
        few = Measured(0.2, ANSWERS - 1, 0.1, STEPS - 1)
        assert times(None, few, WALL) == (None, None, False)
        assert times(None, few._replace(answers=ANSWERS), WALL) == (0.2, None, False)
        assert times(None, few._replace(steps=STEPS), WALL) == (None, 0.1, False)

    def test_each_time_is_replaced_when_enough_was_measured(self) -> None:
        cold = Measured(0.9, ANSWERS - 1, 0.7, STEPS - 1, "m1")
        assert times(LAST_RUN, cold, WALL) == (0.05, 0.01, True)
        assert times(LAST_RUN, cold._replace(answers=ANSWERS), WALL) == (0.9, 0.01, True)
        assert times(LAST_RUN, cold._replace(steps=STEPS), WALL) == (0.05, 0.7, True)
        warm = cold._replace(answers=ANSWERS, steps=STEPS)
        assert times(LAST_RUN, warm, WALL) == (0.9, 0.7, False)

    def test_another_content_has_another_t_t(self) -> None:
        assert times(LAST_RUN, Measured(content_id="m2"), WALL) == (None, 0.01, True)
        assert times(LAST_RUN, Measured(content_id=""), WALL) == (0.05, 0.01, True), "not known yet"

    @pytest.mark.parametrize("age_s", [BELIEVED_S + 1, -1.0])
    def test_what_is_too_old_or_of_the_future_is_not_believed(self, age_s: float) -> None:
        old = replace(LAST_RUN, saved_at=WALL - age_s)
        assert times(old, NOTHING_YET, WALL) == (None, None, False)

    @given(
        st.builds(
            Profile,
            st.floats(1e-9, 1e6),
            st.floats(1e-9, 1e6),
            st.text(max_size=8),
            st.floats(0, 1e10),
        )
    )
    def test_what_was_written_is_read_again_exactly(self, profile: Profile) -> None:
        assert profile_of(facts_of(profile)) == profile

    @given(st.dictionaries(st.sampled_from([*facts_of(LAST_RUN), "other"]), st.text(max_size=6)))
    def test_anything_else_is_no_profile_and_no_error(self, facts: dict[str, str]) -> None:
        found = profile_of(facts)
        if found is not None:
            assert found.needed >= 1

    @pytest.mark.parametrize(
        ("key", "text"), [("t_t_seconds", "0"), ("t_s_seconds", "nan"), ("saved_at", "inf")]
    )
    def test_times_that_cannot_be_are_no_profile(self, key: str, text: str) -> None:
        assert profile_of({**facts_of(LAST_RUN), key: text}) is None


WAITS = Ensemble({"a": 0.7, "b": 0.3})


TOLERATES = Ensemble({"a": 0.7, "b": 0.3}, "tolerate", after_s=5.0)


class TestEnsemble:
    def test_weights_are_normalised(self) -> None:
        assert Ensemble({"a": 7, "b": 3}).shares == pytest.approx({"a": 0.7, "b": 0.3})
        assert Ensemble({"a": 1e308, "b": 1e308}).shares == {"a": 0.5, "b": 0.5}

    def test_a_batch_that_all_have_labelled_is_mixed_of_all(self) -> None:
        for ensemble in (WAITS, TOLERATES):
            assert mixture(ensemble, {"a", "b"}, {"b": 0.0}, 99.0) == Mixture(ensemble.shares, 1.0)

    def test_one_that_is_missing_is_waited_for(self) -> None:
        assert mixture(WAITS, {"a"}, {"b": 0.0}, 1e9) is None

    def test_or_tolerated_after_a_while_and_the_weight_is_told(self) -> None:
        assert mixture(TOLERATES, {"a"}, {"b": 100.0}, 104.9) is None
        assert mixture(TOLERATES, {"a"}, {"b": 100.0}, 105.0) == Mixture({"a": 1.0}, 0.7)

    def test_one_that_is_slow_is_not_missing(self) -> None:
        assert mixture(TOLERATES, {"a"}, {}, 1e9) is None

    def test_without_any_label_there_is_nothing_to_mix(self) -> None:
        assert mixture(TOLERATES, set(), {"a": 0.0, "b": 0.0}, 1e9) is None

    @pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": -1.0}, {"a": nan}, {"a": inf}])
    def test_weights_are_checked(self, weights: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="weights"):
            Ensemble(weights)

    def test_the_policy_is_checked(self) -> None:
        with pytest.raises(ValueError, match="missing"):
            Ensemble({"a": 1.0}, "ignore")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="after 0 s or more"):
            Ensemble({"a": 1.0}, after_s=-1.0)

    @given(
        weights=st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-6, 1e6), min_size=1),
        labelled=st.sets(st.sampled_from("abcdef")),
        alone=st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 10)),
    )
    def test_shares_add_up_to_one_in_proportion(
        self, weights: dict[str, float], labelled: set[str], alone: dict[str, float]
    ) -> None:
        found = mixture(Ensemble(weights, "tolerate"), labelled, alone, 10.0)
        if found is None:
            slow = {name for name in weights if 10.0 - alone.get(name, 10.0) < 5.0}
            assert not labelled & weights.keys() or slow - labelled
            return
        assert set(found.shares) == labelled & weights.keys()
        assert fsum(found.shares.values()) == pytest.approx(1.0, abs=1e-12)
        assert 0 < found.weight <= 1 + 1e-12
        for name, share in found.shares.items():
            assert share * found.weight * fsum(weights.values()) == pytest.approx(weights[name])


ids = st.sampled_from(["", "paddle-fp32-1", "paddle-fp32-2", "merged-fp32-1", "mixed-fp32-1"])


class TestPinning:
    @given(st.lists(ids), ids)
    def test_what_is_pinned_admits_itself_alone(self, offered: list[str], other: str) -> None:
        one = pinned("", offered)
        assert bool(one) == any(map(promises, offered))
        if one:
            assert one in offered
            assert admits(one, one)
            assert admits(one, other) == (other == one)

    @given(st.lists(ids), st.lists(ids))
    def test_it_stays_and_does_not_depend_on_an_order(
        self, offered: list[str], later: list[str]
    ) -> None:
        one = pinned("", offered)
        assert pinned("", sorted(offered)) == one == pinned("", offered[::-1])
        if one:
            assert pinned(one, later) == one

    def test_it_is_what_most_have(self) -> None:
        assert pinned("", ["b", "a", "b"]) == "b"
        assert pinned("", ["b", "a"]) == "a"

    def test_those_that_promise_nothing_are_never_admitted(self) -> None:
        for numerics_id in ("", "merged-paddle-3", "mixed-fp32-4"):
            assert not promises(numerics_id)
            assert not admits("", numerics_id)
            assert not admits(numerics_id, numerics_id)
