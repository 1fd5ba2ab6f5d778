"""Messages between parent and child: whole, in order, and an end that is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.channel import Channel
from edl.runtime.errors import WireError
from edl.tests.proto.strategies import JSON
from edl.tests.waiting import DEADLINE_S

Pair = tuple[Channel, Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, fd = Channel.pair()
    with closing(ours), closing(Channel.attach(fd)) as theirs:
        yield ours, theirs


@given(st.lists(JSON, max_size=5))
def test_messages_arrive_whole_and_in_order(values: list[object]) -> None:
    ours, fd = Channel.pair()
    with closing(ours), closing(Channel.attach(fd)) as theirs:
        for value in values:
            assert ours.send("value", value=value)
        got = [theirs.receive() for _ in values]
    assert got == [{"kind": "value", "value": value} for value in values]


def test_threads_send_without_mixing(pair: Pair) -> None:
    ours, theirs = pair
    text = "x" * 100_000  # more than a socket buffer takes at once
    with ThreadPoolExecutor(4) as pool:
        for n in [0, 1, 2, 3] * 5:
            pool.submit(ours.send, "from", n=n, text=text)
        messages = [theirs.receive() for _ in range(20)]
    assert all(message is not None and message["text"] == text for message in messages)
    assert sorted(message["n"] for message in messages if message) == sorted([0, 1, 2, 3] * 5)


def test_the_end_of_the_other_side_is_an_end(pair: Pair) -> None:
    ours, theirs = pair
    ours.send("last")
    os.write(ours.fileno(), b'{"kind":"ha')  # a message that its death has cut
    ours.close()
    assert [message["kind"] for message in theirs] == ["last"]
    assert theirs.receive() is None
    assert theirs.send("anyone") is False


def test_closing_wakes_a_thread_that_waits_and_leaves_no_descriptor(pair: Pair) -> None:
    ours, _ = pair
    fd = ours.fileno()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ours.receive)
        ours.close()
        assert waiting.result(DEADLINE_S) is None
    ours.close()
    assert ours.fileno() == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert ours.send("anyone") is False
    assert ours.receive() is None


@pytest.mark.parametrize(
    "line", [b"garbage", b"", b"[]", b"1", b'{"no":"kind"}', b"\xff\xfe", b'{"kind":']
)
def test_a_line_that_is_no_message_is_an_error(pair: Pair, line: bytes) -> None:
    ours, theirs = pair
    os.write(ours.fileno(), line + b"\n")
    with pytest.raises(WireError, match="not a message"):
        theirs.receive()


def test_the_descriptor_for_a_child_is_passed_on_only_where_named() -> None:
    ours, fd = Channel.pair()
    try:
        assert not os.get_inheritable(fd)
        assert not os.get_inheritable(ours.fileno())
    finally:
        os.close(fd)
        ours.close()


def test_many_messages_go_out_at_once(pair: Pair) -> None:
    ours, theirs = pair
    assert ours.send_all({"kind": "one", "n": n} for n in range(3))
    assert theirs.received() == [{"kind": "one", "n": n} for n in range(3)]
    with ours.together:
        ours.send_all([{"kind": "two"}])
        with suppress(ZeroDivisionError), ours.together:  # as another thread does
            ours.send("three")
            assert theirs.received() == []
            raise ZeroDivisionError
        ours.send("four")
    assert theirs.receive() == {"kind": "two"}
    # The second was read ahead with the first.
    assert theirs.received() == [{"kind": "three"}, {"kind": "four"}]
    theirs.close()
    assert ours.send_all([{"kind": "anyone"}]) is False


def test_received_returns_whole_messages_and_then_the_end(pair: Pair) -> None:
    ours, theirs = pair
    assert theirs.received() == []
    os.write(ours.fileno(), b'{"kind":"one"}\n{"kind":"tw')
    assert theirs.received() == [{"kind": "one"}]
    os.write(ours.fileno(), b'o"}\n{"kind":"three"}\n{"ki')
    assert theirs.received() == [{"kind": "two"}, {"kind": "three"}]
    ours.close()
    for _ in range(2):
        assert theirs.received() is None
