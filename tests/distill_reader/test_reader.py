"""The promises of `DistilReader`, with a real engine process and scripted teachers."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from edl.distill_reader import Callback, DistilReader, pipeline
from edl.distill_reader.options import Limits, Timeouts
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.runtime.errors import (
    BatchError,
    NoTeacherAvailable,
    PoisonBatch,
    RequestRefused,
    UsageError,
)
from edl.tests.distill_reader.readers import (
    NOBODY,
    ROWS,
    Batches,
    answer_nan,
    check_epoch,
    fail,
    numbers_of,
    reader_of,
)
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher, label, logits_of
from edl.tests.waiting import DEADLINE_S, wait_until

# --- each batch once, in order, with its own labels


def test_three_epochs_each_complete_in_order_with_its_own_labels(teacher: ScriptedTeacher) -> None:
    source, samples = Batches(20), list[int]()

    class Counts(Callback):
        def on_batch(self, count: int, waited_s: float) -> None:
            samples.append(count)

    with reader_of(source, teacher, callbacks=[Counts()]) as reader:
        assert len(reader) == 20
        assert reader.progress.startswith("  0.0/s")
        for epoch in range(1, 4):
            check_epoch(source, list(reader))
            # The figures behind an epoch know all of it, however fast it was.
            stats = reader.stats
            assert dict(stats.served) == {teacher.address: 20 * epoch}
            assert stats.delivered == 20 * epoch
            assert (stats.volume_bytes, stats.in_flight[0][1]) == (0, 0)
        assert stats.yielded == 60
        assert stats.samples_delivered == 60 * ROWS == sum(samples)
        assert stats.resends == 0
        wait_until(lambda: " 1/" in reader.progress)
        wait_until(lambda: list(reader) and not reader.progress.startswith("  0.0/s"))


def test_the_story_of_a_batch_says_who_was_asked_and_what_came(teacher: ScriptedTeacher) -> None:
    with reader_of(Batches(3), teacher) as reader:
        assert len(list(reader)) == 3
        told = reader.story(1)
        steps = [line for line in told if " ago, event " in line]
        first, *others, last = (line.split(": ")[1].split("(")[0] for line in steps)
        assert (first, last) == ("Queued", "BatchTaken")
        assert "AnswerCame" in others
        (asked,) = (line for line in told if line.startswith("  so SendRequest("))
        assert teacher.address in asked
        assert reader.story(99) == []


def test_the_number_of_a_story_may_be_of_numpy(teacher: ScriptedTeacher) -> None:
    with reader_of(Batches(3), teacher) as reader:
        assert len(list(reader)) == 3
        number: Any = np.int64(1)
        assert reader.story(number)
        number = "1"
        with pytest.raises(UsageError, match="batch is a whole number, not '1'"):
            reader.story(number)
        assert len(list(reader)) == 3


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
        batches = list(reader)
    assert len(batches) == 10
    for number, (x, soft) in enumerate(batches):
        np.testing.assert_array_equal(x, number)
        np.testing.assert_array_equal(soft, logits_of(x))


class Hints(tuple[Array]):
    """A field like a named tuple, which cannot be put together while there is a `problem`."""

    problem: BaseException | None = None

    @classmethod
    def _make(cls, values: Any) -> Hints:
        in_the_loop = threading.current_thread() is threading.main_thread()
        if cls.problem is not None and isinstance(values[0], np.ndarray):
            raise cls.problem if in_the_loop else MemoryError
        return cls(values)


@pytest.mark.parametrize(
    "problem", [MemoryError("no room"), KeyboardInterrupt(), UsageError("no such field")]
)
def test_a_batch_that_could_not_be_put_together_comes_next(
    teacher: ScriptedTeacher, problem: BaseException
) -> None:
    source = [(np.full((ROWS, 3), n, np.float32), Hints([np.full(ROWS, n)])) for n in range(5)]
    with reader_of(source, teacher) as reader:
        iterator = iter(reader)
        Hints.problem = problem
        try:
            for _ in range(2):
                with pytest.raises(type(problem)):
                    next(iterator)
        finally:
            Hints.problem = None
        assert reader.stats.delivered == 0
        batches = list(iterator)
        assert [hints[0][0] for _, hints, _ in batches] == [0, 1, 2, 3, 4]
        del batches
        assert reader.stats.delivered == 5
        wait_until(lambda: reader.stats.volume_bytes == 0)


def test_the_buffer_stops_at_its_upper_threshold(teacher: ScriptedTeacher) -> None:
    source = Batches(300, shape=(256,))  # 4 KiB a batch
    with reader_of(source, teacher, upper_bytes=64 << 10, lower_bytes=16 << 10) as reader:
        iterator = iter(reader)
        batches = [next(iterator)]
        wait_until(lambda: reader.stats.state == "blocked")
        stopped = reader.stats
        assert (64 << 10) < stopped.volume_bytes <= (64 << 10) + 5 * (5 << 10)
        batches += iterator
        assert reader.stats.blocked_s > 0
    check_epoch(source, batches)


@pytest.mark.parametrize(("rows", "shared_memory"), [(1, True), (3, False), (10, True)])
def test_batches_are_cut_and_joined_and_come_back_as_they_were(
    teacher: ScriptedTeacher, rows: int, shared_memory: bool
) -> None:
    sizes: list[int] = []

    def count(request: InferRequest) -> dict[str, Array]:
        sizes.append(len(request.inputs["x"]))
        if rows > ROWS:  # two are on the way: others wait behind them
            wait_until(lambda: reader.stats.yielded > 4)
        return label(request)

    teacher.behaviour = count
    source = Batches(30)
    with reader_of(
        source, teacher, limits=Limits(request_rows=rows), shared_memory=shared_memory
    ) as reader:
        for _ in range(2):
            check_epoch(source, list(reader))
    assert max(sizes) <= rows
    assert sum(sizes) >= 60 * ROWS
    if rows > ROWS:
        assert max(sizes) > ROWS, "batches that wait together travel together"


# --- errors


@pytest.mark.parametrize(
    ("wrong", "words"), [(np.zeros((0, 3), np.float32), "none"), (np.array(1.0), "scalars")]
)
def test_a_batch_without_rows_is_an_error_behind_those_before_it(
    teacher: ScriptedTeacher, wrong: Any, words: str
) -> None:
    """No teacher is asked for it, and none is ejected."""
    source = [*Batches(3), (wrong,)]
    with reader_of(source, teacher) as reader:
        iterator = iter(reader)
        for _ in range(3):
            next(iterator)
        with pytest.raises(BatchError, match=words):
            next(iterator)
        assert reader.stats.ejections == 0


def test_what_the_source_raises_is_raised_itself_behind_its_batches(
    teacher: ScriptedTeacher,
) -> None:
    error = KeyError("the source's own")

    class Source:
        def __iter__(self) -> Iterator[Any]:
            yield from Batches(5)
            raise error

    reader = reader_of(Source(), teacher)
    batches: list[Any] = []
    with pytest.raises(KeyError) as raised:
        batches.extend(reader)
    assert raised.value is error
    assert numbers_of(batches) == [*range(5)]
    pid = reader.engine_pid
    del reader, raised, batches
    error.__traceback__ = None
    gc.collect()
    wait_until(lambda: not psutil.pid_exists(pid))  # the error does not keep the reader


def test_a_wrong_feed_is_named_in_every_epoch(teacher: ScriptedTeacher) -> None:
    with reader_of(Batches(5), teacher, feeds=[7]) as reader:
        for _ in range(3):
            with pytest.raises(UsageError, match=r"field 7, a batch has \[0, 1\]"):
                list(reader)


@pytest.mark.parametrize("late", [0, 1])
def test_poison_names_the_batch_and_what_each_teacher_said(
    teacher: ScriptedTeacher, second: ScriptedTeacher, late: int
) -> None:
    """A teacher that joins after the first refusal is waited for, and asked."""
    has_refused = threading.Event()

    def refuse(request: InferRequest) -> dict[str, Array]:
        if request.inputs["x"][0, 0] == 30:
            has_refused.set()
            raise RequestRefused("too ugly")
        return label(request)

    teacher.behaviour = second.behaviour = refuse
    (teacher, second)[late].is_ready = lambda: has_refused.wait(DEADLINE_S)
    with reader_of(Batches(9), teacher, second) as reader:
        iterator = iter(reader)
        assert numbers_of(list(itertools.islice(iterator, 3))) == [0, 1, 2]
        with pytest.raises(PoisonBatch, match=r"batch 3: .*too ugly.*too ugly"):
            next(iterator)


@pytest.mark.parametrize(
    "lie",
    [
        answer_nan,
        lambda r: {"logits": np.zeros((ROWS + 1, CLASSES), np.float32)},
        lambda r: {"other": np.zeros((ROWS, CLASSES), np.float32)},
    ],
)
def test_a_teacher_that_answers_nonsense_is_not_believed(
    teacher: ScriptedTeacher, second: ScriptedTeacher, lie: Callable[[Any], Any]
) -> None:
    out = threading.Event()

    def answer_once_the_liar_is_out(request: InferRequest) -> dict[str, Array]:
        # No batch that the liar was asked is over before it has answered, so each answer counts. It
        # is asked no more than its window; after a pause it is let in again, and asked by ones.
        wait_until(lambda: out.is_set() or 1 <= reader.stats.ejections >= teacher.requests - 1)
        out.set()
        return label(request)

    teacher.behaviour, second.behaviour = lie, answer_once_the_liar_is_out
    source = Batches(30)
    with reader_of(source, teacher, second, fetches=["logits"]) as reader:
        check_epoch(source, list(reader))


@pytest.mark.parametrize("behaviour", [fail, answer_nan])
def test_who_is_ill_is_out_and_back_when_well(
    teacher: ScriptedTeacher, second: ScriptedTeacher, behaviour: Any
) -> None:
    second.behaviour = behaviour
    source = Batches(10)
    with reader_of(source, teacher, second) as reader:
        while not (ejected := reader.stats.ejected):  # it is let in again after a second
            check_epoch(source, list(reader))
        assert ejected == (second.address,)
        assert reader.stats.ejections >= 1
        second.behaviour = label
        wait_until(lambda: reader.stats.ejected == ())
        while not dict(reader.stats.served).get(second.address):
            check_epoch(source, list(reader))


def test_a_newcomer_that_never_answers_is_ejected(
    teacher: ScriptedTeacher, second: ScriptedTeacher
) -> None:
    """Its only request is a copy that no batch waits for."""
    recovers = threading.Event()

    def hang(request: InferRequest) -> dict[str, Array]:
        recovers.wait(DEADLINE_S)
        return label(request)

    second.behaviour = hang
    second.is_ready = lambda: teacher.requests > 3 and (not second.requests or recovers.is_set())
    source = Batches(10)
    try:
        with reader_of(source, teacher, second) as reader:
            while not reader.stats.ejected:
                check_epoch(source, list(reader))
            assert reader.stats.ejected == (second.address,)
            assert reader.stats.ejected_for == ("silent",)
            recovers.set()
            while not dict(reader.stats.served).get(second.address):
                check_epoch(source, list(reader))
    finally:
        recovers.set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeouts": Timeouts(wait_s=0.5)}, r" of 1 teachers .*127\.0\.0\.1:9"),
        (
            {"no_teacher": "fail", "timeouts": Timeouts(no_teacher_s=0.2)},
            r"service 's' for 0.2 s: [01] of 1 teachers (live|unreachable)",
        ),
    ],
)
def test_no_teacher_is_an_error_that_says_why(options: dict[str, Any], words: str) -> None:
    with reader_of(Batches(3), NOBODY, **options) as reader:
        wait_until(lambda: reader.stats.want > 1)  # it knows that nobody is there
        with pytest.raises(NoTeacherAvailable, match=words):
            list(reader)


@pytest.mark.parametrize("coordinator", [False, True])
def test_a_wait_is_explained_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, coordinator: bool
) -> None:
    """Nobody is there, or a coordinator does not answer: that is said within five seconds."""
    assert pipeline.EXPLAIN_EVERY_S <= 5
    monkeypatch.setattr(pipeline, "EXPLAIN_EVERY_S", 0.05)
    options: dict[str, Any] = {"teachers": [NOBODY]}
    if coordinator:
        options = {"coordinator": f"redis://{NOBODY}", "profiles": None}

    def train_until_closed() -> None:
        with pytest.raises(UsageError, match="closed"):
            list(reader)

    with DistilReader(Batches(3), service="s", **options) as reader:
        trainer = threading.Thread(target=train_until_closed)
        trainer.start()
        # That nobody is there is said first, and that the address cannot be reached soon after.
        words = NOBODY if coordinator else "[01] of 1 teachers (live|unreachable)"
        wait_until(lambda: re.search(words, caplog.text))
    trainer.join()


def test_hard_only_goes_on_without_soft_labels_and_counts() -> None:
    source = Batches(10)
    timeouts = Timeouts(no_teacher_s=0.0)
    with reader_of(source, NOBODY, no_teacher="hard_only", timeouts=timeouts) as reader:
        for _ in range(2):
            batches = list(reader)
            assert all(soft is None for _, _, soft in batches)
            check_epoch(source, [(x, ids, logits_of(x)) for x, ids, _ in batches])
        assert reader.stats.unlabelled == 20


# --- endings and deaths


def test_the_engine_is_killed_and_the_stream_goes_on(teacher: ScriptedTeacher) -> None:
    source = Batches(120)
    batches = []
    kills = [10, 60]
    with reader_of(source, teacher, upper_bytes=1000) as reader:  # some are not labelled yet
        for batch in reader:
            batches.append(batch)
            if len(batches) in kills:
                os.kill(reader.engine_pid, signal.SIGKILL)
                wait_until(lambda: reader.stats.engine_restarts == 1 + kills.index(len(batches)))
        assert reader.stats.engine_restarts == 2
    check_epoch(source, batches)


def test_close_leaves_hung_source(
    teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "CLOSE_GRACE_S", 0.2)
    never = threading.Event()

    class Hung(Batches):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()
            never.wait()

    reader = reader_of(Hung(3), teacher)
    try:
        iterator = iter(reader)
        assert numbers_of(list(itertools.islice(iterator, 3))) == [0, 1, 2]
        reader.close()
        reader.close()
        for use in (lambda: list(iterator), lambda: iter(reader)):
            with pytest.raises(UsageError, match="closed"):
                use()
    finally:
        never.set()
