"""The engine's inbox: what other threads post, what it reads by itself, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from edl.distill_reader.engine.inbox import MAX_TASKS, Inbox
from edl.proto.channel import Channel, Message
from edl.tests.waiting import DEADLINE_S


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


@pytest.fixture
def trainer(inbox: Inbox) -> Iterator[tuple[Channel, list[Message]]]:
    """The trainer's end of a channel, and what the engine's thread has heard by it."""
    ours, fd = Channel.pair()
    theirs = Channel.attach(fd)
    heard: list[Message] = []
    inbox.listen(theirs, heard.append)
    yield ours, heard
    ours.close()
    theirs.close()


def work(inbox: Inbox, timeout_s: float = DEADLINE_S) -> bool:
    """One turn of the engine's thread; whether there is to be another."""
    events = inbox.next(timeout_s)
    for event in events or ():
        event()
    return events is not None


def test_calls_are_made_in_the_order_they_were_posted(inbox: Inbox) -> None:
    made: list[int] = []
    for number in range(MAX_TASKS + 1):
        inbox.post(made.append, number)
    assert work(inbox)
    assert made == list(range(MAX_TASKS))
    assert work(inbox)
    assert made == list(range(MAX_TASKS + 1))
    assert inbox.next(0.0) == []


@pytest.mark.parametrize("last", [b"", b"no message\n"])
def test_ends_at_hangup(inbox: Inbox, trainer: tuple[Channel, list[Message]], last: bytes) -> None:
    channel, heard = trainer
    channel.send("one")
    assert work(inbox)
    os.write(channel.fileno(), last)
    channel.close()
    while work(inbox):
        pass
    assert heard == [{"kind": "one"}]


def test_what_came_with_the_first_message_is_heard_too(inbox: Inbox) -> None:
    ours, fd = Channel.pair()
    theirs = Channel.attach(fd)
    with ours.together:
        for kind in ("start", "one", "stop", "two"):
            ours.send(kind)
    assert theirs.receive() == {"kind": "start"}
    heard: list[Message] = []
    inbox.listen(theirs, heard.append)
    while work(inbox):
        pass
    assert heard == [{"kind": "one"}], "until it is stopped"
    ours.close()
    theirs.close()


def test_a_signal_ends_it(inbox: Inbox) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: inbox.stop())
    try:
        ending = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1])
        ending.start()
        while work(inbox):
            pass
        ending.join(DEADLINE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_post_behind_the_end_is_heard_by_nobody() -> None:
    inbox = Inbox()
    inbox.close()
    inbox.post(pytest.fail)
    assert inbox.next(0.0) is None


def test_deferred_calls_run_before_the_wait(inbox: Inbox) -> None:
    made: list[str] = []
    inbox.defer(lambda: inbox.post(made.append, "posted"))
    inbox.defer(lambda: made.append("deferred"))
    assert inbox.next(0.0) == []
    assert not made, "nothing was waited for"
    assert work(inbox)
    assert made == ["deferred", "posted"]
    assert inbox.next(1e-6) == []
    assert made == ["deferred", "posted"], "once"
