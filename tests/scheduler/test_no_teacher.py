"""What a student without any teacher is told, by each of the three policies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.no_teacher import Action, Need, Patience, Policy, decide

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


@pytest.mark.parametrize("policy", [Policy("wait", 5.0), FAIL])
def test_it_is_told_after_the_time(policy: Policy) -> None:
    student = Student(policy)
    assert student.look() == "wait"
    assert student.look(after_s=4.9) == "wait"
    assert student.look(after_s=0.2) == "give_up"


def test_it_may_wait_for_ever() -> None:
    student = Student(Policy())
    assert student.look() == "wait"
    assert student.look(after_s=1e9) == "wait"


@pytest.mark.parametrize("policy", [Policy("wait", 5.0), FAIL, HARD_ONLY])
def test_only_waiting_without_any_teacher_counts(policy: Policy) -> None:
    student = Student(policy)
    student.look()
    assert student.look(usable=1, after_s=4.0) == "wait"
    assert student.look(after_s=4.0) == "wait"
    assert student.look(waits=False, after_s=100.0) == "wait"
    assert student.look(after_s=0.1) == "wait"
    assert student.look(after_s=5.0) != "wait"


@pytest.mark.parametrize("policy", [Policy("wait", 5.0), FAIL, HARD_ONLY])
def test_one_that_comes_back_only_to_fail_is_not_waited_for_longer(policy: Policy) -> None:
    student = Student(policy)
    waited_s = 0.0
    while student.look() == "wait":
        assert student.look(usable=1, after_s=1.0) == "wait"
        assert student.look(usable=1, after_s=10.0) == "wait", "it works on it, it may take long"
        waited_s += 1.0
        assert waited_s <= 5.0
    assert waited_s == 5.0


@pytest.mark.parametrize("policy", [Policy("wait", 5.0), FAIL])
def test_a_label_sets_the_clock_back(policy: Policy) -> None:
    student = Student(policy)
    for _ in range(20):
        assert student.look() == "wait"
        assert student.look(after_s=4.0) == "wait"
        assert student.look(usable=1, after_s=0.1) == "wait"
        student.answers += 1
        assert student.look(usable=1, after_s=0.1) == "wait"


def test_with_hard_labels_it_goes_on_and_the_wait_is_paid_once() -> None:
    student = Student(HARD_ONLY)
    student.look()
    assert student.look(after_s=5.0) == "go_unlabelled"
    assert student.look(waits=False, after_s=0.1) == "wait"
    assert [student.look(after_s=0.1) for _ in range(10)] == ["go_unlabelled"] * 10


def test_labels_are_waited_for_again_when_a_teacher_is_back() -> None:
    student = Student(HARD_ONLY)
    student.look()
    student.look(after_s=5.0)
    assert student.look(usable=1, after_s=0.1) == "wait"
    assert student.look(usable=1, after_s=3.0) == "wait"
    student.answers += 1
    assert student.look(usable=1, after_s=0.1) == "wait"
    assert student.look(after_s=0.1) == "wait", "and then it has its whole patience again"
    assert student.look(after_s=5.0) == "go_unlabelled"


def test_a_teacher_that_comes_and_goes_without_a_label_is_not_waited_for_twice() -> None:
    student = Student(HARD_ONLY)
    student.look()
    student.look(after_s=5.0)
    student.look(usable=1, after_s=0.1)
    assert student.look(after_s=0.1) == "go_unlabelled"


@pytest.mark.parametrize(
    ("name", "after_s"), [("panic", 1.0), ("fail", None), ("hard_only", None), ("wait", -1.0)]
)
def test_settings_are_checked(name: str, after_s: float | None) -> None:
    with pytest.raises(ValueError, match=r"policy|wait|needs"):
        Policy(name, after_s)  # type: ignore[arg-type]


@given(
    policy=st.sampled_from([Policy(), Policy("wait", 2.0), FAIL, HARD_ONLY]),
    looks=st.lists(st.tuples(st.integers(0, 2), st.booleans(), eighths, st.booleans())),
)
def test_nothing_is_done_while_there_is_a_teacher_or_nobody_waits(
    policy: Policy, looks: list[tuple[int, bool, float, bool]]
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
