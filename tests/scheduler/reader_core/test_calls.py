"""Calls for labels outside the training loop, in virtual time: order, and how many teachers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.scheduler.reader_core import events as ev
from edl.scheduler.reader_core import instructions as do
from edl.scheduler.stream_stats import RATE_WINDOW_S, StreamStats

from ..ledger.invariants import check
from .test_core import NBYTES, ROWS, World

TICK_S = 0.01
#: Device time of a request.
DEVICE_S = 0.2


class Callers(World):
    """Teachers that label one request after the other, as many as are wanted."""

    def __init__(self, most: int = 16, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.most = most
        self.waiting: list[int] = []  # numbers of calls
        self.ready_at: dict[str, float] = {}  # when each teacher has labelled its first request
        self.wants: list[int] = []
        self.assign("t0")

    def call(self) -> None:
        self.tell(ev.Called(ROWS, ROWS))
        self.tell(ev.Queued(self.pulled, NBYTES, ROWS, is_call=True))
        self.waiting.append(self.pulled)
        self.pulled += 1

    def step(self) -> None:
        self.now += TICK_S
        for name in sorted({ask.send.teacher for ask in self.asked}):
            if self.ready_at.setdefault(name, self.now + DEVICE_S) <= self.now:
                del self.ready_at[name]
                self.answer_of(name)
        self.tell(ev.Tick())
        want = min(self.core.decision.want, self.most)
        if want != len(self.links):
            known = {f"t{number}" for number in range(len(self.links))}
            self.assign(*(f"t{number}" for number in range(want)), ready=False)
            for name in self.links.keys() - known:
                self.tell(ev.Probed(name, self.links[name]))
            self.links = {name: self.links[name] for name in sorted(self.links)[:want]}
        self.wants.append(want)

    def answer_of(self, name: str) -> None:
        ask = next(one for one in self.asked if one.send.teacher == name)
        self.asked.remove(ask)
        said = self.tell(ev.AnswerCame(name, ask.link, ask.send.request, ROWS, 8, DEVICE_S, ROWS))
        for one in said:
            if isinstance(one, do.BatchLabelled):
                self.tell(ev.Released(one.batch))
                self.tell(ev.CallEnded(one.batch, ROWS))
                self.waiting.remove(one.batch)

    def run(self, seconds: float, arrivals: Iterator[int]) -> None:
        for _ in range(round(seconds / TICK_S)):
            for _ in range(next(arrivals)):
                self.call()
            self.step()


def each(ticks: int) -> Iterator[int]:
    """One call in so many ticks."""
    while True:
        yield 1
        yield from [0] * (ticks - 1)


def test_n_is_that_of_the_rate_of_the_calls() -> None:
    callers = Callers()
    callers.run(20.0, each(5))  # 20 calls in a second: 4 teachers of 5 calls in a second
    assert callers.core.decision.needed == 4
    callers.run(100.0, each(5))  # those that helped with the first calls are returned
    assert 4 <= callers.wants[-1] <= 5
    assert len(callers.waiting) < 8, "they keep up"


def test_callers_that_wait_for_each_label_get_teachers_while_that_helps() -> None:
    callers = Callers(most=4)
    for _ in range(3000):
        while len(callers.waiting) < 20:
            callers.call()
        callers.step()
    assert callers.wants[-1] == 4
    assert callers.core.memory.starved_s > 0


def test_teachers_are_returned_when_the_calls_end() -> None:
    callers = Callers()
    callers.run(20.0, each(5))
    callers.run(120.0, iter(lambda: 0, 1))
    assert callers.wants[-1] == 1
    assert callers.core.calls == 0


def test_a_burst_now_and_then_is_no_demand_for_many_teachers() -> None:
    """30 calls at once each 10 s are 3 in a second: less than one teacher labels."""
    callers = Callers()
    for _ in range(6):
        for _ in range(30):
            callers.call()
        callers.run(10.0, iter(lambda: 0, 1))
    assert callers.core.decision.needed <= 2


def test_calls_do_not_count_as_the_next_batch_of_the_loop() -> None:
    callers = Callers()
    callers.queue()
    for _ in range(3):
        callers.call()
    callers.tell(ev.LoopWaiting())
    assert callers.core.lacks_labels
    first = callers.asked[0]
    assert first.send.spans[0].batch == 0
    callers.tell(ev.AnswerCame("t0", first.link, first.send.request, ROWS, 8, 0.1, ROWS))
    assert not callers.core.lacks_labels


def test_a_labelled_call_is_no_batch_for_a_loop_that_takes_any() -> None:
    callers = Callers(ordered=False)
    callers.call()
    callers.tell(ev.LoopWaiting())
    (ask,) = callers.asked
    callers.tell(ev.AnswerCame("t0", ask.link, ask.send.request, ROWS, 8, 0.1, ROWS))
    assert callers.core.lacks_labels
    callers.queue()
    callers.tell(ev.AnswerCame("t0", ask.link, callers.asked[-1].send.request, ROWS, 8, 0.1, ROWS))
    assert not callers.core.lacks_labels


def test_calls_take_no_room_from_the_loop() -> None:
    """However many and large they are, the loop may pull as many batches as without them."""
    callers = Callers()
    callers.queue()
    callers.tell(ev.Tick())
    before = callers.core.decision.pull
    assert before > 0
    for _ in range(50):
        callers.call()
    callers.tell(ev.Called(ROWS, ROWS))
    callers.tell(ev.Queued(callers.pulled, 1 << 40, ROWS, is_call=True))
    callers.tell(ev.Tick())
    assert callers.core.decision.pull == before
    load = callers.core.ledger.load
    assert (load.unlabelled, load.unlabelled_calls) == (52, 51)
    assert load.queued_calls == load.queued
    callers.tell(ev.Tick(awaiting_lookup=60, calls_awaiting_lookup=60))
    assert callers.core.decision.pull == before
    first = callers.asked[1]
    callers.tell(ev.AnswerCame("t0", first.link, first.send.request, ROWS, 8, 0.1, ROWS))
    assert callers.core.ledger.volume_bytes == 0
    check(callers.core.ledger)


def test_calls_without_labels_are_no_samples_taken() -> None:
    callers = Callers()
    callers.call()
    callers.tell(ev.DeliverUnlabelled(0))
    callers.tell(ev.Released(0))
    callers.tell(ev.CallEnded(0, 0))
    core = callers.core
    assert (core.calls, core.stats.batches_taken, core.stats.samples_taken) == (0, 0, 0)
    assert core.stats.samples_per_s(callers.now) == 0
    check(core.ledger)


def test_a_rate_is_forgotten_when_the_calls_end() -> None:
    stats = StreamStats()
    for _ in range(20):
        stats.step(0.5, 10)
    for number in range(100):
        stats.called(3, number * 0.1)
    assert not stats.tick(10.0)
    assert stats.t_s_s == pytest.approx(1 / 50, rel=0.05)
    assert stats.tick(10.0 + 2 * RATE_WINDOW_S)
    assert stats.t_s_s == pytest.approx(0.05)
    assert not stats.tick(10.0 + 2 * RATE_WINDOW_S)


def test_slow_first_steps_are_forgotten_whatever_calls_there_are() -> None:
    stats = StreamStats()
    for number in range(8):
        stats.step(100.0, 10)
        stats.called(1, float(number))
    for _ in range(8):
        stats.step(0.5, 10)
    stats.tick(100.0)
    assert stats.t_s_s == pytest.approx(0.05)


def test_the_rates_of_the_loop_and_of_calls_add_up() -> None:
    stats = StreamStats()
    for _ in range(20):
        stats.step(0.5, 10)  # 20 samples in a second
    assert stats.t_s_s == pytest.approx(0.05)
    now = 0.0
    while now < 4 * RATE_WINDOW_S:
        stats.called(3, now)
        now += 0.1  # 30 samples in a second
    assert stats.t_s_s == pytest.approx(1 / 50, rel=0.02)
    stats.pulled(1.0, 10)  # the source yields 10 samples in a second
    assert stats.pace_s(stats.t_s_s) == pytest.approx(1 / 40, rel=0.02)
    assert stats.pace_s(None) is None
