"""The engine over two services, `a` and `b`, each with a teacher of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.outcomes import Ready
from edl.distill_reader.options import Mixing
from edl.errors import RequestRefused, RetryableError
from edl.scheduler.ledger import events as ev
from edl.tests.distill_reader.engine.bench import ROWS, Bench

REFUSED = RequestRefused("not for me")


def bench_of(**options: Any) -> Bench:
    mixing = Mixing((("a", 1.0), ("b", 3.0)), (("a", ("h:1",)), ("b", ("h:2",))))
    bench = Bench(ReaderConfig("a+b", teachers=("h:1", "h:2"), mixing=mixing, **options))
    for service in ("a", "b"):
        bench.assign(service, service=service)
    return bench


@pytest.fixture
def two() -> Iterator[Bench]:
    """Both services have batch 0."""
    with closing(bench_of()) as made:
        made.batch(0)
        yield made


def answer(two: Bench, *services: str) -> None:
    """The teachers of these services label what they have had longest."""
    for service in services:
        two.answer(service, service=service)


def disbelieve(two: Bench, service: str) -> None:
    two.tell_ledger(ev.Disbelieve(service), service)
    two.tell_ledger(ev.Readmitted(service), service)


def check_all_is_freed(two: Bench) -> None:
    two.take(0)
    assert two.arena.used_bytes == 0


def test_a_missing_service_is_not_waited_for_because_another_answers() -> None:
    """The first batch has waited its time; those behind it go as soon as they are waited for."""
    with closing(bench_of(no_teacher="hard_only", no_teacher_s=5.0)) as two:
        two.assign(lost=["a"], service="a")
        for number, times in ((0, (0.0, 4.9, 5.0)), (1, (6.0,))):
            two.batch(number)
            two.say("waiting")
            answer(two, "b")
            for now in times:
                assert two.labelled() == {}
                two.look(now)
            assert two.labelled() == {number: None}
            two.say("taken", number=number, samples=2, step_s=None)
            two.look(5.5)


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_batch_that_one_service_refuses_is_poison_and_freed(
    two: Bench, answers_first: bool
) -> None:
    def answer_of_b() -> None:
        two.outcome("b", Ready(("x",)), "b")
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
        two.outcome("b", Ready(("x",)), "b")
        assert two.jobs("b", "b") == []
    two.release()
    assert two.arena.used_bytes == 0


@pytest.mark.parametrize("behind", [False, True])
def test_poison_that_is_taken_back_is_labelled_by_every_service(two: Bench, behind: bool) -> None:
    """Also where it waits behind a batch that is not complete, and both services refused it."""
    answer(two, "a", "b")  # so that a refusal counts
    two.labelled()
    two.take(0)
    number = 1 + behind
    for batch in range(1, number + 1):
        two.batch(batch)
    two.fail("a", REFUSED, number, service="a")
    two.fail("b", REFUSED, number, service="b")
    assert len(two.told("poison")) == (not behind)
    two.tell_ledger(ev.Relabel(), "a")
    two.answer_all("a", service="a")
    assert two.labelled() == {}, "`b` has not labelled it"
    two.answer_all("b", service="b")
    assert [*two.labelled()] == [*range(1, number + 1)]


def test_only_the_liars_part_of_a_mixed_batch_is_made_anew(two: Bench) -> None:
    answer(two, "a", "b")
    (mixed,) = two.labelled().values()
    assert mixed is not None
    before, used = np.array(mixed), two.arena.used_bytes
    assert used > 64
    disbelieve(two, "b")
    assert [message["number"] for message in two.told("withdraw")] == [0]
    two.free()
    assert two.arena.used_bytes < used, "the mixture is free"
    assert two.jobs("a", "a") == []
    answer(two, "b")
    np.testing.assert_array_equal(two.labelled()[0], before)
    assert two.arena.used_bytes == used
    check_all_is_freed(two)


def test_a_batch_that_is_released_keeps_the_labels_of_a_liar(two: Bench) -> None:
    answer(two, "a", "b")
    two.release()
    assert [*two.labelled()] == [0]
    disbelieve(two, "b")
    assert two.told("withdraw") == []
    assert two.jobs("b", "b") == []
    check_all_is_freed(two)


@pytest.mark.parametrize("released", [False, True])
def test_batches_that_a_dead_engine_mixed_are_labelled_anew_by_both(released: bool) -> None:
    """The labels of one service cannot be told from those of the other."""
    with closing(bench_of()) as two:
        makers = {"a": ["liar"], "b": ["b"]}
        two.batch(0, "held", labels_nbytes=32, makers=makers, released=released)
        two.tell_ledger(ev.Disbelieve("liar"))
        assert len(two.told("withdraw")) == (not released)
        if released:
            assert (two.jobs("a", "a"), two.jobs("b", "b")) == ([], [])
            return
        answer(two, "a")
        assert two.labelled() == {}
        answer(two, "b")
        assert [*two.labelled()] == [0]
        check_all_is_freed(two)


def test_a_batch_without_labels_of_a_service_comes_back_when_its_model_changes(two: Bench) -> None:
    """Both batches wait for `b`; `a` labelled the first, and went without the second."""
    two.batch(1)
    answer(two, "a")
    two.of("a").tell(ev.Forgo(1))
    two.tell_ledger(ev.Relabel(), "a")
    disbelieve(two, "a")
    two.answer_all("a", service="a")
    two.answer_all("b", service="b")
    assert all(soft is not None for soft in two.labelled().values())
    two.say("taken", number=1, samples=ROWS, step_s=0.0)
    check_all_is_freed(two)
