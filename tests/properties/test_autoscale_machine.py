"""Laws of how many teachers a service has, which hold whatever it does, in virtual time."""

from __future__ import annotations

import random
from itertools import pairwise
from math import ceil, floor

from hypothesis import given, settings
from hypothesis import strategies as st

from edl.deploy.operator.teachers.replica_count import ReplicaBounds, count_of, room_for
from edl.scheduler.autoscale import AutoscaleConfig, AutoscaleMemory, ServiceLoad, decide
from edl.scheduler.elastic_values import Pool

SPANS = st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0, 60.0])


@st.composite
def configs(draw: st.DrawFn) -> AutoscaleConfig:
    most = draw(st.integers(0, 40))
    return AutoscaleConfig(
        min=draw(st.integers(0, most)),
        max=most,
        freeze_s=draw(SPANS),
        up_after_s=draw(SPANS),
        down_after_s=draw(SPANS),
        idle_to_zero_s=draw(SPANS),
        price_per_teacher_hour=draw(st.sampled_from([0.0, 0.1, 0.3, 2.5])),
        cost_ceiling_per_hour=draw(st.sampled_from([None, 0.0, 0.29, 0.3, 5.0, 1e9])),
    )


@st.composite
def loads(draw: st.DrawFn) -> ServiceLoad:
    return ServiceLoad(
        students=draw(st.integers(0, 3)),
        serving=draw(st.integers(0, 50)),
        starting=draw(st.integers(0, 5)),
        wanted=draw(st.integers(0, 60)),
        starving=draw(st.integers(0, 3)),
        starved_s=draw(st.floats(0, 1e6)),
        blocked_s=draw(st.floats(0, 1e6)),
        t_t_s=draw(st.sampled_from([0.0, 1e-9, 0.01, 0.1, 1e300])),
        demand_per_s=draw(st.sampled_from([0.0, 1e-9, 20.0, 400.0, 1e300])),
        recovering=draw(st.booleans()),
    )


Steps = list[tuple[float, ServiceLoad]]
#: Times are sums of eighths, which are exact: a freeze window is not over by rounding.
STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.125, 1.0, 7.0, 100.0]), loads()), min_size=1, max_size=40
)


@given(configs(), STEPS)
def test_never_above_max_or_ceiling_and_one_change_per_freeze_window(
    config: AutoscaleConfig, steps: Steps
) -> None:
    memory, now, before, changed_at = AutoscaleMemory(), 0.0, None, float("-inf")
    for span_s, view in steps:
        now += span_s
        desired, memory = decide(view, memory, now, config)
        assert 0 <= desired.count <= config.max
        ceiling, price = config.cost_ceiling_per_hour, config.price_per_teacher_hour
        assert ceiling is None or desired.count * price <= ceiling * (1 + 1e-6)
        assert desired.reason
        if before is not None and desired.count != before:
            assert now - changed_at >= config.freeze_s
            assert not (view.recovering and desired.count < before), "taken away too early"
            changed_at = now
        before = desired.count


def after(config: AutoscaleConfig, steps: Steps) -> tuple[AutoscaleMemory, float]:
    memory, now = AutoscaleMemory(), 0.0
    for span_s, view in steps:
        now += span_s
        _, memory = decide(view, memory, now, config)
    return memory, now


@given(configs(), STEPS)
def test_no_teacher_without_a_student(config: AutoscaleConfig, steps: Steps) -> None:
    memory, now = after(config, steps)
    empty = ServiceLoad(students=0, serving=memory.desired or 0)
    _, memory = decide(empty, memory, now, config)
    now += config.idle_to_zero_s + config.freeze_s
    desired, memory = decide(empty, memory, now, config)
    assert desired.count == 0
    assert decide(empty, memory, now + 1e4, config)[0].count == 0


@given(configs(), STEPS, st.integers(1, 60))
def test_a_student_that_comes_wakes_a_service(
    config: AutoscaleConfig, steps: Steps, wanted: int
) -> None:
    memory, now = after(config, steps)
    now += config.freeze_s
    desired, _ = decide(ServiceLoad(1, 0, wanted=wanted), memory, now, config)
    assert desired.count >= min(1, config.limit)


@given(configs(), STEPS, configs())
def test_new_settings_hold_at_once(
    config: AutoscaleConfig, steps: Steps, other: AutoscaleConfig
) -> None:
    memory, now = after(config, steps)
    assert decide(steps[-1][1], memory, now, other)[0].count <= other.limit


class Service:
    """Students whose true need is known, and teachers that come `start_s` after they are wanted.

    What they want and their times are measured with a noise of as much as `noise`, relative.
    """

    def __init__(self, students: int, start_s: float, noise: float, seed: int) -> None:
        self.need = 1.0
        self._students, self._start_s, self._noise = students, start_s, noise
        self._rng = random.Random(seed)
        self._teachers, self._now = 0, 0.0
        self._coming: list[tuple[float, int]] = []
        self._starved_s = self._blocked_s = 0.0
        self._memory = AutoscaleMemory()

    def counts(self, for_s: int) -> list[int]:
        seen = []
        for _ in range(for_s):
            self._now += 1.0
            desired, self._memory = decide(self._load(), self._memory, self._now, _CONFIG)
            seen.append(desired.count)
            self._follow(desired.count)
        return seen

    def _load(self) -> ServiceLoad:
        scatter = self._rng.uniform(1 - self._noise, 1 + self._noise)
        starving = self._teachers < self.need
        if starving:
            self._starved_s += self._students * (1 - self._teachers / self.need)
        else:
            self._blocked_s += self._students * (1 - self.need / self._teachers)
        return ServiceLoad(
            self._students,
            self._teachers,
            wanted=max(self._students, ceil(self.need * scatter)),
            starving=self._students if starving else 0,
            starved_s=self._starved_s,
            blocked_s=self._blocked_s,
            t_t_s=0.05,
            demand_per_s=self.need * scatter / 0.05,
        )

    def _follow(self, count: int) -> None:
        if count < self._teachers:
            self._teachers, self._coming = count, []
        missing = count - self._teachers - sum(number for _, number in self._coming)
        if missing > 0:
            self._coming.append((self._now + self._start_s, missing))
        self._teachers += sum(number for at, number in self._coming if at <= self._now)
        self._coming = [(at, number) for at, number in self._coming if at > self._now]


_CONFIG = AutoscaleConfig(max=500)
NEEDS = st.floats(0.3, 200)
#: An example is 50 minutes, second by second.
few = settings(max_examples=settings().max_examples // 10)


@few
@given(
    NEEDS,
    NEEDS,
    st.integers(1, 4),
    st.sampled_from([1.0, 5.0, 30.0]),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 1 << 30),
)
def test_it_settles_at_what_is_needed_and_noise_moves_little(
    need: float, other: float, students: int, start_s: float, noise: float, seed: int
) -> None:
    service = Service(students, start_s, noise, seed)
    for true in (need, other):
        service.need = true
        settled = service.counts(600)[-1]
        counts = service.counts(900)
        if noise:
            assert floor(true) <= min(counts)
            assert max(counts) <= max(students, ceil(1.3 * true / 0.9))
            assert sum(one != two for one, two in pairwise(counts)) <= 2, "it flaps"
        else:
            assert true <= settled <= max(students, ceil(true * 1.25), ceil(true / 0.9))
            assert set(counts) == {settled}


numbers = st.integers(0, 60)
maybe = st.none() | numbers


@st.composite
def wishes(draw: st.DrawFn) -> ReplicaBounds:
    least = draw(numbers)
    return ReplicaBounds(draw(maybe), least, least + draw(numbers), draw(st.booleans()))


@given(wishes(), maybe, maybe, maybe)
def test_it_is_what_was_asked_for_within_what_bounds_it(
    wish: ReplicaBounds, desired: int | None, last: int | None, room: int | None
) -> None:
    found = count_of(wish, desired, last, room)
    if wish.by_hand is not None:
        assert (found.count, found.cause) == (wish.by_hand, "ByHand")
        return
    assert 0 <= found.count <= max(wish.most, last or 0)
    if desired is None:
        assert found.cause == "NoNumber"
        lowest = 0 if last == 0 and wish.to_zero else wish.least
        assert found.count == min(max(last or 0, lowest), wish.most)
    elif found.cause == "FollowsCoordinator":
        lowest = wish.least if desired > 0 or not wish.to_zero else 0
        assert lowest <= found.count <= wish.most
        assert found.count == desired or desired < lowest or desired > wish.most
    else:
        assert room is not None
        assert found.count == max(room, last or 0)


@given(wishes(), numbers, numbers, numbers)
def test_room_keeps_from_growing_and_takes_nothing_away(
    wish: ReplicaBounds, desired: int, last: int, room: int
) -> None:
    free, bound = count_of(wish, desired, last), count_of(wish, desired, last, room)
    assert bound.count <= free.count
    if free.count <= last:
        assert bound.count == free.count


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(0.01, 10), st.floats(0.1, 1.0))
def test_as_many_as_there_is_room_for_fit(
    capacity: float, reserved: float, need: float, max_load: float
) -> None:
    pool = Pool({"cpu": capacity}, {"cpu": reserved})
    room = room_for(pool, {"cpu": need, "gpu": 0.0}, max_load)
    assert room is not None
    if room:
        assert reserved + room * need <= capacity * max_load + 1e-6 * (1 + need)
    assert reserved + (room + 1) * need > capacity * max_load - 1e-6


def test_decimal_requests_fill_a_machine_and_unknown_kinds_have_no_room() -> None:
    assert room_for(Pool({"cpu": 1.0}), {"cpu": 0.1}, 1.0) == 10
    assert room_for(Pool({"cpu": 1.0}), {"gpu": 1.0}, 1.0) == 0
    assert room_for(Pool({"cpu": 1.0}), {}, 1.0) is None
