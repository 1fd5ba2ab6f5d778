"""Admission of teachers, health checks of foreign servers, leadership."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler import leadership
from edl.scheduler.admission import (
    MAX_PROBES,
    MAX_REPEATED_PROBES,
    PROBE_TIMEOUT_S,
    RETRY_S,
    STRIKES,
    Admission,
    CheckMode,
    CheckResult,
    HealthCheckSettings,
    ProbeOutcome,
    RegistryAction,
    ServerHealth,
    TeacherIdentity,
    after_check,
    identity_address,
    next_check,
    registration_failed,
)

A = TeacherIdentity("a", 1, "h:1")


@pytest.fixture
def admission() -> Admission:
    return Admission(random.Random(7))


class TestAdmission:
    def test_who_proves_an_identity(self) -> None:
        assert identity_address("h:1", "", has_key=True) == "h:1", "it does so itself"
        assert identity_address("h:1", "h:2", has_key=True) == "h:2", "its sidecar does"
        for sidecar in ("", "h:2"):
            assert identity_address("h:1", sidecar, has_key=False) is None, "nobody can"

    @pytest.mark.parametrize(
        "other", [TeacherIdentity("a", 2, "h:1"), TeacherIdentity("a", 1, "h:2")]
    )
    def test_each_instance_and_address_is_probed_once(
        self, admission: Admission, other: TeacherIdentity
    ) -> None:
        assert not admission.appeared(A, 0.0)
        assert admission.due(0.0) == [A]
        assert admission.due(1.0) == []
        assert admission.answered(A, "ok", "", 1.0) == ProbeOutcome(A, True, "", True)
        assert admission.appeared(A, 2.0)
        assert admission.due(99.0) == []
        assert not admission.appeared(other, 99.0)
        assert admission.due(99.0) == [other]

    def test_admitted_by_another_leader(self) -> None:
        admission = Admission(random.Random(7), {"a": 1, "b": 1, "c": 0})
        assert admission.appeared(A, 0.0)
        assert not admission.appeared(TeacherIdentity("b", 2, "h:2"), 0.0)
        assert not admission.appeared(TeacherIdentity("c", 0, "h:3"), 0.0), "nobody has probed it"

    def test_refused_teacher_is_probed_less_often(self, admission: Admission) -> None:
        admission.appeared(A, 0.0)
        now, waits = 0.0, []
        for _ in range(12):
            began = now
            while not admission.due(now):
                now += 0.05
            waits.append(now - began)
            admission.answered(A, "retry", "no answer", now)
        assert all(wait <= 31.0 for wait in waits)
        assert sum(waits[-3:]) > sum(waits[1:4])

    def test_reason_is_reported_once(self, admission: Admission) -> None:
        admission.appeared(A, 0.0)
        for why, is_news in (
            ("silent", True),
            ("silent", False),
            ("wrong", True),
            ("silent", True),
        ):
            assert admission.answered(A, "retry", why, 0.0) == ProbeOutcome(A, False, why, is_news)
        assert admission.refused == {"a": "silent"}

    def test_final_refusal_ends_with_another_life(self, admission: Admission) -> None:
        admission.appeared(A, 0.0)
        admission.due(0.0)
        assert not admission.is_refused("a")
        admission.answered(A, "never", "no such protocol", 0.0)
        assert admission.is_refused("a")
        assert not admission.appeared(A, 1.0)
        assert admission.due(9999.0) == []
        assert not admission.appeared(TeacherIdentity("a", 2, "h:1"), 1.0)
        assert not admission.is_refused("a")
        assert not admission.is_refused("b")
        assert admission.due(1.0) == [TeacherIdentity("a", 2, "h:1")]

    def test_lost_and_late_answers(self, admission: Admission) -> None:
        admission.appeared(A, 0.0)
        assert admission.due(0.0) == [A]
        assert admission.due(PROBE_TIMEOUT_S) == [A]
        admission.appeared(A, 0.0)
        admission.due(0.0)
        admission.gone("a")
        assert admission.answered(A, "ok", "", 1.0) is None
        assert not admission.appeared(A, 2.0)

    def test_unreachable_teachers_keep_no_new_one_out(self, admission: Admission) -> None:
        seconds = 60
        crowd = [TeacherIdentity(f"t{i}", 1, f"h:{i}") for i in range(1000)]
        for one in crowd:
            admission.appeared(one, 0.0)
        asked: Counter[str] = Counter()
        ends: list[tuple[float, TeacherIdentity]] = []

        def pass_by(now: float) -> list[TeacherIdentity]:
            while ends and ends[0][0] <= now:
                admission.answered(ends.pop(0)[1], "retry", "no answer", now)
            due = admission.due(now)
            ends.extend((now + 2.0, one) for one in due)  # each holds its place for so long
            asked.update(one.teacher_id for one in due)
            assert len(ends) <= MAX_PROBES
            return due

        for tick in range(10 * seconds):
            pass_by(tick / 10)
        assert min(asked[one.teacher_id] for one in crowd) >= 1
        assert max(asked.values()) - min(asked.values()) <= 2, "they take turns"
        assert len(ends) == MAX_REPEATED_PROBES
        assert admission.waiting == 0
        admission.appeared(A, seconds)
        assert admission.waiting == 1
        assert pass_by(seconds)[0] == A
        assert admission.answered(A, "ok", "", seconds + 0.1) == ProbeOutcome(A, True, "", True)

    def test_new_teacher_goes_before_lost_probes(self, admission: Admission) -> None:
        for i in range(MAX_PROBES + 1):
            admission.appeared(TeacherIdentity(f"t{i}", 1, f"h:{i}"), 0.0)
        assert len(admission.due(0.0)) == MAX_PROBES
        admission.appeared(A, 1.0)
        due = admission.due(PROBE_TIMEOUT_S)
        assert [identity.teacher_id for identity in due][:2] == [f"t{MAX_PROBES}", "a"]


PATIENCE = HealthCheckSettings(every_s=1.0, test_every_s=15.0)
FOUND: st.SearchStrategy[CheckResult] = st.sampled_from(["well", "silent", "wrong"])


@dataclass
class Case:
    """One server, and a clock."""

    patience: HealthCheckSettings = PATIENCE
    now: float = 100.0
    health: ServerHealth = field(default_factory=ServerHealth)
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def look(self, found: CheckResult, took_s: float = 0.0) -> tuple[CheckMode, RegistryAction]:
        look, wait_s = next_check(self.health, self.now, self.patience)
        assert wait_s >= 0
        self.now += wait_s + took_s
        self.health, step = after_check(self.health, look, found, self.now, self.patience, self.rng)
        return look, step


class TestHealthChecks:
    def test_server_that_nobody_took_is_tested_again(self) -> None:
        case = Case()
        case.look("well")
        case.health = registration_failed(case.now, PATIENCE)
        before = case.now
        assert case.look("well") == ("test", "register")
        assert case.now == before + PATIENCE.every_s

    def test_times_of_health_checks(self) -> None:
        case = Case()
        assert next_check(case.health, case.now, PATIENCE) == ("test", 0.0)
        case.look("well")
        looks = [case.look("well") for _ in range(40)]
        assert case.now == 140.0
        assert [number for number, (look, _) in enumerate(looks) if look == "test"] == [14, 29]

    @pytest.mark.parametrize("found", ["silent", "wrong"])
    def test_failing_server_is_tested_less_often(self, found: CheckResult) -> None:
        case = Case()
        times = []
        for _ in range(30):
            assert case.look(found) == ("test", "stay")
            times.append(case.now)
        assert times[-1] - times[-6] > times[5] - times[0]

    @given(st.lists(st.tuples(FOUND, st.floats(0, 60)), min_size=5, max_size=60))
    def test_laws(self, script: list[tuple[CheckResult, float]]) -> None:
        """Only a test registers a server; only lasting silence or a wrong answer withdraws it."""
        case = Case()
        registered, silent = False, 0
        for found, took_s in script:
            began = case.now
            look, step = case.look(found, took_s)
            assert case.now - began - took_s <= max(RETRY_S, PATIENCE.every_s)
            silent = silent + 1 if found == "silent" and registered else 0
            if step == "register":
                assert (registered, look, found) == (False, "test", "well")
            if step == "withdraw":
                assert registered
                assert found == "wrong" or silent == STRIKES
            assert not (registered and found == "wrong" and step == "stay")
            assert silent < STRIKES or step == "withdraw"
            registered = {"register": True, "withdraw": False, "stay": registered}[step]
            assert case.health.registered is registered


NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
times = st.integers(0, NOW_MS)


class TestLeadership:
    @given(times, times, times)
    def test_term_is_above_all_others(self, time_ms: int, stored: int, reported: int) -> None:
        term = leadership.next_term(time_ms, stored, reported)
        assert term >= time_ms
        assert term > stored
        assert term > reported or reported > time_ms + DAY_MS

    def test_term_of_a_member_that_is_far_ahead_does_not_count(self) -> None:
        far = 1 << 62
        assert leadership.next_term(NOW_MS, 0, far) == NOW_MS
        assert leadership.next_term(NOW_MS, 0, far, NOW_MS + 5) == NOW_MS + 6, "it hides no other"
        for reported in ((far, 0), (NOW_MS, 3), (NOW_MS - 1, 9)):
            assert not leadership.is_ahead(reported, (NOW_MS, 3), NOW_MS)
        for reported in ((NOW_MS, 4), (NOW_MS + 1, 0)):
            assert leadership.is_ahead(reported, (NOW_MS, 3), NOW_MS)

    def test_leases_count_after_the_grace_time(self) -> None:
        grace = leadership.grace_s(5.0)
        assert grace == pytest.approx(7.0)
        assert leadership.sweep_until_ms(leadership.RegistryWatch(), 1000.0, grace, 4.0) is None
        watch = leadership.registry_answered(
            leadership.RegistryWatch(), "a", NOW_MS, 0.0, 0.0, gap_s=4.0
        )
        for now in range(1, 9):
            time_ms = NOW_MS + 1000 * now
            watch = leadership.registry_answered(watch, "a", time_ms, now, now, gap_s=4.0)
            until_ms = leadership.sweep_until_ms(watch, now, grace, 4.0)
            assert until_ms == (time_ms + 4000 if now >= 7 else None), "no later: it may hang"
        assert leadership.sweep_until_ms(watch, 12.5, grace, 4.0) is None, (
            "it may have been away since"
        )

    def test_gap_or_another_server_restarts_the_grace_time(self) -> None:
        watch = leadership.registry_answered(
            leadership.registry_answered(leadership.RegistryWatch(), "a", NOW_MS, 0.0, 0.0, 4.0),
            "a",
            NOW_MS,
            3.0,
            3.0,
            4.0,
        )
        assert watch.since_s == 0.0
        assert leadership.registry_answered(watch, "a", NOW_MS, 7.5, 7.5, 4.0).since_s == 7.5
        assert leadership.registry_answered(watch, "b", NOW_MS, 3.5, 3.5, 4.0).since_s == 3.5

    def test_a_clock_that_is_set_forward_restarts_the_grace_time_later(self) -> None:
        watch = leadership.registry_answered(leadership.RegistryWatch(), "a", NOW_MS, 0.0, 2.0, 4.0)
        late = leadership.registry_answered(watch, "a", NOW_MS + 7000, 2.5, 5.0, 4.0)
        assert late.since_s == 2.0, "it may have answered at once, and be read late"
        forward = leadership.registry_answered(watch, "a", NOW_MS + 9001, 2.5, 5.0, 4.0)
        assert forward.since_s == 13.0
        assert leadership.registry_answered(watch, "a", NOW_MS - 9001, 2.5, 5.0, 4.0).since_s == 2.0
