"""What the training loop took is told to the engine behind its back: each batch, and in its order.

The engine is the test's own: the other end of the channel.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from math import inf
from typing import Any
from unittest import mock

import numpy as np
import pytest

from edl.distill_reader import engine_client
from edl.distill_reader.batch_stream import BatchStream
from edl.distill_reader.calls import PendingCall
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine_client import MAX_DEATHS, EngineClient
from edl.distill_reader.ring import Ring
from edl.distill_reader.saved_state import StreamPosition
from edl.distill_reader.structure import take_apart
from edl.proto.arena import Arena
from edl.proto.channel import Channel
from edl.runtime.errors import EngineLost, LabelTimeout, MemoryRefused, ProcessFailed
from edl.runtime.supervise import Command
from edl.tests.waiting import DEADLINE_S, wait_until

X = np.arange(6.0).reshape(3, 2)
SOFT = np.ones((3, 1), np.float32)
#: No announcement is so long in coming.
LONG_S = 1e6


class Engines:
    """Stands where `supervise.start` does: each that is started is an end of a channel."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self._ends: list[tuple[Channel, Arena]] = []

    def start(self, command: Command, *, echo: object = None) -> Engines:
        channel, _, labels = (os.dup(fd) for fd in command.pass_fds)
        self._ends.append((Channel.attach(channel), Arena.attach(labels)))
        return self

    pid, returncode = 0, 0

    def stop(self, grace_s: float = 0.0) -> None:
        """As of a process."""

    def tail(self, lines: int) -> list[str]:
        return []

    def hear(self) -> list[tuple[Any, ...]]:
        """What has come since: kinds, with numbers where they have one."""
        messages = self._ends[-1][0].received() or []
        self.heard += messages
        return [(m["kind"], m["number"]) if "number" in m else (m["kind"],) for m in messages]

    def hear_until(self, kind: str) -> list[tuple[Any, ...]]:
        """What has come since, until a message of this kind."""
        said = self.hear()
        wait_until(lambda: said.extend(self.hear()) or any(one[0] == kind for one in said))  # type: ignore[func-returns-value]
        return said

    def label(self, number: int, *, released: bool = True) -> int:
        """Say that a batch is labelled, and may be taken; the offset of the labels."""
        channel, arena = self._ends[-1]
        record = arena.put([SOFT])
        channel.send("labelled", number=number, names=["soft"], record=record, makers={})
        if released:
            channel.send("release", numbers=[number])
        return record.offset

    def say(self, kind: str, **fields: Any) -> None:
        self._ends[-1][0].send(kind, **fields)

    def die(self) -> None:
        self._ends[-1][0].close()

    def close(self) -> None:
        for channel, arena in self._ends:
            channel.close()
            arena.close()


class Side:
    """The trainer's side without a puller; what is to be done later is done when the test says."""

    def __init__(self) -> None:
        self.stream, self.ring = BatchStream(), Ring()
        self.later: deque[Callable[[], None]] = deque()
        config = ReaderConfig("s", teachers=("h:1",))
        self.engine = EngineClient(config, self.stream, self.ring, lambda: None, self.later.append)
        self.epoch = self.stream.begin()
        self.numbers = 0

    def pull(self) -> int:
        record, views = self.ring.put([X])
        parts = take_apart(X)._replace(arrays=())
        pulled = self.stream.add(self.epoch, record, views, parts, StreamPosition(self.numbers, {}))
        assert pulled is not None
        self.engine.announce(pulled, self.epoch)
        self.numbers += 1
        return pulled.number

    def call(self, *, fields: int = 1, timeout_s: float = inf) -> PendingCall:
        """A call that is not told to the engine yet."""
        record, views = self.ring.put([X] * fields)
        parts = take_apart((X,) * fields)._replace(arrays=())
        deadline = time.monotonic() + timeout_s
        return PendingCall(Future(), record, views, parts, X.nbytes, timeout_s, deadline)

    def take(self) -> Any:
        labelled = self.stream.next(self.epoch, DEADLINE_S)
        assert labelled is not None
        assert self.stream.take(self.epoch, labelled)
        self.engine.taken(labelled.ring_batch.number, labelled.ring_batch.parts.samples, 0.5)
        return labelled.batch()

    def restart(self, engines: Engines) -> None:
        """Have the engine die, and wait for the next one."""
        restarts = self.engine.restarts
        engines.die()
        wait_until(lambda: self.engine.restarts == restarts + 1)

    def do_what_is_left(self) -> None:
        while self.later:
            self.later.popleft()()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    engines = Engines()
    monkeypatch.setattr(engine_client, "start", engines.start)
    monkeypatch.setattr(engine_client, "SOON_S", LONG_S)
    monkeypatch.setattr(engine_client, "REPLY_TIMEOUT_S", LONG_S)
    yield engines
    engines.close()


@pytest.fixture
def side(engines: Engines) -> Iterator[Side]:
    side = Side()
    assert engines.hear() == [("start",)]
    yield side
    side.engine.close()
    side.ring.close()


@pytest.mark.parametrize("kind", ["batch", "no announcement", "ended", "late", "waiting", "reset"])
def test_reports_wait_for_the_next_announcement_while_one_is_expected(
    engines: Engines, side: Side, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for _ in range(2):
        engines.label(side.pull())
    engines.hear()
    side.take()
    assert not side.later
    match kind:
        case "batch":
            side.pull()
        case "no announcement":
            side.engine.expect_no_announcement()
        case "ended":
            side.engine.source_ended(side.epoch)
        case "waiting":
            side.engine.waiting()
        case "reset":
            side.engine.reset(side.stream.epoch, 2, 1)
        case "late":  # the source takes its time: the next message from the engine will do
            monkeypatch.setattr(engine_client, "SOON_S", -1.0)
            engines.say("allow", limit=7)
    news: list[tuple[Any, ...]] = [] if kind in ("no announcement", "late") else [(kind,)]
    if kind == "batch":
        news = [("batch", 2)]
    assert engines.hear_until("taken") == [("taken", 0), *news]
    side.take()
    side.do_what_is_left()
    waits = kind in ("batch", "waiting", "reset")
    assert engines.hear() == ([] if waits else [("taken", 1)])


def test_batches_taken_during_a_report_are_not_forgotten(engines: Engines, side: Side) -> None:
    count = 200
    for _ in range(count):
        engines.label(side.pull())
    engines.say("stats", request=0)
    wait_until(lambda: side.engine.stats)  # all is received, or that thread would report as well
    side.engine.expect_no_announcement()
    side.take()
    side.take()
    assert len(side.later) == 1, "one errand for all that was taken"
    ends = threading.Event()

    def tell() -> None:
        while not ends.is_set() or side.later:
            side.do_what_is_left()

    teller = threading.Thread(target=tell)
    teller.start()
    for _ in range(2, count):
        side.take()
    ends.set()
    told = list[Any]()
    wait_until(lambda: told.extend(engines.hear()) or ("taken", count - 1) in told)  # type: ignore[func-returns-value]
    teller.join(DEADLINE_S)
    assert [one for one in told if one[0] == "taken"] == [("taken", n) for n in range(count)]


def test_labels_that_are_withdrawn_are_the_engines_again(engines: Engines, side: Side) -> None:
    first, second, third = (side.pull() for _ in range(3))
    side.engine.expect_no_announcement()
    void = engines.label(second, released=False)
    engines.say("withdraw", number=second)
    engines.label(first)
    side.take()
    side.do_what_is_left()
    engines.hear_until("taken")
    assert void in engines.heard[-1]["free"]
    engines.label(third, released=False)
    wait_until(lambda: side.stream.ready == 1)
    assert side.stream.next(side.epoch, 0) is None, "it is not released"


def test_a_new_engine_hears_of_no_batch_that_was_taken(engines: Engines, side: Side) -> None:
    first, second, third, fourth = (side.pull() for _ in range(4))
    side.engine.expect_no_announcement()
    engines.label(first)
    engines.label(second)
    engines.label(fourth, released=False)
    side.take()
    wait_until(lambda: side.stream.ready == 2)
    side.restart(engines)
    said = engines.hear_until("resumed")
    known = [("restored", second), ("batch", third), ("restored", fourth)]
    assert said[:5] == [("start",), *known, ("resumed",)]
    released = [one["released"] for one in engines.heard if one["kind"] == "restored"]
    assert released == [True, False]
    side.take()
    side.do_what_is_left()
    told = [one for one in [*said[5:], *engines.hear()] if one[0] == "taken"]
    assert told == [("taken", second)], "the first one it does not know"


def test_a_new_engine_hears_that_the_loop_waits(engines: Engines, side: Side) -> None:
    side.pull()
    assert side.stream.next(side.epoch, 0) is None
    side.restart(engines)
    engines.hear_until("resumed")
    (resumed,) = (message for message in engines.heard if message["kind"] == "resumed")
    assert resumed["waiting"]


@pytest.mark.parametrize("every_time", [False, True])
def test_engines_that_end_for_lack_of_memory_are_that_error(
    engines: Engines, side: Side, every_time: bool
) -> None:
    side.pull()
    for _ in range(MAX_DEATHS - 1):
        engines.say("ending", error="MemoryRefused", text="no more than 4 MiB")
        side.restart(engines)
    if every_time:
        engines.say("ending", error="MemoryRefused", text="no more than 4 MiB")
    engines.die()
    with pytest.raises(MemoryRefused if every_time else EngineLost, match=r"4 MiB|died 5 times"):
        side.stream.next(side.epoch, DEADLINE_S)


def test_nobody_waits_for_a_new_engine_to_read(engines: Engines, side: Side) -> None:
    """What it has to be told is more than its socket takes before it reads."""
    batches = 3000
    for _ in range(batches):
        side.pull()
        engines.hear()
    side.engine.expect_no_announcement()
    engines.label(0)
    side.restart(engines)

    def work() -> None:
        side.take()
        side.do_what_is_left()
        side.engine.waiting()

    loop = threading.Thread(target=work, daemon=True)
    loop.start()
    loop.join(DEADLINE_S)
    assert not loop.is_alive(), "the training loop stands still"
    told = [("start",), ("restored", 0), *(("batch", number) for number in range(1, batches))]
    behind = [("resumed",), ("stats_request", 0), ("taken", 0), ("waiting",)]
    assert engines.hear_until("waiting") == told + behind


def test_a_call_is_cancelled_after_it_was_announced(
    engines: Engines, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is late before its announcement is made."""
    call, announcement = side.call(timeout_s=0.0), side.engine._announcement  # noqa: SLF001
    dropped = list[int]()

    def announce_late(batch: Any) -> Any:
        wait_until(lambda: bool(side.later) or bool(dropped))
        return announcement(batch)

    def send_at_once(*messages: dict[str, Any]) -> None:
        send(*messages)
        dropped.extend(one["number"] for one in messages if one["kind"] == "cancel")

    send = side.engine._send  # noqa: SLF001
    monkeypatch.setattr(side.engine, "_announcement", announce_late)
    monkeypatch.setattr(side.engine, "_send", send_at_once)
    side.engine.call(call)
    side.do_what_is_left()
    assert engines.hear() == [("call", call.number), ("cancel", call.number)]


def test_nobody_waits_for_a_hanging_engine_to_read_the_calls_again(
    engines: Engines, side: Side
) -> None:
    """They are more than its socket takes; whoever waited with the lock would keep `close`."""
    for _ in range(1000):
        side.engine.call(side.call(fields=6))
        engines.hear()
    loop = threading.Thread(target=side.engine.reset, args=(side.epoch, 2, 1), daemon=True)
    loop.start()
    loop.join(DEADLINE_S)
    is_stuck = loop.is_alive()
    sender = threading.Thread(target=side.do_what_is_left, daemon=True)
    sender.start()
    engines.hear_until("reset")
    loop.join(DEADLINE_S)
    assert not is_stuck


def test_calls_have_deadlines_after_the_system_has_refused_a_thread(
    engines: Engines, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse = mock.Mock(side_effect=RuntimeError("can't start new thread"))
        patch.setattr(threading.Thread, "start", refuse)
        refused = side.call()
        with pytest.raises(ProcessFailed, match="can't start new thread"):
            side.engine.call(refused)
        side.engine.calls.forget(refused)
    late = side.call(timeout_s=0.0)
    side.engine.call(late)
    with pytest.raises(LabelTimeout):
        late.future.result(DEADLINE_S)


def test_a_callback_that_exits_ends_no_thread(engines: Engines, side: Side) -> None:
    call = side.call()
    side.engine.call(call)
    call.future.add_done_callback(lambda _: sys.exit("in a thread that others need"))
    engines.label(call.number)
    engines.label(side.pull())
    assert side.stream.next(side.epoch, DEADLINE_S) is not None


@pytest.mark.parametrize("dies", [False, True])
def test_requested_stats_are_awaited(engines: Engines, side: Side, dies: bool) -> None:
    """The next engine answers for one that died."""
    side.engine.request_stats()
    if dies:
        side.restart(engines)
    engines.say("stats", request=1, want=7)
    assert side.engine.requested_stats()["want"] == 7


def test_counters_go_on_when_an_engine_dies(engines: Engines, side: Side) -> None:
    for deaths in range(3):
        side.engine.request_stats()
        engines.say("stats", request=deaths + 1, want=7, resends=2, starved_s=0.5)
        stats = side.engine.requested_stats()
        assert (stats["want"], stats["resends"]) == (7, 2 * (deaths + 1))
        assert stats["starved_s"] == 0.5 * (deaths + 1)
        side.restart(engines)
        assert side.engine.restarts == deaths + 1


def test_missing_stats_are_awaited_once(
    side: Side, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    side.engine.request_stats()
    monkeypatch.setattr(engine_client, "REPLY_TIMEOUT_S", 0.01)
    assert side.engine.requested_stats() == {}
    assert "its statistics are older" in caplog.text
    monkeypatch.setattr(engine_client, "REPLY_TIMEOUT_S", LONG_S)
    assert side.engine.requested_stats() == {}


@pytest.mark.parametrize("ask", [EngineClient.requested_stats, lambda engine: engine.story(0)])
def test_no_reply_is_awaited_without_an_engine(engines: Engines, side: Side, ask: Any) -> None:
    side.engine.request_stats()
    for _ in range(MAX_DEATHS - 1):
        side.restart(engines)
    engines.die()
    asking = threading.Thread(target=ask, args=(side.engine,), daemon=True)
    asking.start()
    asking.join(DEADLINE_S)
    assert not asking.is_alive()


def test_defects_are_raised(engines: Engines, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(side.stream, "set_outcome", fail)
    engines.label(side.pull())
    with pytest.raises(EngineLost, match="a defect of ours"):
        side.stream.next(side.epoch, DEADLINE_S)
