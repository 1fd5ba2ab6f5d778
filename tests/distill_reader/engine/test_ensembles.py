"""The engine over two services, `a` and `b`, each with a teacher of the same name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.teacher_requests import TeacherReady
from edl.distill_reader.options import EnsembleConfig, EnsemblePolicy
from edl.distill_reader.store import LabelStore
from edl.runtime.errors import RequestRefused, RetryableError
from edl.scheduler.ledger import events as ev
from edl.scheduler.reader_core.events import Advice
from edl.tests.distill_reader.engine.bench import ROWS, Bench, peer

REFUSED = RequestRefused("not for me")
MIXING = EnsembleConfig((("a", 1.0), ("b", 3.0)), (("a", ("h:1",)), ("b", ("h:2",))))


@pytest.fixture
def two() -> Iterator[Bench]:
    """Both services have batch 0."""
    config = ReaderConfig("a+b", teachers=("h:1", "h:2"), ensemble=MIXING)
    with closing(Bench(config)) as made:
        for service in ("a", "b"):
            made.assign(service, service=service)
        made.batch(0)
        yield made


def answer(two: Bench, *services: str) -> None:
    """The teachers of these services label what they have had longest."""
    for service in services:
        two.answer(service, service=service)


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_batch_that_one_service_refuses_is_poison_and_freed(
    two: Bench, answers_first: bool
) -> None:
    def answer_of_b() -> None:
        two.outcome("b", TeacherReady(("x",)), "b")
        answer(two, "b")

    answer(two, "a", "b")  # both have labelled a batch, so that a refusal of theirs counts
    two.labelled()
    two.take(0)
    two.batch(1)
    two.fail("b", RetryableError("for a while"), service="b")
    if answers_first:
        answer_of_b()
    two.fail("a", REFUSED, service="a")
    assert "not for me" in two.told("poison")[0]["text"]
    assert two.metric("poison_batches") == 1
    if not answers_first:  # it is not asked of the other service any more
        two.outcome("b", TeacherReady(("x",)), "b")
        assert two.requests("b", "b") == []
    two.release()
    assert two.arena.used_bytes == 0


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Bench]:
    """Both services search their stores; each has labelled batch 0."""
    store = LabelStore(tmp_path / "s", 1 << 24)
    config = ReaderConfig("a+b", teachers=("h:1", "h:2"), ensemble=MIXING, store=store)
    with closing(Bench(config)) as made:
        for service in ("a", "b"):
            label_cache = made.of(service).label_cache
            assert label_cache is not None
            label_cache.on_opened(None)
            made.assign(peer(service, "c"), advice=Advice("c", "", 1), service=service)
        label_whole(made, 0)
        yield made


def search(bench: Bench, number: int, *services: str) -> None:
    """The stores of these services have no row of a batch."""
    for service in services:
        bench.store_has(number, "c", rows=0, service=service)


def label_whole(bench: Bench, number: int) -> None:
    """A batch is labelled by both services, and taken."""
    bench.batch(number)
    bench.look(float(number))
    search(bench, number, "a", "b")
    answer(bench, "a", "b")
    assert [*bench.labelled()] == [number]
    bench.take(number)


def test_a_refused_batch_that_another_service_still_looks_up_is_not_sent_there(
    stored: Bench,
) -> None:
    stored.batch(1)
    stored.look(1.0)
    search(stored, 1, "a")
    stored.fail("a", REFUSED, service="a")
    assert stored.labelled() == {}
    stored.take(1)
    search(stored, 1, "b")
    assert stored.requests("b", "b") == []
    label_whole(stored, 2)


def test_a_refused_batch_passes_another_service_in_its_turn(stored: Bench) -> None:
    for number in (1, 2):
        stored.batch(number)
        stored.look(float(number))
        search(stored, number, "a")
    answer(stored, "a")
    stored.fail("a", REFUSED, service="a")
    assert stored.told("poison") == [], "batch 1 comes first"
    search(stored, 1, "b")
    search(stored, 2, "b")
    assert stored.requests("b", "b") == [stored.request("b", 1, "b")]
    answer(stored, "b")
    assert [*stored.labelled()] == [1]
    stored.take(1)
    stored.look(3.0)
    stored.labelled()
    stored.take(2)
    label_whole(stored, 3)


@pytest.mark.parametrize("released", [False, True])
def test_batches_that_a_dead_engine_mixed_are_labelled_anew_by_both(
    two: Bench, released: bool
) -> None:
    """The labels of one service cannot be told from those of the other."""
    answer(two, "a", "b")
    two.take(0)
    makers = {"a": ["liar"], "b": ["b"]}
    two.batch(1, "restored", labels_nbytes=32, makers=makers, released=released)
    two.tell_ledger(ev.InvalidateTeacher("liar"))
    assert len(two.told("withdraw")) == (not released)
    assert len(two.requests("a", "a")) == len(two.requests("b", "b")) == (not released)
    if not released:
        answer(two, "a")
        assert two.labelled() == {}
        answer(two, "b")
        assert [*two.labelled()] == [1]


def test_a_batch_without_labels_of_a_service_comes_back_when_its_model_changes(two: Bench) -> None:
    """Both batches wait for `b`; `a` labelled the first, and went without the second."""
    two.batch(1)
    answer(two, "a")
    two.of("a").handle(ev.DeliverUnlabelled(1))
    two.tell_ledger(ev.Relabel(), "a")
    two.tell_ledger(ev.InvalidateTeacher("a"), "a")
    two.tell_ledger(ev.Readmitted("a"), "a")
    two.answer_all("a", service="a")
    two.answer_all("b", service="b")
    assert all(soft is not None for soft in two.labelled().values())
    two.say("taken", number=1, samples=ROWS, step_s=0.0)
    two.take(0)
    assert two.arena.used_bytes == 0


def test_a_service_that_had_a_teacher_between_two_calls_is_waited_for() -> None:
    """No call waited while the teacher was there."""
    weights = (("a", 1.0), ("b", 3.0))
    policy = EnsemblePolicy("tolerate", missing_after_s=5.0)
    mixing = EnsembleConfig(weights, (("a", ("h:1",)), ("b", ("h:2",))), policy)
    config = ReaderConfig("a+b", teachers=("h:1", "h:2"), ensemble=mixing)
    with closing(Bench(config)) as two:
        now = time.monotonic()
        two.assign("a", service="a")
        two.batch(0, "call")
        answer(two, "a")
        for seconds in (0.0, 5.0, 5.1):
            two.look(now + seconds)
        assert [*two.labelled()] == [0], "`b` has been missing for long enough"
        two.assign("b", service="b")
        two.look(now + 10.0)
        two.assign(lost=["b"], service="b")
        two.batch(1, "call")
        answer(two, "a")
        two.look(now + 11.0)
        two.look(now + 15.9)
        assert two.labelled() == {}
        two.look(now + 16.0)
        two.look(now + 16.1)
        assert [*two.labelled()] == [1]
