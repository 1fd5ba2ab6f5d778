"""Assignment of teachers by examples; its laws are in tests/properties."""

from __future__ import annotations

import re

import pytest

from edl.scheduler.assignment import (
    AssignmentEvent,
    ContentPlanned,
    RecoveryBegan,
    RecoveryEnded,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherDraining,
    TeacherUp,
    Ticked,
    plan_is_complete,
    prevailing_content,
    reduce,
)

from .assignment_service import Service, measured, up, wants


class TestAssignment:
    def test_loss_of_a_revoked_teacher_is_reported_to_its_former_student(self) -> None:
        service = Service(*up("ab"), wants("a/0", 1))
        assert service.told(TeacherDraining("a")) == ("b", "")
        assert service.told(TeacherDown("a", lost=True)) == ("b", "a")
        service = Service(*up("a"), wants("a/0", 1), TeacherDraining("a"))
        assert service.has("a/0") == ""
        assert service.told(*up("a")) == ("a", ""), "it did not drain after all"

    def test_claims_to_hold_teachers(self) -> None:
        service = Service(*up("abc"), wants("a/0", 1))
        assert service.see(wants("a/0", 1, holding="bc")) == {}
        service.see(wants("b/0", 2, holding="ab"))
        assert (service.has("a/0"), service.has("b/0")) == ("a", "bc")
        service = Service(*up("ab"), wants("a/0", 1))
        assert service.told(StudentGone("a/0"), wants("a/0", 1, holding="a")) == ("a", "")

    def test_a_teacher_that_registers_again_is_a_loss_and_a_new_teacher(self) -> None:
        service = Service(TeacherUp("a", 1), TeacherUp("b", 1), wants("a/0", 1))
        change = service.see(TeacherUp("a", 2))["a/0"]
        assert (change.teachers, change.lost) == (("a",), ("a",))
        assert change.reason == "teacher a registered again; has 1 of 1 wanted"
        assert service.see(TeacherUp("a", 2)) == {}
        service = Service(TeacherUp("a", 1), wants("a/0", 1))
        assert service.told(TeacherDown("a", lost=True), TeacherUp("a", 2)) == ("a", "a")

    def test_same_host_is_preferred_but_no_reason_to_move(self) -> None:
        service = Service(*up("ab", host="left"), *up("cd", host="right"))
        service.see(StudentReported("a/0", 1, host="right"))
        assert service.has("a/0") == "c"
        service.see(StudentReported("b/0", 2, host="right"))
        assert service.has("b/0") == "ad"
        service = Service(*up("a", host="left"), StudentReported("a/0", 1, host="right"))
        assert service.see(*up("b", host="right")) == {}

    def test_recovery_takes_nothing_away_but_dead_teachers(self) -> None:
        held = (wants("b/0", 2, holding="cd"), wants("a/0", 2, holding="ba"))
        service = Service(RecoveryBegan(), *up("abcd"), *held)
        assert (service.has("b/0"), service.has("a/0")) == ("cd", "ab")
        assert service.see(RecoveryEnded()) == {}
        service = Service(RecoveryBegan(), *up("ab"), wants("a/0", 1, holding="ab"))
        assert service.has("a/0") == "ab"
        service.see(wants("b/0", 1))
        assert service.has("a/0") == "ab"
        assert service.count("b/0") == 1  # it shares: nobody goes without
        service.see(*up("c"), wants("c/0", 1))
        assert service.has("c/0") == "c"
        service.see(RecoveryEnded())
        assert (service.counts, service.idle) == ([1, 1, 1], set())
        service = Service(RecoveryBegan(), *up("ab"), wants("a/0", 2, holding="ab"))
        assert service.told(TeacherDown("a", lost=True)) == ("b", "a")
        assert service.told(TeacherDown("b", lost=False)) == ("", "")

    def test_events_without_news_return_the_same_state(self) -> None:
        state = Service(*up("a"), wants("a/0", 1)).state
        events: list[AssignmentEvent] = [TeacherUp("a", 1), StudentReported("a/0", 1)]
        events += [TeacherDown("x", lost=True), TeacherDraining("x"), StudentGone("x")]
        for event in [*events, RecoveryEnded(), Ticked()]:
            after, changes = reduce(state, [event], 1.0)
            assert after is state
            assert changes == ()

    def test_negative_want_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a/0 cannot want -1"):
            Service(wants("a/0", -1))


FOUR = up("abcd")
FAST = [*up("ab", 400), *up("cdef", 100), wants("a/0", 9), wants("b/0", 9)]
RECOVERY = [RecoveryBegan(), *up("ab"), wants("b/0", 1), wants("a/0", 1)]
TWO = [*up("ab"), wants("b/0", 2), wants("a/0", 2)]
UNEVEN = [*up("a", 100.0), *up("b", 200.0), wants("b/0", 2), measured("c/0", 0.5)]
CONTENT = [ContentPlanned("x"), *up("ab", content="x"), wants("a/0", 2)]


class TestReasons:
    """Every change has a cause that an operator can read."""

    @pytest.mark.parametrize(
        ("before", "event", "facts"),
        [
            ([*up("abc"), wants("a/0", 9)], wants("b/0", 2), "c given to b/0.* 2 of 9 .* as 3 t"),
            ([*up("abc"), wants("a/0", 2)], TeacherDown("a", True), "a was lost.* c was.* 2 of 2"),
            ([*FOUR, wants("a/0", 4), wants("b/0", 4)], wants("a/0", 4, priority=1), "1, not 0"),
            ([*FOUR, wants("b/0", 4), wants("a/0", 4)], wants("a/0", 4, min=3), "guaranteed 3"),
            (CONTENT, TeacherUp("a", 1, content_id="y"), "a serves another content; has 1 of 2"),
            (RECOVERY, TeacherDown("b", True), "b was lost; shares teacher a; has 1 of 1"),
            (TWO, wants("c/0", 3, priority=1), "b given to c/0, which has higher priority, for"),
            (UNEVEN, wants("a/0", 3), "student a/0 wants 3; has 1 of 3"),  # c/0 has made room
            (FAST, TeacherUp("a", 1, 100.0), "a is slower than before; teacher f taken over"),
        ],
    )
    def test_causes(
        self, before: list[AssignmentEvent], event: AssignmentEvent, facts: str
    ) -> None:
        assert re.search(facts, Service(*before).see(event)["a/0"].reason)

    def test_a_teacher_may_be_called_like_a_word_of_a_reason(self) -> None:
        service = Service(*up("abc"), wants("a/0", 3), wants("b/0", 0))
        change = service.see(TeacherUp("from", 1), wants("b/0", 2))["b/0"]
        assert "teacher c taken over from a/0; teacher from serves" in change.reason


def on(content: str, epoch: int, want: int = 1, student: str = "a/0") -> StudentReported:
    """A student that is labelled with `content` in an epoch; "": it stands before that epoch."""
    return StudentReported(student, want, data_epoch=epoch, content_id=content)


def upgrading(at_now: bool = False) -> Service:
    """A student in its epoch 1 on old; c, d serve the new content that is planned."""
    service = Service(ContentPlanned("old"), *up("ab", content="old"), on("", 1, want=2))
    service.see(on("old", 1, want=2))
    service.see(*up("cd", content="new"))
    assert service.has("a/0") == "ab"
    service.see(ContentPlanned("old", "new", "now" if at_now else "epoch"))
    return service


class TestContents:
    def test_content_without_a_plan(self) -> None:
        service = Service(*up("ab", content="x"), *up("cd", content="y"), on("", 0, want=4))
        assert service.has("a/0") == "ab"
        assert service.content("a/0") == "x"
        service.see(on("y", 3, want=2, student="b/0"))
        assert service.has("b/0") == "cd"
        service = Service(on("", 0), *up("a", content="x"), *up("b", content="y"))
        assert service.has("a/0") == "a"
        service.see(TeacherDown("a", lost=True))
        assert service.has("a/0") == ""  # it may have labels of x
        service = Service(*up("a", content="x"))
        service.see(TeacherDown("a", lost=False))
        service.see(*up("b", content="y"), on("", 0))
        assert service.has("a/0") == "b"

    def test_prevailing_content(self) -> None:
        teachers = (*up("abc", content="x"), *up("d", content="y"))
        assert Service(*teachers, on("", 0, student="new/0")).state.plan.current == "x"
        service = Service(*teachers)
        service.see(*(on("y", 3, student=name) for name in ("a/0", "b/0")))
        assert service.state.plan.current == "y"
        assert prevailing_content(service.state) == ("y", 2, 1)
        service.see(*(on("x", 3, student=name) for name in ("c/0", "d/0", "e/0")))
        assert prevailing_content(service.state) == ("x", 3, 3)
        assert service.state.plan.current == "y", "somebody is on it: it is not changed to and fro"

    def test_recovery_keeps_students_on_their_content(self) -> None:
        service = Service(RecoveryBegan(), *up("abc", content="x"), on("x", 1, student="b/0"))
        assert service.contents_told(on("y", 3), *up("d", content="y")) == ("y", "")
        service.see(on("", 4))
        assert service.content("a/0") == "y"
        service.see(ContentPlanned("x"))
        assert service.state.students["a/0"].announced == "x"
        teachers = (*up("ab", content="old"), *up("cd", content="new"))
        service = Service(ContentPlanned("old", "new"), *teachers)
        changes = service.see(on("old", 4), on("new", 5, student="b/0"), on("", 6, student="c/0"))
        contents = {name: change.content_id for name, change in changes.items()}
        assert contents == {"a/0": "old", "b/0": "new", "c/0": "new"}
        assert changes["a/0"].next_content_id == "new"
        service = Service(ContentPlanned("old"), *up("ab", content="old"), *up("c", content="new"))
        service.see(on("old", 1), on("old", 1, student="b/0"))
        service.see(RecoveryBegan(), ContentPlanned("old", "new", "now"))
        assert service.content("a/0") == "old"
        service.see(on("", 2, student="b/0"))
        assert [service.content(name) for name in ("a/0", "b/0")] == ["old", "new"]

    def test_plan_decides_for_new_students(self) -> None:
        x, y = up("a", content="x"), up("b", content="y")
        service = Service(ContentPlanned("y"), *x, on("", 0), *y)
        assert service.has("a/0") == "b"
        service = upgrading()
        service.see(on("", 0, student="b/0"))
        assert service.content("b/0") == "new"
        assert not plan_is_complete(service.state)
        service.see(TeacherDown("c", lost=True), TeacherDown("d", lost=True))
        assert service.has("b/0") == ""  # it is on the new content, and stays
        service.see(on("", 0, student="c/0"))
        assert service.content("c/0") == "old"

    def test_upgrade_is_announced_and_done_between_epochs(self) -> None:
        service = upgrading()
        assert service.has("a/0") == "ab"
        assert service.state.students["a/0"].announced == "new"
        assert service.see(on("old", 1, want=2)) == {}
        change = service.see(on("", 2, want=2))["a/0"]
        assert (sorted(change.teachers), change.content_id) == (["c", "d"], "new")
        assert (change.next_content_id, change.data_epoch) == ("", 2)
        assert "moves from content old to new" in change.reason
        assert plan_is_complete(service.state)
        service = upgrading()
        assert service.see(on("old", 2, want=2)) == {}
        assert service.has("a/0") == "ab"
        assert service.see(on("", 3, want=2))["a/0"].content_id == "new"

    def test_announcement_is_a_change(self) -> None:
        service = Service(ContentPlanned("old"), *up("a", content="old"), on("", 1))
        assert service.see(ContentPlanned("old", "new")) == {}  # nobody serves it yet
        change = service.see(*up("c", content="new"))["a/0"]
        assert (change.content_id, change.next_content_id) == ("old", "new")
        assert "moves to content new with its next epoch" in change.reason
        change = service.see(TeacherDraining("c"))["a/0"]
        assert (change.content_id, change.next_content_id) == ("old", "")
        assert "stays with content old" in change.reason

    def test_immediate_upgrade_waits_for_a_teacher(self) -> None:
        service = upgrading(at_now=True)
        assert service.has("a/0") == "cd"
        assert service.state.students["a/0"].announced == ""
        service = Service(ContentPlanned("old"), *up("a", content="old"), on("", 1))
        service.see(ContentPlanned("old", "new", "now"))
        assert service.has("a/0") == "a"
        service.see(*up("c", content="new"))
        assert service.has("a/0") == "c"

    def test_withdrawn_and_unknown_contents(self) -> None:
        service = upgrading()
        assert service.contents_told(ContentPlanned("old")) == ("old", "")
        assert service.contents_told(on("", 2, want=2)) == ("old", "")
        teachers = (*up("a", content="ancient"), *up("b", content="new"))
        service = Service(ContentPlanned("new"), *teachers, on("ancient", 1))
        assert service.has("a/0") == "a"
        service.see(TeacherDown("a", lost=False))
        assert service.has("a/0") == "b"

    def test_epoch_of_a_forgotten_content_goes_on_with_another(self) -> None:
        """No teacher of "ancient" will come, so the stream would wait for ever."""
        teachers = (*up("a", content="ancient"), *up("b", content="old"))
        service = Service(ContentPlanned("old"), *teachers, on("ancient", 1))
        service.see(RecoveryBegan(), TeacherDown("a", lost=True))
        assert service.has("a/0") == ""
        change = service.see(RecoveryEnded())["a/0"]
        assert (change.teachers, change.content_id, change.data_epoch) == (("b",), "old", 1)
        assert "moves from content ancient to old" in change.reason
        service = Service(ContentPlanned("old", "new"), *teachers, on("ancient", 1))
        service.see(TeacherDown("a", lost=True))
        assert service.has("a/0") == "b", "no teacher serves the new content yet"

    def test_epoch_of_a_planned_content_waits_for_its_teachers(self) -> None:
        service = upgrading()
        service.see(TeacherDown("a", lost=True), TeacherDown("b", lost=True))
        assert (service.has("a/0"), service.content("a/0")) == ("", "old")
        service.see(on("", 2, want=2))
        assert service.has("a/0") == "cd"
        service.see(on("new", 2, want=2), *up("a", content="old"))
        service.see(TeacherDown("c", lost=True), TeacherDown("d", lost=True))
        assert (service.has("a/0"), service.content("a/0")) == ("", "new")

    def test_upgrade_without_students_is_complete_when_served(self) -> None:
        service = Service(ContentPlanned("old", "new"), *up("a", content="old"))
        assert not plan_is_complete(service.state)
        service.see(*up("b", content="new"))
        assert plan_is_complete(service.state)
