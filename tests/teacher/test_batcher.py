"""Requests of many threads at devices that a test holds: merged, bounded, expired, answered."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl.errors import (
    DeadlineExceeded,
    EdlError,
    RequestRefused,
    RetryableError,
)
from edl.proto.arena import Array
from edl.scheduler.batching import BatchRule
from edl.teacher.batcher import READ_AHEAD
from edl.teacher.refusals import Overloaded
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.batcher_bench import DOUBLE, WAIT_S, bench
from edl.tests.teacher.fakes import SPEC, array


def test_each_request_goes_alone_where_nothing_is_merged() -> None:
    with bench() as b:
        x = array(3, 4)
        asked = [b.ask(x + i) for i in range(4)]
        for _ in asked:
            b.pool.go.release()
        for i, future in enumerate(asked):
            np.testing.assert_array_equal(future.result(WAIT_S), (x + i) * 2)
        assert b.pool.runs == [(0, [3])] * 4
        assert b.pool.released == 4


def test_the_device_has_its_next_job_while_it_works_and_no_more() -> None:
    with bench() as b:
        for _ in range(5):
            b.ask(array(2, 4))
        wait_for(lambda: b.pool.at_device == READ_AHEAD == 2)
        b.pool.go.release()
        wait_for(lambda: len(b.pool.runs) == 3)
        assert b.pool.at_device == READ_AHEAD


def test_requests_that_wait_are_merged_and_each_has_its_own_rows() -> None:
    with bench(rule=BatchRule(8)) as b:
        first = [b.ask(array(1, 4)) for _ in range(2)]  # these go at once, and fill the device
        sizes = [3, 2, 3, 1]
        merged = [b.ask(array(rows, 4) + rows) for rows in sizes]
        for _ in range(6):
            b.pool.go.release()
        for future, rows in zip(merged, sizes, strict=True):
            np.testing.assert_array_equal(future.result(WAIT_S), (array(rows, 4) + rows) * 2)
        for future in first:
            future.result(WAIT_S)
        assert sorted(sizes for _, sizes in b.pool.runs) == [[1], [1], [1], [3, 2, 3]]
        assert b.meter.batches == [1, 1, 8, 1]
        assert len(b.meter.waits_s) == 6
        assert b.pool.released == 6


def test_other_dtypes_and_trailing_shapes_are_never_merged() -> None:
    with bench(rule=BatchRule(64)) as b:
        for _ in range(2):
            b.ask(array(1, 4))
        kinds = [array(1, 4), array(1, 5), array(1, 4, dtype="f8"), array(1, 4)]
        asked = [b.ask(x) for x in kinds]
        for _ in range(6):
            b.pool.go.release()
        for future, x in zip(asked, kinds, strict=True):
            np.testing.assert_array_equal(future.result(WAIT_S), x * 2)
        assert sorted(sizes for _, sizes in b.pool.runs[2:]) == [[1], [1], [1, 1]]


def test_who_waits_for_others_goes_when_the_delay_is_over() -> None:
    with bench(rule=BatchRule(8, 0.05)) as b:
        b.pool.go.release()
        began = time.monotonic()
        b.label(array(2, 4))
        assert time.monotonic() - began >= 0.05
        assert b.meter.waits_s[0] >= 0.05


def test_a_preferred_size_does_not_wait() -> None:
    with bench(rule=BatchRule(64, 30.0, frozenset({4}))) as b:
        for _ in range(2):
            b.ask(array(2, 4))
        wait_for(lambda: b.pool.runs == [(0, [2, 2])])


def test_one_more_than_the_slots_is_refused_with_a_time_to_come_back() -> None:
    with bench(0.01, slots=3, clock=lambda: 0.0) as b:
        for _ in range(3):
            b.ask(array(8, 4))
        hints = []
        for _ in range(3):
            with pytest.raises(Overloaded, match="all 3 slots") as caught:
                b.label(array(8, 4))
            assert caught.value.retry_after_s is not None
            hints.append(caught.value.retry_after_s)
        # 8 samples of 10 ms free a slot each 80 ms; each of the refused is given one of them.
        assert hints == pytest.approx([0.08, 0.16, 0.24])
        b.pool.go.release(3)
        for future in b.asked:
            future.result(WAIT_S)
        b.pool.go.release()
        b.label(array(8, 4))


def test_an_expired_request_leaves_the_line_and_is_not_computed() -> None:
    with bench() as b:
        for _ in range(2):
            b.ask(array(1, 4))
        late = b.ask(array(5, 4), time.monotonic() + 0.05)
        with pytest.raises(DeadlineExceeded):
            late.result(WAIT_S)
        b.pool.go.release(2)
        for future in b.asked[:2]:
            future.result(WAIT_S)
        b.pool.go.release()
        b.label(array(1, 4))
        assert b.pool.backend.runs == [1] * 3
        assert b.meter.expired_count == 1


def test_one_that_nobody_waits_for_leaves_the_line_and_its_slot() -> None:
    with bench(slots=3) as b:
        for _ in range(2):
            b.ask(array(1, 4))
        given_up = b.batcher.submit({"x": array(5, 4)}, DOUBLE)
        with pytest.raises(Overloaded):
            b.label(array(1, 4))
        assert given_up.cancel()
        last = b.ask(array(1, 4))
        b.pool.go.release(3)
        for future in [*b.asked[:2], last]:
            future.result(WAIT_S)
        assert b.pool.backend.runs == [1] * 3
        assert b.meter.expired_count == 1


def test_one_at_a_device_keeps_its_slot_though_nobody_waits_for_it() -> None:
    with bench(slots=1) as b:
        labels = b.batcher.submit({"x": array(1, 4)}, DOUBLE)
        assert not labels.cancel()
        with pytest.raises(Overloaded):
            b.label(array(1, 4))
        b.pool.go.release()
        labels.result(WAIT_S)
        with pytest.raises(Overloaded):  # they lie in memory that is the slot's
            b.label(array(1, 4))
        labels.result().release()
        b.pool.go.release()
        b.label(array(1, 4))


def test_nor_is_one_that_expires_at_the_device_though_others_of_its_batch_are() -> None:
    now_s = 0.0
    with bench(rule=BatchRule(4, 30.0), clock=lambda: now_s) as b:
        first = b.ask(array(4, 4))
        late, other = b.ask(array(2, 4), 0.5), b.ask(array(2, 4) + 1)
        wait_for(lambda: b.pool.at_device == 2)
        now_s = 0.6
        b.pool.go.release(2)
        with pytest.raises(DeadlineExceeded):
            late.result(WAIT_S)
        np.testing.assert_array_equal(other.result(WAIT_S), (array(2, 4) + 1) * 2)
        first.result(WAIT_S)
        assert sorted(b.pool.backend.runs) == [2, 4]
        assert b.meter.expired_count == 1


def test_a_bad_request_of_a_batch_is_the_only_one_refused() -> None:
    def picky(inputs: dict[str, Array]) -> dict[str, Array]:
        if (inputs["x"] < 0).any():
            raise RequestRefused("below zero")
        return {"double": inputs["x"] * 2, "sum": inputs["x"].sum(axis=1)}

    with bench(rule=BatchRule(4, 30.0)) as b:
        b.pool.backend.function = picky  # type: ignore[assignment]
        good, bad = b.ask(array(2, 4)), b.ask(array(2, 4) - 9)
        b.pool.go.release()
        with pytest.raises(RequestRefused, match="below zero"):
            bad.result(WAIT_S)
        np.testing.assert_array_equal(good.result(WAIT_S), array(2, 4) * 2)


@pytest.mark.parametrize("error", [RetryableError("it ended"), MemoryError("no memory")])
def test_what_happens_to_a_job_happens_to_all_its_requests_and_to_no_other(
    error: Exception,
) -> None:
    with bench(rule=BatchRule(4, 30.0)) as b:
        b.pool.error = error
        lost = [b.ask(array(2, 4)), b.ask(array(2, 4))]
        b.pool.go.release()
        for future in lost:
            with pytest.raises(RetryableError, match=str(error)):
                future.result(WAIT_S)
        b.pool.error = None
        b.pool.go.release()
        b.label(array(4, 4))


def test_jobs_go_where_they_are_done_first() -> None:
    with bench(0.01, 0.015) as b:
        for _ in range(4):
            b.ask(array(2, 4))
            wait_for(lambda: len(b.pool.runs) == len(b.asked))  # in the order of the decisions
        wait_for(lambda: b.pool.at_device == 4)
        assert sorted(lane for lane, _ in b.pool.runs) == [0, 0, 1, 1]
        assert b.pool.runs[:2] == [(0, [2]), (1, [2])]


def test_a_device_that_restarts_gets_nothing_and_the_other_goes_on() -> None:
    with bench(0.01, 0.01) as b:
        b.pool.alive[0] = False
        b.batcher.devices_changed()
        for _ in range(3):
            b.ask(array(1, 4))
        wait_for(lambda: b.pool.at_device == 2)
        assert [lane for lane, _ in b.pool.runs] == [1, 1]
        b.pool.alive[0] = True
        b.batcher.devices_changed()
        wait_for(lambda: [lane for lane, _ in b.pool.runs] == [1, 1, 0])


def test_without_any_device_nobody_waits() -> None:
    with bench() as b:
        held = [b.ask(array(1, 4)) for _ in range(3)]
        b.pool.alive[0] = False
        b.batcher.devices_changed()
        with pytest.raises(RetryableError, match="restarting"):
            held[2].result(WAIT_S)
        with pytest.raises(RetryableError, match="restarting"):
            b.label(array(1, 4))


def test_a_stop_ends_who_waits() -> None:
    with bench() as b:
        held = [b.ask(array(1, 4)) for _ in range(3)]
        b.batcher.stop()
        with pytest.raises(RetryableError, match="has left"):
            held[2].result(WAIT_S)


def test_one_that_merges_says_that_its_bits_depend_on_others() -> None:
    with bench() as alone, bench(rule=BatchRule(8)) as merging, bench(rule=BatchRule(9)) as more:
        ids = [b.batcher.require_loaded().spec.numerics_id for b in (alone, merging, more)]
    assert ids[0] == SPEC.numerics_id
    assert ids[1].startswith("merged-")
    assert len(set(ids)) == 3


@pytest.mark.parametrize("end", ["labels", "joint error", "own error", "expired", "restarting"])
def test_a_request_is_let_go_with_its_answer(end: str) -> None:
    """Its memory is not left to the garbage collector, which comes when it wants."""
    with bench(rule=BatchRule(8)) as b:
        x = array(2, 4)
        gone = weakref.ref(x)
        deadline_s = time.monotonic() - 1 if end == "expired" else None
        if end == "joint error":
            b.pool.error = RequestRefused("no such word")
        if end == "own error":
            b.pool.backend.function = _refusing
        b.pool.alive = [end != "restarting"]
        b.pool.go.release()
        gc.collect()
        gc.disable()
        try:
            try:
                b.label(x, deadline_s)
            except EdlError:
                assert end != "labels"
            b.pool.error = None  # the test's own hold on it
            del x
            wait_for(lambda: gone() is None)  # the device's thread lets go a moment later
        finally:
            gc.enable()


def _refusing(_: object) -> dict[str, Array]:
    raise RequestRefused("no such word")


def test_many_threads_get_each_their_own() -> None:
    """A storm of sizes and shapes at two devices that answer at once."""
    with bench(0.001, 0.002, slots=64, rule=BatchRule(16, 0.002, frozenset({8}))) as b:
        b.pool.go.release(10_000)

        def work(seed: int) -> int:
            rng = np.random.default_rng(seed)
            for _ in range(25):
                x = rng.random((rng.integers(1, 12), rng.integers(4, 6)), dtype=np.float32)
                np.testing.assert_array_equal(b.label(x), x * 2)
            return 25

        with ThreadPoolExecutor(32) as threads:
            assert sum(threads.map(work, range(32))) == 800
        assert b.pool.released == 800
        assert all(size <= 16 for size in b.meter.batches)
        assert len(b.meter.batches) < 800, "some were merged"
