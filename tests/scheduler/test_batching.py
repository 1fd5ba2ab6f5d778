"""Dynamic batching, devices and float types."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.engine.answers import common_dtype
from edl.scheduler.batching import (
    BatchRule,
    DeviceLane,
    WaitingRequest,
    decide,
    retry_at_s,
    soonest,
)


def waiting(*samples: int, at: float = 0.0) -> list[WaitingRequest]:
    return [WaitingRequest(number, "a", rows, at) for number, rows in enumerate(samples)]


def sent(rule: BatchRule, line: list[WaitingRequest], now: float = 0.0) -> list[tuple[int, ...]]:
    return [batch.requests for batch in decide(rule, line, [DeviceLane(2, 0, 0.01)], now).batches]


@st.composite
def rules(draw: st.DrawFn) -> BatchRule:
    most = draw(st.just(0) | st.integers(1, 32))
    if not most:
        return BatchRule()
    preferred = draw(st.frozensets(st.integers(1, most), max_size=3))
    return BatchRule(most, draw(st.sampled_from([0.0, 0.05, 0.3])), preferred)


Arrivals = list[tuple[float, str, int, float]]
GAPS_S = st.sampled_from([0.0, 0.0, 0.01, 0.04, 0.2])
SHAPES = st.sampled_from("aaabc")
PATIENCE_S = st.sampled_from([math.inf, math.inf, 0.02, 0.5])
ARRIVALS = st.lists(st.tuples(GAPS_S, SHAPES, st.integers(1, 40), PATIENCE_S), min_size=1)
T_TS_S = st.lists(st.sampled_from([0.0005, 0.002, 0.01]), min_size=1, max_size=3)


@dataclass
class Device:
    """A teacher in virtual time: devices take `t_t_s` for a sample, one job after another."""

    rule: BatchRule
    t_ts_s: list[float]
    now: float = 0.0
    line: list[WaitingRequest] = field(default_factory=list)
    at_lane: list[list[tuple[float, int]]] = field(default_factory=list)
    gone: dict[int, float] = field(default_factory=dict)
    batches: list[tuple[float, list[WaitingRequest]]] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at_lane = [[] for _ in self.t_ts_s]

    def lanes(self) -> list[DeviceLane]:
        return [
            DeviceLane(2 - len(jobs), sum(samples for _, samples in jobs), t_t_s)
            for jobs, t_t_s in zip(self.at_lane, self.t_ts_s, strict=True)
        ]

    def look(self) -> float:
        """Decide, carry it out, and say when to look again."""
        decision = decide(self.rule, self.line, self.lanes(), self.now)
        by_number = {request.number: request for request in self.line}
        for number in decision.expired:
            assert by_number[number].deadline_s <= self.now
            self.expired.append(number)
            del by_number[number]
        for batch in decision.batches:
            requests = [by_number.pop(number) for number in batch.requests]
            samples = sum(request.samples for request in requests)
            jobs, t_t_s = self.at_lane[batch.lane], self.t_ts_s[batch.lane]
            began = max([self.now, *(end for end, _ in jobs)])
            jobs.append((began + samples * t_t_s, samples))
            assert len(jobs) <= 2
            self.batches.append((self.now, requests))
            self.gone.update({request.number: self.now for request in requests})
        self.line = list(by_number.values())
        if any(lane.room for lane in self.lanes()):
            for request in self.line:
                assert self.now < request.arrived_s + self.rule.max_delay_s
        assert decision.look_again_s > self.now
        return decision.look_again_s

    def advance(self, until: float) -> None:
        """Let time pass, looking whenever something ends or a look was asked for."""
        again = self.look()
        while True:
            ends = [jobs[0][0] for jobs in self.at_lane if jobs]
            upcoming = min([again, *ends], default=math.inf)
            if upcoming > until:
                self.now = until
                return
            self.now = upcoming
            for jobs in self.at_lane:
                while jobs and jobs[0][0] <= self.now:
                    del jobs[0]
            again = self.look()


class TestBatching:
    def test_partial_batch_waits_for_the_delay(self) -> None:
        rule, requests = BatchRule(8, 0.5), waiting(2, 3, at=10.0)
        assert sent(rule, requests, 10.2) == []
        assert decide(rule, requests, [DeviceLane(1, 0, 0.01)], 10.2).look_again_s == 10.5
        assert sent(rule, requests, 10.5) == [(0, 1)]

    def test_full_batches_go_at_once(self) -> None:
        rule = BatchRule(8, 0.5)
        assert sent(rule, waiting(4, 4, 4)) == [(0, 1)]
        assert sent(rule, waiting(6, 4)) == [(0,)]
        assert sent(rule, waiting(20, 2)) == [(0,)]
        rule = BatchRule(16, 0.5, frozenset({4, 8}))
        assert sent(rule, waiting(2, 2, 2, 2, 2)) == [(0, 1, 2, 3)]
        assert sent(rule, waiting(2, 3)) == []

    @given(rules(), ARRIVALS, T_TS_S)
    def test_laws(self, rule: BatchRule, arrivals: Arrivals, t_ts_s: list[float]) -> None:
        world = Device(rule, t_ts_s)
        for number, (gap_s, shape, samples, patience_s) in enumerate(arrivals):
            world.advance(world.now + gap_s)
            deadline_s = world.now + patience_s
            world.line.append(WaitingRequest(number, shape, samples, world.now, deadline_s))
        world.advance(1e6)

        # Nobody starves: each was sent or, its time over, expired; once.
        assert not world.line
        assert sorted([*world.gone, *world.expired]) == list(range(len(arrivals)))
        for at, batch in world.batches:
            assert len({request.shape for request in batch}) == 1
            assert len(batch) == 1 or sum(r.samples for r in batch) <= rule.max_samples
            assert all(request.deadline_s > at for request in batch)
        # Order is kept within equal shapes; where nothing is merged, over all.
        order = [request for _, batch in world.batches for request in batch]
        for kind in "abc" if rule.max_samples else [None]:
            numbers = [r.number for r in order if kind is None or r.shape == kind]
            assert numbers == sorted(numbers)

    @given(st.integers(1, 16), st.floats(0.0, 0.2), st.integers(10, 60))
    def test_rare_shape_is_not_delayed(self, most: int, delay_s: float, rounds: int) -> None:
        """Two of the frequent shape come for each batch that the device can take; one is rare."""
        world = Device(BatchRule(most, delay_s), [0.01])
        rare = WaitingRequest(0, "rare", 1, 0.0)
        world.line.append(rare)
        for number in range(1, 2 * rounds):
            world.line.append(WaitingRequest(number, "often", most, world.now))
            world.advance(world.now + most * 0.005)
            if rare.number in world.gone:
                break
        older = [r for _, batch in world.batches for r in batch if r.shape == "often"]
        sent_at = world.gone.get(0, math.inf)
        # Only who came before it was due went before it, but for what the device already held.
        late = [r for r in older if r.arrived_s > delay_s and world.gone[r.number] < sent_at]
        assert not late


LANES = st.lists(
    st.builds(DeviceLane, st.integers(0, 2), st.integers(0, 100), st.floats(1e-4, 10.0))
)


class TestLanes:
    @given(LANES, st.integers(1, 64))
    def test_soonest(self, lanes: list[DeviceLane], samples: int) -> None:
        index = soonest(lanes, samples)
        if index is None:
            assert not any(lane.room for lane in lanes)
            return
        assert lanes[index].room > 0
        ends_s = [(lane.samples + samples) * lane.t_t_s for lane in lanes]
        assert ends_s[index] == min(
            end_s for lane, end_s in zip(lanes, ends_s, strict=True) if lane.room
        )

    @given(st.lists(st.floats(0, 1), min_size=2), st.floats(0.01, 1), st.integers(1, 9))
    def test_refused_get_other_times(
        self, gaps: list[float], interval_s: float, slots: int
    ) -> None:
        told, now = 0.0, 0.0
        for number, gap in enumerate(gaps):
            now += gap
            before, told = told, retry_at_s(now, told, interval_s, slots)
            assert now < told <= now + slots * interval_s
            if number and told < now + slots * interval_s:
                assert told >= before + interval_s * 0.999


DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


class TestPrecision:
    @pytest.mark.parametrize(("one", "other"), [*product(DTYPES, DTYPES)])
    @given(bits=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=20))
    def test_no_value_loses_a_bit(self, one: str, other: str, bits: list[int]) -> None:
        common = common_dtype(DTYPES[one], DTYPES[other])
        assert common is not None
        for dtype in (DTYPES[one], DTYPES[other]):
            values = np.repeat(np.array(bits, np.uint16), dtype.itemsize // 2).view(dtype)
            with np.errstate(invalid="ignore"):  # some NaN signal when they are looked at
                values = values[np.isfinite(values)]
            back = values.astype(common).astype(dtype)
            np.testing.assert_array_equal(back.view(np.uint8), values.view(np.uint8))

    @pytest.mark.parametrize("other", ["int32", "int64", "bool", "complex64"])
    def test_other_types_are_not_joined(self, other: str) -> None:
        assert common_dtype(DTYPES["float32"], np.dtype(other)) is None
        assert common_dtype(np.dtype(other), np.dtype(other)) == other
