"""What a reader decides without teachers, and what it remembers, reports and mixes."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.scheduler import flow
from edl.scheduler.debounce import LASTING_S, STARVING_S, WINDOW_S, Starvation, StarvationLog
from edl.scheduler.flow import FlowConfig, FlowMemory, FlowView
from edl.scheduler.no_teacher import Action, Ensemble, NoTeacherWait, Policy, decide, mixture
from edl.scheduler.reader_core.model_switch import admits, pinned, promises_equal_bits
from edl.scheduler.stream_stats import (
    ANSWERS,
    BELIEVED_S,
    SETTLED_STEPS,
    SPACING_S,
    STALE_S,
    STEPS,
    Measured,
    StreamProfile,
    facts_of,
    profile_of,
    times,
    to_save,
)

Looks = list[tuple[int, bool, float, bool]]  # usable teachers, waits, after so long, a label
FAIL, HARD_ONLY = Policy("fail", 5.0), Policy("hard_only", 5.0)
EIGHTHS = st.integers(0, 24).map(lambda count: count / 8)  # seconds that add up exactly


class Student:
    """A student that looks at its teachers as time goes by."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.patience = policy, NoTeacherWait()
        self.now, self.answers = 1000.0, 7

    def look(self, usable: int = 0, waits: bool = True, after_s: float = 0.0) -> Action:
        self.now += after_s
        action, self.patience = decide(
            usable, waits, self.answers, self.patience, self.now, self.policy
        )
        return action


class TestNoTeacher:
    @given(
        st.sampled_from([Policy(), Policy("wait", 2.0), FAIL, HARD_ONLY]),
        st.lists(st.tuples(st.integers(0, 2), st.booleans(), EIGHTHS, st.booleans()), min_size=1),
    )
    @example(HARD_ONLY, [(0, True, 0.0, False), (0, True, 3.0, False), (2, True, 0.0, False),
                         (0, True, 1.0, False), (0, True, 2.0, False)])  # fmt: skip
    @example(FAIL, [(0, True, 0.0, False), (0, True, 4.875, False), (0, True, 0.125, False)])
    @example(HARD_ONLY, [(0, True, 0.0, False), (0, True, 5.0, False), (0, False, 0.5, False),
                         (0, True, 0.5, False), (1, True, 3.0, True), (0, True, 0.5, False),
                         (0, True, 2.0, False), (0, True, 3.0, False)])  # fmt: skip
    def test_policies_act_without_a_teacher(self, policy: Policy, looks: Looks) -> None:
        """A teacher that comes stops the clock; labels, or a student that has some, reset it."""
        student = Student(policy)
        waited_s, alone, given = 0.0, False, False
        for usable, waits, after_s, label in looks:
            labelled = label and usable > 0
            student.answers += labelled
            given = given and not labelled
            action = student.look(usable, waits, after_s)
            waited_s = 0.0 if labelled or not waits else waited_s + after_s * alone
            alone = waits and not usable
            due = policy.after_s is not None and waited_s >= policy.after_s
            if not alone:
                assert action == "wait"
            elif policy.name == "hard_only":
                assert (action == "go_unlabelled") == (due or given)
                given = given or due
            else:
                assert (action == "give_up") == due


STEP_S = 0.05


def starves(waits_s: list[float]) -> list[bool]:
    """Whether the student starves after each step, in which it waits for so long."""
    starvation, starved_s, found = Starvation(), 0.0, []
    for number, waits in enumerate(waits_s, 1):
        starved_s += waits
        starvation = starvation.after(starved_s, number * STEP_S)
        found.append(starvation.starves)
    return found


class TestStarvation:
    def test_lasting_waits_count_at_once_and_end_after_a_quiet_window(self) -> None:
        hungry = round(2 / STEP_S)
        found = starves([STEP_S] * hungry + [0.0] * 60)
        assert found.index(True) * STEP_S <= STARVING_S
        assert all(found[found.index(True) : hungry])
        ends = hungry + found[hungry:].index(False)
        assert (ends - hungry) * STEP_S <= 2 * WINDOW_S
        assert not any(found[ends:])

    def test_short_waits_count_when_they_are_a_third_of_the_time(self) -> None:
        assert not any(starves(([0.03] + [0.0] * 25) * 20))
        assert all(starves([STEP_S, 0.0, 0.0] * 40)[round(2 * WINDOW_S / STEP_S) :])

    @given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=100), st.floats(0, 0.99))
    def test_less_than_the_least_never_counts(self, parts: list[float], share: float) -> None:
        total = max(sum(parts), 1.0)
        waits_s = [share * STARVING_S * part / total for part in parts]
        assert not any(starves(waits_s))

    def test_lasting_states_are_reported_once(self) -> None:
        log = StarvationLog()

        def reported(now: float) -> list[tuple[str, bool]]:
            return list(log.lasting(now))

        log.record("b", False, 0.0)  # nothing new
        log.record("a", True, 0.0)
        assert reported(LASTING_S - 0.01) == []
        assert reported(LASTING_S) == [("a", True)]
        log.record("a", True, 2.0)
        assert reported(9.0) == []
        log.record("a", False, 10.0)
        assert reported(10.0 + LASTING_S) == [("a", False)]
        for tick in range(100):  # no state lasts
            log.record("a", tick % 2 == 0, 20 + tick * 0.5)
            assert reported(20 + tick * 0.5) == []
        log.record("a", True, 100.0)
        log.forget("a")
        log.record("a", False, 101.0)
        assert reported(199.0) == []


SECONDS = st.floats(1e-9, 1e6)
WALL = 1.7e9
LAST_RUN = StreamProfile(0.05, 0.01, "m1", WALL - 3600)
NOTHING_YET = Measured(content_id="m1")
SETTLED = Measured(0.05, SETTLED_STEPS, 0.01, SETTLED_STEPS, "m1")
COLD = Measured(0.9, ANSWERS - 1, 0.7, STEPS - 1, "m1")


class TestProfiles:
    def test_profile_gives_n_before_the_first_batch(self) -> None:
        known = times(LAST_RUN, NOTHING_YET, WALL)
        assert known.presumed
        view = FlowView(0, 0, 0, 0, 0, 0, 0, False, False, known.t_t_s, known.t_s_s)
        decision, _ = flow.decide(view, FlowMemory(), 0.0, FlowConfig(2, 1))
        assert decision.needed == decision.want == LAST_RUN.needed == 5

    @pytest.mark.parametrize(
        ("profile", "measured", "expected"),
        [
            (None, NOTHING_YET, (None, None, False)),
            (None, COLD, (None, None, False)),
            (None, COLD._replace(answers=ANSWERS), (0.9, None, False)),
            (None, COLD._replace(steps=STEPS), (None, 0.7, False)),
            (LAST_RUN, COLD, (0.05, 0.01, True)),
            (LAST_RUN, COLD._replace(answers=ANSWERS), (0.9, 0.01, True)),
            (LAST_RUN, COLD._replace(steps=STEPS), (0.05, 0.7, True)),
            (LAST_RUN, COLD._replace(answers=ANSWERS, steps=STEPS), (0.9, 0.7, False)),
            # Another content has another t_t.
            (LAST_RUN, Measured(content_id="m2"), (None, 0.01, True)),
            (LAST_RUN, Measured(None, 0, 0.7, STEPS, "m2"), (None, 0.7, False)),
            (LAST_RUN, Measured(content_id=""), (0.05, 0.01, True)),  # not known yet
            # Profiles that are too old or from the future do not count.
            (replace(LAST_RUN, saved_at=WALL - BELIEVED_S - 1), NOTHING_YET, (None, None, False)),
            (replace(LAST_RUN, saved_at=WALL + 1), NOTHING_YET, (None, None, False)),
        ],
    )
    def test_times(
        self, profile: StreamProfile | None, measured: Measured, expected: object
    ) -> None:
        assert times(profile, measured, WALL) == expected

    def test_profile_is_saved_when_settled_moved_or_stale(self) -> None:
        saved = to_save(None, SETTLED, WALL)
        assert saved == StreamProfile(0.05, 0.01, "m1", WALL)
        assert to_save(None, SETTLED._replace(steps=SETTLED_STEPS - 1), WALL) is None
        assert to_save(None, SETTLED._replace(answers=SETTLED_STEPS - 1), WALL) is None
        assert to_save(None, NOTHING_YET, WALL) is None
        later = WALL + SPACING_S
        assert to_save(saved, SETTLED, later) is None
        assert to_save(saved, SETTLED._replace(t_t_s=0.052), later) is None
        assert to_save(saved, SETTLED._replace(t_t_s=0.1), later - 1) is None
        assert to_save(saved, SETTLED._replace(t_t_s=0.1), later) is not None
        assert to_save(saved, SETTLED._replace(content_id="m2"), later) is not None
        assert to_save(saved, SETTLED, WALL + STALE_S) is not None

    @given(st.builds(StreamProfile, SECONDS, SECONDS, st.text(max_size=8), st.floats(0, 1e10)))
    def test_round_trip(self, profile: StreamProfile) -> None:
        assert profile_of(facts_of(profile)) == profile

    @given(
        st.dictionaries(st.sampled_from([*facts_of(LAST_RUN), "other"]), st.text(max_size=6)),
        st.sampled_from(sorted(facts_of(LAST_RUN))),
    )
    def test_invalid_facts_are_no_profile(self, changed: dict[str, str], lost: str) -> None:
        found = profile_of({**facts_of(LAST_RUN), **changed})
        assert found is None or found.needed >= 1
        assert profile_of({k: v for k, v in facts_of(LAST_RUN).items() if k != lost}) is None
        for key, text in (("t_t_seconds", "0"), ("t_s_seconds", "nan"), ("saved_at", "inf")):
            assert profile_of({**facts_of(LAST_RUN), key: text}) is None


class TestEnsemble:
    def test_large_weights_do_not_overflow(self) -> None:
        assert Ensemble({"a": 1e308, "b": 1e308}).shares == {"a": 0.5, "b": 0.5}

    @given(
        st.dictionaries(st.sampled_from("abc"), st.floats(1e-6, 1e6), min_size=1),
        st.sets(st.sampled_from("abc")),
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 10)),
        st.sampled_from(["wait", "tolerate"]),
    )
    @example({"a": 0.7, "b": 0.3}, {"a"}, {"b": 5}, "tolerate")
    @example({"a": 0.7, "b": 0.3}, {"a"}, {"b": 6}, "tolerate")
    @example({"a": 0.7, "b": 0.3}, {"a"}, {}, "tolerate")
    @example({"a": 0.7, "b": 0.3}, {"a"}, {"b": 0}, "wait")
    def test_mixtures(
        self, weights: dict[str, float], labelled: set[str], alone: dict[str, float], missing: Any
    ) -> None:
        """`alone`: since when services have no teacher; one that has some is slow, not missing."""
        found = mixture(Ensemble(weights, missing, after_s=5.0), labelled, alone, 10.0)
        there, lacking = weights.keys() & labelled, weights.keys() - labelled
        gone = there and all(name in alone and alone[name] <= 5 for name in lacking)
        if lacking and not (missing == "tolerate" and gone):
            assert found is None
            return
        assert found is not None
        assert set(found.shares) == labelled & weights.keys()
        assert fsum(found.shares.values()) == pytest.approx(1.0, abs=1e-12)
        assert 0 < found.weight <= 1 + 1e-12
        for name, share in found.shares.items():
            assert share * found.weight * fsum(weights.values()) == pytest.approx(weights[name])


IDS = st.sampled_from(["", "paddle-fp32-1", "paddle-fp32-2", "merged-fp32-1", "mixed-fp32-1"])


class TestPinning:
    @given(st.lists(IDS), st.lists(IDS), IDS)
    def test_one_offered_id_is_kept(self, offered: list[str], later: list[str], other: str) -> None:
        one = pinned("", offered)
        assert pinned("", sorted(offered)) == one == pinned("", offered[::-1])
        assert bool(one) == any(map(promises_equal_bits, offered))
        if one:
            assert one in offered
            assert pinned(one, later) == one
            assert admits(one, other) == (other == one)

    def test_most_frequent_id_is_pinned(self) -> None:
        assert pinned("", ["b", "a", "b"]) == "b"
        assert pinned("", ["b", "a"]) == "a"
        for numerics_id in ("", "merged-paddle-3", "mixed-fp32-4"):
            assert not promises_equal_bits(numerics_id)
            assert not admits("", numerics_id)
            assert not admits(numerics_id, numerics_id)
