"""One content for each student: how an upgrade moves students between epochs, or at once."""

from __future__ import annotations

from edl.scheduler.assignment import (
    ContentPlanned,
    RecoveryBegan,
    StudentReported,
    TeacherDown,
    TeacherDraining,
    content_of,
    plan_is_complete,
    prevailing_content,
)

from .assigned import Service, up


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


def test_a_student_has_teachers_of_its_content_only() -> None:
    service = Service(*up("ab", content="x"), *up("cd", content="y"), on("", 0, want=4))
    assert service.has("a/0") == "ab"
    assert content_of(service.state, "a/0") == "x"
    service.see(on("y", 3, want=2, student="b/0"))
    assert service.has("b/0") == "cd"


def test_without_a_plan_the_first_teacher_says_what_is_served() -> None:
    service = Service(on("", 0), *up("a", content="x"), *up("b", content="y"))
    assert service.has("a/0") == "a"
    service.see(TeacherDown("a", lost=True))
    assert service.has("a/0") == ""  # it may have labels of x


def test_what_nobody_has_labels_of_gives_way_to_what_is_served() -> None:
    service = Service(*up("a", content="x"))
    service.see(TeacherDown("a", lost=False))
    service.see(*up("b", content="y"), on("", 0))
    assert service.has("a/0") == "b"


def test_without_a_plan_what_most_students_are_on_goes_before_what_teachers_serve() -> None:
    service = Service(*up("abc", content="x"), on("", 0, student="new/0"), *up("d", content="y"))
    assert service.state.plan.current == "x"
    service = Service(*up("abc", content="x"), *up("d", content="y"))
    service.see(*(on("y", 3, student=name) for name in ("a/0", "b/0")))
    assert service.state.plan.current == "y"
    assert prevailing_content(service.state) == ("y", 2, 1)
    service.see(*(on("x", 3, student=name) for name in ("c/0", "d/0", "e/0")))
    assert prevailing_content(service.state) == ("x", 3, 3)
    assert service.state.plan.current == "y", "somebody is on it: it is not changed to and fro"


def test_in_a_recovery_nobody_is_moved_to_what_nobody_declared() -> None:
    service = Service(RecoveryBegan(), *up("abc", content="x"), on("x", 1, student="b/0"))
    change = service.see(on("y", 3), *up("d", content="y"))["a/0"]
    assert (change.content_id, change.next_content_id) == ("y", "")
    service.see(on("", 4))
    assert content_of(service.state, "a/0") == "y"
    service.see(ContentPlanned("x"))
    assert service.state.students["a/0"].next_told == "x"


def test_a_plan_says_what_new_students_have() -> None:
    service = Service(ContentPlanned("y"), *up("a", content="x"), on("", 0), *up("b", content="y"))
    assert service.has("a/0") == "b"


def test_an_upgrade_is_announced_and_carried_out_between_two_epochs() -> None:
    service = upgrading()
    assert service.has("a/0") == "ab"
    assert service.state.students["a/0"].next_told == "new"
    assert service.see(on("old", 1, want=2)) == {}
    change = service.see(on("", 2, want=2))["a/0"]
    assert (sorted(change.teachers), change.content_id) == (["c", "d"], "new")
    assert (change.next_content_id, change.data_epoch) == ("", 2)
    assert "moves from content old to new" in change.reason
    assert plan_is_complete(service.state)


def test_the_announcement_is_a_change() -> None:
    service = Service(ContentPlanned("old"), *up("a", content="old"), on("", 1))
    assert service.see(ContentPlanned("old", "new")) == {}  # nobody serves it yet
    change = service.see(*up("c", content="new"))["a/0"]
    assert (change.content_id, change.next_content_id) == ("old", "new")
    assert "moves to content new with its next epoch" in change.reason
    change = service.see(TeacherDraining("c"))["a/0"]
    assert (change.content_id, change.next_content_id) == ("old", "")
    assert "stays with content old" in change.reason


def test_one_that_began_its_epoch_unaware_finishes_it_first() -> None:
    service = upgrading()
    assert service.see(on("old", 2, want=2)) == {}
    assert service.has("a/0") == "ab"
    assert service.see(on("", 3, want=2))["a/0"].content_id == "new"


def test_one_that_waits_is_answered_when_the_upgrade_cannot_be_had_any_more() -> None:
    service = upgrading()
    service.see(TeacherDown("c", lost=True), TeacherDown("d", lost=True))
    change = service.see(on("", 2, want=2))["a/0"]
    assert (change.content_id, change.next_content_id, change.data_epoch) == ("old", "", 2)
    assert service.has("a/0") == "ab"


def test_at_now_students_move_at_once() -> None:
    service = upgrading(at_now=True)
    assert service.has("a/0") == "cd"
    assert service.state.students["a/0"].next_told == ""


def test_nobody_is_moved_to_what_nobody_serves() -> None:
    service = Service(ContentPlanned("old"), *up("a", content="old"), on("", 1))
    service.see(ContentPlanned("old", "new", "now"))
    assert service.has("a/0") == "a"
    service.see(*up("c", content="new"))
    assert service.has("a/0") == "c"


def test_new_students_begin_with_what_is_to_come() -> None:
    service = upgrading()
    service.see(on("", 0, student="b/0"))
    assert content_of(service.state, "b/0") == "new"
    assert not plan_is_complete(service.state)
    service.see(TeacherDown("c", lost=True), TeacherDown("d", lost=True))
    assert service.has("b/0") == ""  # it is on the new content, and stays
    service.see(on("", 0, student="c/0"))
    assert content_of(service.state, "c/0") == "old"


def test_a_manager_that_starts_anew_finds_each_student_on_its_content() -> None:
    service = Service(
        ContentPlanned("old", "new"), *up("ab", content="old"), *up("cd", content="new")
    )
    changes = service.see(on("old", 4), on("new", 5, student="b/0"), on("", 6, student="c/0"))
    contents = {name: change.content_id for name, change in changes.items()}
    assert contents == {"a/0": "old", "b/0": "new", "c/0": "new"}
    assert changes["a/0"].next_content_id == "new"


def test_in_a_recovery_only_those_between_two_epochs_are_moved() -> None:
    service = Service(ContentPlanned("old"), *up("ab", content="old"), *up("c", content="new"))
    service.see(on("old", 1), on("old", 1, student="b/0"))
    service.see(RecoveryBegan(), ContentPlanned("old", "new", "now"))
    assert content_of(service.state, "a/0") == "old"
    service.see(on("", 2, student="b/0"))
    assert [content_of(service.state, name) for name in ("a/0", "b/0")] == ["old", "new"]


def test_a_plan_that_is_taken_back_is_taken_back() -> None:
    service = upgrading()
    change = service.see(ContentPlanned("old"))["a/0"]
    assert (change.content_id, change.next_content_id) == ("old", "")
    assert service.see(on("", 2, want=2))["a/0"].content_id == "old"


def test_a_content_that_no_plan_knows_is_left_when_nobody_serves_it() -> None:
    service = Service(ContentPlanned("new"), *up("a", content="ancient"), *up("b", content="new"))
    service.see(on("ancient", 1))
    assert service.has("a/0") == "a"
    service.see(TeacherDown("a", lost=False))
    assert service.has("a/0") == "b"


def test_an_upgrade_without_students_is_complete_when_it_can_be_had() -> None:
    service = Service(ContentPlanned("old", "new"), *up("a", content="old"))
    assert not plan_is_complete(service.state)
    service.see(*up("b", content="new"))
    assert plan_is_complete(service.state)
