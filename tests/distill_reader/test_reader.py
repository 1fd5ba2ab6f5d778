"""`DistilReader` over scripted teachers: a real engine process, real gRPC, no coordinator."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader, pipeline
from edl.errors import NoTeacherAvailable, PoisonBatch, RequestRefused, RetryableError, UsageError
from edl.tests.scripted_teacher import ScriptedTeacher, label, logits_of

ROWS = 4


class Batches:
    """A re-iterable of (x, id) batches; what each is can be computed from its number."""

    def __init__(self, count: int, shape: tuple[int, ...] = (3,)) -> None:
        self.count = count
        self.shape = shape
        self.reuse = np.empty((ROWS, *shape), np.float32)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield self.at(number), np.full(ROWS, number)

    def at(self, number: int) -> Any:
        rows = np.arange(ROWS, dtype=np.float32).reshape(ROWS, *(1 for _ in self.shape))
        return np.broadcast_to(rows + 10 * number, (ROWS, *self.shape)).astype(np.float32)


def check_epoch(source: Batches, batches: list[Any]) -> None:
    """Every batch once, in order, with the labels of that batch."""
    assert [int(ids[0]) for _, ids, _ in batches] == list(range(source.count))
    for x, ids, soft in batches:
        np.testing.assert_array_equal(x, source.at(int(ids[0])))
        np.testing.assert_array_equal(soft, logits_of(x))


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


@pytest.fixture
def second() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


def reader_of(source: Any, *teachers: ScriptedTeacher, **options: Any) -> DistilReader:
    addresses = [teacher.address for teacher in teachers]
    return DistilReader(source, service="s", teachers=addresses, **options)


def test_three_epochs_each_complete_in_order_with_its_own_labels(teacher: ScriptedTeacher) -> None:
    source = Batches(20)
    with reader_of(source, teacher) as reader:
        assert len(reader) == 20
        for _ in range(3):
            check_epoch(source, list(reader))
        assert reader.stats.yielded == reader.stats.delivered == 60
        assert reader.stats.samples_delivered == 60 * ROWS
        assert reader.stats.resends == 0


def test_a_loader_that_fills_the_same_buffer_again_is_not_mislabelled(
    teacher: ScriptedTeacher,
) -> None:
    buffer = np.empty((ROWS, 3), np.float32)

    class Reusing:
        def __iter__(self) -> Iterator[Any]:
            for number in range(10):
                buffer[:] = number
                yield (buffer,)

    with reader_of(Reusing(), teacher) as reader:
        for number, (x, soft) in enumerate(reader):
            np.testing.assert_array_equal(x, number)
            np.testing.assert_array_equal(soft, logits_of(x))


def test_break_and_iterate_again(teacher: ScriptedTeacher) -> None:
    source = Batches(50)
    with reader_of(source, teacher) as reader:
        for _, ids, _ in reader:
            if ids[0] == 3:
                break
        check_epoch(source, list(reader))


def test_kept_batches_stay_what_they_were(teacher: ScriptedTeacher) -> None:
    source = Batches(200, shape=(64,))
    with reader_of(source, teacher, upper_bytes=20_000) as reader:
        check_epoch(source, list(reader))  # all kept until the end


def test_what_the_source_raises_is_raised_itself_behind_its_batches(
    teacher: ScriptedTeacher,
) -> None:
    class Broken(Exception):
        pass

    error = Broken("disk gone")

    class Source:
        def __iter__(self) -> Iterator[Any]:
            yield from itertools.islice(Batches(5), 5)
            raise error

    with reader_of(Source(), teacher) as reader:
        iterator = iter(reader)
        for _ in range(5):
            next(iterator)
        with pytest.raises(Broken) as raised:
            next(iterator)
        assert raised.value is error


def test_an_iterator_is_refused_with_what_to_give() -> None:
    with pytest.raises(UsageError, match="only once"):
        DistilReader(iter([1]), service="s", teachers=["127.0.0.1:1"])


def test_dicts_and_named_feeds(teacher: ScriptedTeacher) -> None:
    source = [{"label": np.arange(2), "image": np.ones((2, 5), np.float32)} for _ in range(3)]
    with reader_of(source, teacher, feeds={"x": "image"}, fetches=["logits"]) as reader:
        batches = list(reader)
    assert [list(batch) for batch in batches] == [["label", "image", "logits"]] * 3
    np.testing.assert_array_equal(batches[0]["logits"], logits_of(batches[0]["image"]))


def test_a_feed_that_is_not_there_is_named(teacher: ScriptedTeacher) -> None:
    with (
        reader_of(Batches(3), teacher, feeds=[7]) as reader,
        pytest.raises(UsageError, match=r"field 7, a batch has \[0, 1\]"),
    ):
        list(reader)


@pytest.mark.parametrize("late", [0, 1])
def test_poison_names_the_batch_and_what_each_teacher_said(
    teacher: ScriptedTeacher, second: ScriptedTeacher, late: int
) -> None:
    """One of them is refused by the other before it is there: it is waited for, and asked."""
    has_refused = threading.Event()

    def refuse(request: Any) -> Any:
        if request.inputs["x"][0, 0] == 30:
            has_refused.set()
            raise RequestRefused("too ugly")
        return label(request)

    def answer_late() -> bool:
        return has_refused.wait(30.0)

    teacher.behaviour = second.behaviour = refuse
    (teacher, second)[late].is_ready = answer_late
    with reader_of(Batches(9), teacher, second) as reader:
        iterator = iter(reader)
        for number in range(3):
            assert next(iterator)[1][0] == number
        with pytest.raises(PoisonBatch, match=r"batch 3 .*too ugly.*too ugly"):
            next(iterator)


def test_a_teacher_that_fails_for_a_while_loses_nothing(
    teacher: ScriptedTeacher, second: ScriptedTeacher
) -> None:
    failures, asked = itertools.count(), threading.Event()

    def fail_at_first(request: Any) -> Any:
        asked.set()
        if next(failures) < 5:
            raise RetryableError("the predictor is restarting")
        return label(request)

    def there_second() -> bool:
        return asked.wait(30.0)

    teacher.behaviour, second.is_ready = fail_at_first, there_second
    source = Batches(40)
    with reader_of(source, teacher, second, canaries=None) as reader:  # nobody is on trial
        check_epoch(source, list(reader))
        assert reader.stats.resends >= 1


@pytest.mark.parametrize(
    "lie",
    [
        lambda r: {"logits": np.full((ROWS, 10), np.nan, np.float32)},
        lambda r: {"logits": np.zeros((ROWS + 1, 10), np.float32)},
        lambda r: {"other": np.zeros((ROWS, 10), np.float32)},
    ],
)
def test_a_teacher_that_answers_nonsense_is_not_believed(
    teacher: ScriptedTeacher, second: ScriptedTeacher, lie: Callable[[Any], Any]
) -> None:
    out = threading.Event()

    def answer_when_it_is_out(request: Any) -> Any:
        # No batch of what it was asked is over before it has answered, so each answer counts. It is
        # asked no more than its window; on a slow machine it has been let in meanwhile, and is then
        # asked by ones, each of which ejects it again.
        until(lambda: out.is_set() or 1 <= reader.stats.ejections >= teacher.requests - 1, 30.0)
        out.set()
        return label(request)

    teacher.behaviour, second.behaviour = lie, answer_when_it_is_out
    source = Batches(30)
    with reader_of(source, teacher, second, fetches=["logits"]) as reader:
        check_epoch(source, list(reader))


def test_no_teacher_is_an_error_that_says_why_after_the_stated_time() -> None:
    with DistilReader(
        Batches(3), service="s", teachers=["127.0.0.1:9"], wait_timeout_s=0.5
    ) as reader:
        until(lambda: reader.stats.want > 1)  # it knows that nobody is there
        started = time.monotonic()
        with pytest.raises(NoTeacherAvailable, match=r"0 of 1 teachers live.*127\.0\.0\.1:9"):
            list(reader)
        assert 0.4 < time.monotonic() - started < 5


def test_a_teacher_that_comes_late_is_found(teacher: ScriptedTeacher) -> None:
    address = teacher.address
    teacher.stop()
    source = Batches(5)
    with DistilReader(source, service="s", teachers=[address]) as reader:
        iterator = iter(reader)
        until(lambda: "0 of 1" in reader.stats.waiting_for or reader.stats.yielded > 0)
        late = ScriptedTeacher(port=int(address.rpartition(":")[2]))
        try:
            check_epoch(source, list(iterator))
        finally:
            late.stop()


def test_two_readers_of_two_services_in_one_process(teacher: ScriptedTeacher) -> None:
    def negative(request: Any) -> Any:
        return {"logits": -logits_of(request.inputs["x"])}

    other = ScriptedTeacher(negative)
    source = Batches(30)
    try:
        with (
            reader_of(source, teacher) as a,
            DistilReader(source, service="t", teachers=[other.address]) as b,
        ):
            for (x, _, soft_a), (_, _, soft_b) in zip(a, b, strict=True):
                np.testing.assert_array_equal(soft_a, logits_of(x))
                np.testing.assert_array_equal(soft_b, -logits_of(x))
    finally:
        other.stop()


def test_the_engine_is_killed_and_the_stream_goes_on(teacher: ScriptedTeacher) -> None:
    def slow(request: Any) -> Any:
        time.sleep(0.005)  # a device that takes its time
        return label(request)

    teacher.behaviour = slow
    source = Batches(120)
    batches = []
    kills = [10, 60]
    with reader_of(source, teacher, upper_bytes=1000) as reader:  # some are not labelled yet
        for batch in reader:
            batches.append(batch)
            if len(batches) in kills:
                os.kill(reader.engine_pid, signal.SIGKILL)
                until(lambda: reader.stats.engine_restarts == 1 + kills.index(len(batches)))
        assert reader.stats.engine_restarts == 2
    check_epoch(source, batches)


def test_it_closes_itself_when_collected(teacher: ScriptedTeacher) -> None:
    reader = reader_of(Batches(100), teacher)
    iterator = iter(reader)
    next(iterator)
    pid = reader.engine_pid
    del iterator, reader
    gc.collect()
    until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_leaving_does_not_wait_for_a_hung_source(
    teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SOURCE_GRACE_S", 0.2)
    never = threading.Event()

    class Hung(Batches):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()
            never.wait()

    reader = reader_of(Hung(3), teacher)
    try:
        iterator = iter(reader)
        for _ in range(3):
            next(iterator)
        started = time.monotonic()
        reader.close()
        assert time.monotonic() - started < 5
    finally:
        never.set()
