"""The engine, handler by handler: teachers that come and go, contents that change, the store."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine import ensemble_member as members
from edl.distill_reader.engine.ensemble_member import core_config
from edl.distill_reader.engine.reporting import student_report, waiting_for
from edl.distill_reader.engine.roster import AssignedTeachers
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.distill_reader.engine.teacher_requests import RequestDone, TeacherReady
from edl.distill_reader.options import Limits, Timeouts
from edl.distill_reader.store import LabelStore
from edl.proto import coordinator_pb2 as pb
from edl.proto.clients import ModelDescription
from edl.proto.dataclass_json import from_plain, to_plain
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import (
    BadAnswer,
    InputsOverwritten,
    PredictorCrashed,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
)
from edl.scheduler.ledger import events as ev
from edl.scheduler.reader_core import instructions as do
from edl.scheduler.reader_core.events import Advice, Assigned, EngineResumed, HandoffState
from edl.scheduler.reader_core.model_switch import ModelSwitch, NumericsPin
from edl.tests.distill_reader.engine.bench import ROWS, Bench, labels, peer
from edl.tests.waiting import wait_until

WRONG = BadAnswer("not finite")


def bench_of(**options: Any) -> Bench:
    """Teacher `a` has batches 0 and 1."""
    bench = Bench(**options)
    bench.assign("a")
    for number in (0, 1):
        bench.batch(number)
    assert bench.batches_at("a") == [0, 1]
    return bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    with closing(bench_of()) as made:
        yield made


# --- batches that do not fit


@pytest.mark.parametrize(("kind", "failure"), [("batch", "fatal"), ("call", "call_failed")])
def test_inputs_are_checked_until_those_of_a_batch_fit(kind: str, failure: str) -> None:
    """Teachers would refuse them, and be ejected for that."""
    with closing(Bench()) as bench:
        bench.assign("a")
        int64 = ModelDescription(inputs=(TensorSpec("x", "INT64", (-1, 3)),))
        for number in range(2):
            bench.link("a").model = int64
            bench.batch(number, kind)
            assert "declared as int64" in bench.told(failure)[0]["text"]
            bench.reset(number + 1, number + 1)
        bench.link("a").model = ModelDescription(inputs=(TensorSpec("x", "FP32", (-1, 3)),))
        bench.batch(2, kind)
        assert bench.batches_at("a") == [2]
        bench.link("a").model = int64
        bench.batch(3, kind)
        assert bench.batches_at("a") == [2, 3], "one has fitted"


def test_a_failed_epoch_pulls_no_batches_and_delivers_none_without_labels(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options: dict[str, Any] = {"no_teacher": "hard_only", "timeouts": Timeouts(no_teacher_s=1.0)}
    with closing(Bench(feeds=(("x", "pixels"),), **options)) as bench:
        bench.assign("a")
        bench.say("waiting")
        bench.look(0.0)
        assert bench.told("allow")
        bench.batch(0)
        assert "'pixels'" in bench.told("fatal")[0]["text"]
        for now in range(1, 10):
            bench.look(float(now))
        bench.assign(lost=("a",), counter=2)
        for now in range(10, 20):
            bench.look(float(now))
        assert not bench.told("allow")
        assert "without soft labels" not in caplog.text
        bench.reset(1, 1)
        bench.look(20.0)
        assert bench.told("allow")


# --- teachers


def test_a_batch_that_crashes_predictors_is_poison() -> None:
    with closing(Bench(canaries=None)) as bench:
        bench.assign("a", "b", "c", "d")
        for number in range(4):
            bench.batch(number)
        for name in "abcd":
            bench.answer_all(name)
        bench.batch(4)
        for _ in range(3):
            (name,) = (one for one in "abcd" if bench.requests(one))
            bench.fail(name, PredictorCrashed("the predictor ended while it computed this request"))
        assert bench.told("poison")[0]["number"] == 4


def test_the_last_batch_is_poison_where_its_teachers_have_reconnected(bench: Bench) -> None:
    """None of them has labelled anything over its present connection."""
    bench.answer_all("a")
    bench.batch(2)
    bench.fail("a", TeacherLost("connection reset"), 2)
    bench.outcome("a", TeacherReady(("x",)))
    bench.fail("a", RequestRefused("bad shape"), 2)
    assert bench.told("poison")[0]["number"] == 2


def test_a_batch_that_is_over_before_it_was_sent_says_nothing_of_its_teacher(bench: Bench) -> None:
    bench.fail("a", InputsOverwritten("the memory of the batch was reused before it was sent"), 0)
    assert bench.member.ledger.usable == 1
    assert bench.batches_at("a") == [1, 0]


def test_a_revoked_teacher_that_fails_and_answers_a_probe_gets_nothing_new(bench: Bench) -> None:
    bench.assign()
    bench.fail("a", RetryableError("for a while"), 0)
    bench.outcome("a", TeacherReady(("x",)))
    assert bench.batches_at("a") == [1]
    assert bench.member.ledger.teachers == ()


def test_long_pauses_end_without_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    probed, now = list[str](), time.monotonic()
    monkeypatch.setattr(TeacherLink, "probe", lambda link: probed.append(link.peer.teacher_id))
    monkeypatch.setattr(members, "time", SimpleNamespace(monotonic=lambda: now))
    member, breakers = bench.member, bench.member.core.teachers.breakers
    bench.assign("a", "b")
    bench.tell_ledger(ev.Readmitted("b"))
    for _ in range(6):
        breakers.convict("a", "wrong", now)
    bench.fail("a", WRONG, 0)
    assert breakers.pause_s("a", 1, now) > 15.0
    bench.assign("a", lost=["b"], ready=False)
    probed.clear()
    member.tick(now + 0.9)
    assert probed == []
    member.tick(now + 1.1)
    assert probed == ["a"]


def test_what_a_revoked_teacher_does_not_answer_is_asked_of_another(bench: Bench) -> None:
    member = bench.member
    bench.assign("a", "b")
    for name in ("a", "b"):
        member.core.pacing.times.answered(name, 2, 0.01)
    bench.assign("b", ready=False)
    now = time.monotonic()
    for tick in range(200):
        member.tick(now + 0.05 * tick)
        bench.answer_all("b")
    assert member.ledger.labelled == 2
    assert bench.batches_at("a") == [0, 1]


def test_a_probe_is_sent_whatever_event_comes_when_it_is_due(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training loop begins to wait at the moment when a teacher that was full has room."""
    probed = list[str]()
    monkeypatch.setattr(TeacherLink, "probe", lambda link: probed.append(link.peer.teacher_id))
    bench.fail("a", RateLimited("full", 0.001), 0)

    def is_probed() -> bool:
        bench.say("waiting")
        return probed == ["a"]

    wait_until(is_probed)


def test_a_bad_answer_ejects_a_teacher_unless_its_batch_was_left(bench: Bench) -> None:
    """The memory of the old epoch's batches is used again, perhaps while it is being sent."""
    ledger, core = bench.member.ledger, bench.member.core
    bench.reset(1, pulled=2)
    bench.fail("a", WRONG, 0)
    assert ledger.teachers == ("a",)
    assert bench.batches_at("a") == [1]
    bench.answer("a", 1)
    bench.batch(2)
    bench.fail("a", WRONG, 2)
    assert (len(ledger.teachers), len(core.unavailable)) == (0, 1)
    assert bench.metric("ejections", "wrong") == 1


def test_others_are_asked_for_until_one_that_refuses_everything_has_labelled() -> None:
    """It answers each probe, so it is not silent; without others the stream would stand still."""
    with closing(Bench()) as bench:
        core = bench.member.core
        bench.reset(1, pulled=0)
        bench.assign("a")
        bench.look(0.0)
        before = core.decision.want
        for number in range(3):
            bench.batch(number)
        while bench.requests("a"):
            bench.fail("a", RequestRefused("wrong settings"))
        assert len(core.unavailable) == 1

        def is_back() -> bool:
            bench.outcome("a", TeacherReady(("x",)))
            return bench.member.ledger.usable > 0

        wait_until(is_back)
        bench.look(10.0)
        assert (len(core.unavailable), core.decision.want) == (1, before + 1)
        bench.answer("a")
        assert len(core.unavailable) == 0


def test_the_coordinator_is_told_what_the_job_may_ask_for() -> None:
    with closing(bench_of(teachers_min=2, priority=-3)) as bench:
        bench.member.core.starves = True
        told = student_report(bench.member, now=0.0)
        assert (told.min, told.priority, told.state) == (2, -3, "starved")
        assert told.want >= told.min


def test_a_batch_that_is_reported_as_taken_twice_counts_once() -> None:
    with closing(bench_of()) as bench:
        bench.answer_all("a")
        bench.labelled()
        for _ in range(2):
            bench.say("taken", number=0, samples=ROWS, step_s=0.0)
        assert bench.metric("samples_delivered") == ROWS


def test_labels_come_again_with_a_teacher() -> None:
    with closing(Bench(no_teacher="hard_only", timeouts=Timeouts(no_teacher_s=5.0))) as bench:
        bench.batch(0)
        bench.say("waiting")
        for now in (0.0, 5.0):
            assert bench.labelled() == {}
            bench.look(now)
        assert bench.labelled() == {0: None}
        bench.look(5.1)
        assert bench.metric("forgone_batches") == 1, "it is released now"
        bench.say("taken", number=0, samples=ROWS, step_s=None)
        bench.assign("a")
        bench.batch(1)
        bench.answer_all("a")
        np.testing.assert_array_equal(bench.labelled()[1], labels(1))


# --- another content

OLD, NEW = peer("a", "old"), peer("b", "new")


@pytest.fixture
def upgrade() -> Iterator[Bench]:
    """Teacher `a` serves the content "old", and has batches 2 and 3."""
    with closing(Bench()) as bench:
        bench.reset(1, pulled=2)
        bench.assign(OLD, advice=Advice("old", "", 1))
        for number in (2, 3):
            bench.batch(number)
        assert bench.batches_at("a") == [2, 3]
        yield bench


def new_model_switch() -> ModelSwitch:
    return ModelSwitch(NumericsPin(False), lambda level, text, teacher: None)


def content_of(bench: Bench) -> str:
    return bench.member.core.model_switch.state.reported


def test_a_change_of_content_now_voids_what_is_not_delivered(upgrade: Bench) -> None:
    member, old = upgrade.member, upgrade.link("a")
    upgrade.answer("a", 3)
    late = upgrade.request("a", 2)
    assert member.labels.nbytes > 0
    upgrade.assign(NEW, advice=Advice("new", "", 1))
    assert member.labels.nbytes == 0
    assert upgrade.batches_at("b") == [2, 3]
    upgrade.outcome(old, RequestDone(late, {"soft": labels(2)}, 0.001, False, 0.01))
    assert (member.labels.discarded_responses, member.ledger.labelled) == (1, 0)
    for number, deliverable in ((2, 1), (3, 2)):
        upgrade.answer("b", number)
        assert member.ledger.labelled == deliverable
    assert content_of(upgrade) == "new"


def test_at_the_epoch_the_old_teachers_get_nothing_more(upgrade: Bench) -> None:
    upgrade.assign(OLD, advice=Advice("old", "new", 1), ready=False)
    assert upgrade.batches_at("a") == [2, 3], "this epoch goes on"
    upgrade.reset(2, pulled=4, data_epoch=1)
    assert upgrade.member.ledger.teachers == ("a",), "the epoch was only left"
    upgrade.reset(3, pulled=4, data_epoch=2)
    upgrade.batch(4)
    assert len(upgrade.member.ledger.teachers) == 0
    assert (content_of(upgrade), upgrade.member.ledger.queued) == ("", 1)
    upgrade.say("waiting")
    upgrade.look(0.0)
    assert "waiting for a teacher of content new" in waiting_for(upgrade.member)
    upgrade.assign(NEW, advice=Advice("new", "", 2))
    assert upgrade.batches_at("b") == [4]
    assert content_of(upgrade) == "new"


def test_an_announced_content_asks_once_for_the_next_epoch(upgrade: Bench) -> None:
    times = itertools.count(time.monotonic() + 1.0)

    def asked() -> int:
        upgrade.look(next(times))
        return len(upgrade.told("epoch_due"))

    assert asked() == 0
    upgrade.assign(OLD, advice=Advice("old", "new", 1), ready=False)
    assert [asked(), asked()] == [1, 0]
    upgrade.reset(3, pulled=4, data_epoch=2)
    assert asked() == 0, "it is held until the coordinator moves it"
    upgrade.assign(NEW, advice=Advice("new", "", 2))
    assert asked() == 0


def test_a_new_engine_has_the_teachers_of_the_old_one_at_first(upgrade: Bench) -> None:
    member = upgrade.member
    advice = Advice("old", "", 1)
    upgrade.assign(OLD, advice=advice, counter=3)
    told = {"s": json.loads(json.dumps(to_plain(member.core.model_switch.handoff_state)))}
    member.core.model_switch = new_model_switch()  # as it is when an engine starts
    known = {"epoch": 2, "pulled": 4, "ended": False, "waiting": True}
    upgrade.say("resumed", data_epoch=1, handoff_states=told, **known)
    assert content_of(upgrade) == "old"
    assert member.core.model_switch.handoff_state.assigned == Assigned(
        (OLD,), live=1, epoch=(7, 3), advice=advice
    )
    assert member.core.assignment_version == (7, 3), "so that the next manager begins above it"
    links = member.core.teachers.links
    assert links.is_assigned("a")
    upgrade.assign(NEW, lost=["a"], counter=4, advice=Advice("new", "", 1))
    assert content_of(upgrade) == "new"
    assert not knows(upgrade, "a")
    assert knows(upgrade, "b")


def test_what_a_manager_said_first_is_newer_than_what_the_old_engine_knew() -> None:
    switch = new_model_switch()
    switch.assigned(Assigned((NEW,), epoch=(7, 4), advice=Advice("new", "", 1)), 0.0)
    left = HandoffState("old", False, Assigned((OLD,), epoch=(7, 3), advice=Advice("old", "", 1)))
    assigned, anew = switch.resumed(1, left, 0.1)
    assert (assigned.peers, anew) == ((NEW,), True)
    assert switch.handoff_state.content_id == "new"


def test_an_epoch_that_keeps_to_its_content_does_so_with_the_next_engine() -> None:
    """It had begun when the manager came back and moved the student."""
    switch = new_model_switch()
    old = Assigned((OLD,), epoch=(7, 3), advice=Advice("old", "new", 1))
    new = Assigned((NEW,), epoch=(7, 4), advice=Advice("new", "", 2))
    switch.assigned(old, 0.0)
    switch.epoch_began(2, 0.0)
    switch.tick(0.0, False, 0)
    switch.tick(10.0, False, 0)  # no coordinator answers: the epoch begins as it is
    switch.assigned(new, 11.0)
    assert switch.handoff_state.assigned.peers == (OLD,)
    after = new_model_switch()
    assert after.resumed(2, switch.handoff_state, 0.0) == (old, False)
    assigned, anew = after.assigned(new, 1.0)
    assert (assigned.peers, anew) == ((OLD,), False)


def test_a_new_engine_waits_for_teachers_of_the_content_that_the_epoch_keeps(
    upgrade: Bench,
) -> None:
    """None of them has answered its probe when it first looks."""
    before = HandoffState("old", True, Assigned((OLD,), epoch=(7, 3), advice=Advice("old", "", 1)))
    upgrade.member.core.model_switch = new_model_switch()
    upgrade.assign(NEW, advice=Advice("new", "", 2), counter=4, ready=False)
    told = {"epoch": 2, "pulled": 4, "ended": False, "waiting": True}
    upgrade.say("resumed", data_epoch=2, handoff_states={"s": to_plain(before)}, **told)
    upgrade.look(time.monotonic() + 1.0)
    assert content_of(upgrade) == "old"
    assert upgrade.member.core.teachers.links.is_assigned("a")


def test_a_roster_has_the_teachers_that_a_manager_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without an address is the one that the old engine knew; other contents are left out."""
    subscription = mock.Mock()
    monkeypatch.setattr("edl.coordinator.Subscription", lambda *_, **__: subscription)
    heard: list[Assigned] = []
    config = ReaderConfig("s", coordinator="memory://nobody")
    roster = AssignedTeachers(config, "memory://nobody", heard.append, lambda error: None)
    roster.start()
    (tell,) = subscription.start.call_args.args
    roster.remember(Assigned((OLD,)))
    tell(pb.Assignment(term=8, counter=1, teachers=[pb.Teacher(teacher_id="a")]))
    roster.remember(Assigned((NEW,)))  # too late: a manager has answered
    tell(pb.Assignment(teachers=[pb.Teacher(teacher_id="b")]))
    teachers = [
        pb.Teacher(teacher_id=name, address="127.0.0.1:9", content_id=content_id)
        for name, content_id in (("a", "old"), ("b", "new"), ("foreign", ""))
    ]
    tell(pb.Assignment(content_id="old", teachers=teachers))
    names = [[one.teacher_id for one in assigned.peers] for assigned in heard]
    assert names == [["a"], [], ["a", "foreign"]]
    assert heard[0].peers == (OLD,)
    roster.stop()
    subscription.stop.assert_called_once()


# --- a deterministic stream is of one numerics

SAME, OTHER = "paddle-fp32-1", "paddle-fp32-2"


@pytest.fixture
def strict() -> Iterator[Bench]:
    """Teacher `a` has batches 0 and 1, and has not said its numerics."""
    with closing(bench_of(deterministic=True)) as made:
        yield made


def knows(bench: Bench, name: str) -> bool:
    return name in {link.peer.teacher_id for link in bench.member.links.values()}


def test_teachers_of_other_numerics_get_nothing_and_count_as_missing(strict: Bench) -> None:
    numerics = {"b": SAME, "c": OTHER, "d": SAME, "e": ""}
    peers = [peer(name, "c", numerics_id) for name, numerics_id in numerics.items()]
    strict.assign(*peers, lost=["a"], advice=Advice("c", "", 0), ready=False)
    for name in ("b", "d"):
        strict.outcome(name, TeacherReady(("x",)))
    assert len(strict.member.core.unavailable) == 2, "so that two more are asked for"
    assert set(strict.member.ledger.teachers) == {"b", "d"}
    assert [name for name in numerics if knows(strict, name)] == ["b", "d"]
    assert (
        "numerics differ from those of this deterministic stream: c, e"
        in strict.member.core.teachers.links.last_trouble
    )


def test_a_teacher_that_was_only_named_is_judged_by_its_first_answer(strict: Bench) -> None:
    ledger = strict.member.ledger
    strict.answer("a", 0, numerics_id=SAME)
    assert ledger.labelled == 1
    strict.answer("a", 1, numerics_id=OTHER)
    assert (ledger.labelled, ledger.queued) == (1, 1), "the batch waits for another teacher"
    assert ledger.teachers == ()


def test_numerics_are_pinned_for_each_model_and_for_the_next_engine(strict: Bench) -> None:
    def assign(numerics_id: str, content_id: str, counter: int) -> None:
        advice = Advice(content_id, "", 0)
        told = peer("b", content_id, numerics_id)
        strict.assign(told, lost=["a"], advice=advice, counter=counter, ready=False)

    switch = strict.member.core.model_switch
    assign(SAME, "c", 1)
    assert switch.handoff_state.numerics_id == SAME
    assign(OTHER, "new", 2)
    assert switch.handoff_state.numerics_id == OTHER
    left = from_plain(HandoffState, to_plain(switch.handoff_state))
    others = Assigned((peer("c", "new", SAME),), epoch=(7, 9))
    strict.member.resume(EngineResumed(0, replace(left, assigned=others), False, False), 0.0)
    assert switch.handoff_state.numerics_id == OTHER
    assert not knows(strict, "c")


def test_numerics_stay_pinned_in_an_epoch_that_begins_without_teachers() -> None:
    switch = ModelSwitch(NumericsPin(True), lambda level, text, teacher: None)
    same, other = peer("b", "c", SAME), peer("d", "c", OTHER)
    switch.assigned(Assigned((same,), epoch=(7, 1), advice=Advice("c", "", 1)), 0.0)
    switch.assigned(Assigned((), epoch=(7, 2), advice=Advice("", "", 1)), 1.0)
    switch.epoch_began(2, 2.0)
    assert switch.handoff_state.numerics_id == "", "a successor could not tell of which model"
    back = Assigned((other, same), epoch=(7, 3), advice=Advice("c", "", 2))
    assert switch.assigned(back, 3.0)[0].barred == {"d"}
    assert switch.handoff_state.numerics_id == SAME
    new = Assigned((peer("d", "new", OTHER),), epoch=(7, 4), advice=Advice("new", "", 2))
    assert switch.assigned(new, 4.0)[0].barred == frozenset()


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_fixes_windows(deterministic: bool) -> None:
    window = core_config(ReaderConfig("s", teachers=("a:1",), deterministic=deterministic)).window
    assert (window.least == window.most) is deterministic


def test_a_batch_that_is_withdrawn_may_get_labels_of_another_shape() -> None:
    """A liar's labels are void, and before others come the model is exchanged."""
    with closing(Bench(limits=Limits(request_rows=1))) as bench:
        bench.assign("liar")
        bench.batch(0)
        bench.answer_all("liar")
        np.testing.assert_array_equal(bench.labelled()[0], labels(0))
        bench.tell_ledger(ev.InvalidateTeacher("liar"))
        assert [message["number"] for message in bench.told("withdraw")] == [0]
        bench.free()
        bench.assign(peer("new", "next"), advice=Advice("next", "", 1))
        bench.tell_ledger(ev.Relabel())
        bench.tell_ledger(ev.Readmitted("new"))
        bench.answer_all("new", width=3)
        np.testing.assert_array_equal(bench.labelled()[0], labels(0, 3))
        bench.take(0)
        assert bench.arena.used_bytes == 0


# --- the store is asked before any teacher


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Bench]:
    """Batch 0 was released, batches 1 and 2 are at teacher `a` of the content "old"."""
    with closing(Bench(store=LabelStore(tmp_path / "s", 1 << 24))) as bench:
        assert bench.member.label_cache is not None
        bench.assign(peer("a", "old"), advice=Advice("old", "", 1))
        bench.member.label_cache.on_opened(None)
        for number in range(3):
            bench.batch(number)
            bench.member.tick(float(number))
            assert bench.member.ledger.awaits_store(number)
            bench.store_has(number, "old", rows=0)
        bench.answer("a", 0)
        assert list(bench.labelled()) == [0]
        bench.release()
        yield bench


def exchange(bench: Bench) -> None:
    bench.assign(peer("b", "new"), advice=Advice("new", "", 1))
    bench.member.tick(5.0)


def test_after_an_exchange_only_rows_that_the_store_lacks_are_sent(stored: Bench) -> None:
    exchange(stored)
    assert stored.requests("b") == []
    stored.store_has(1, "new")
    stored.store_has(2, "new", rows=3)
    np.testing.assert_array_equal(stored.labelled()[1], labels(1))
    (request,) = stored.requests("b")
    assert request.spans == (ev.Span(2, 3, ROWS),)
    stored.answer_all("b")
    np.testing.assert_array_equal(stored.labelled()[2], labels(2))


def test_a_batch_that_goes_unlabelled_is_looked_up_no_more(stored: Bench) -> None:
    """As when another service of an ensemble refuses it while this one searches its store."""
    exchange(stored)
    forwarded = do.ForwardEvent("s", ev.DeliverUnlabelled(1))
    stored.engine.batch_delivery.execute([forwarded])  # an ensemble does this
    assert stored.labelled() == {1: None}
    stored.store_has(1, "new")
    stored.store_has(2, "new")
    np.testing.assert_array_equal(stored.labelled()[2], labels(2))


def test_what_was_looked_up_of_the_old_model_comes_too_late(stored: Bench) -> None:
    member = stored.member
    for number in (3, 4):
        stored.batch(number)
    member.tick(4.0)
    stored.store_has(4, "old")  # before batch 3, behind which it waits
    exchange(stored)
    for number in (1, 2, 3):
        stored.store_has(number, "old")
        member.tick(6.0 + number)
    assert stored.labelled() == {}
    assert member.ledger.awaits_store(1)
    for number in (1, 2, 3):
        stored.store_has(number, "new", rows=2)
    stored.answer_all("b")
    assert [*stored.labelled()] == [1, 2, 3]
    assert member.ledger.awaits_store(4), "what was found of it before was of the old model"
    stored.store_has(4, "new", rows=2)
    stored.answer_all("b")
    assert [*stored.labelled()] == [4]


def test_an_engine_that_resumes_looks_up_what_came_before_finished_batches(tmp_path: Path) -> None:
    """Batches 1 and 2 have labels: out of order, or batch 0 was withdrawn from the trainer."""
    with closing(Bench(store=LabelStore(tmp_path / "s", 1 << 24), ordered=False)) as bench:
        bench.batch(0)
        for number, released in ((1, True), (2, False)):
            bench.batch(
                number, "restored", labels_nbytes=32, makers={"s": ["a"]}, released=released
            )
        bench.batch(3)
        told = {"epoch": 0, "data_epoch": 0, "handoff_states": {}, "pulled": 4}
        bench.say("resumed", ended=False, waiting=True, **told)
        bench.assign(peer("a", "c"), advice=Advice("c"))
        assert bench.member.label_cache is not None
        bench.member.label_cache.on_opened(None)
        bench.look(0.0)
        bench.take(1)
        assert bench.requests("a") == [], "the store is searched first"
        bench.store_has(0, "c", rows=3)
        bench.store_has(3, "c")
        (request,) = bench.requests("a")
        assert request.spans == (ev.Span(0, 3, ROWS),)
        bench.answer_all("a")
        assert {*bench.labelled()} == {0, 3}
