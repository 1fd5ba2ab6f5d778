"""Messages behind their lengths, however they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.doors import LENGTH
from edl.teacher.front.frames import Frames
from edl.teacher.refusals import TooLarge

MESSAGES = st.lists(st.binary(max_size=12_000), max_size=6)


def feed(frames: Frames, data: bytes, most: int) -> None:
    """Put the beginning of `data` where there is room; all of it in pieces of up to `most`."""
    while data:
        room = frames.room()
        count = min(len(room), most, len(data))
        room[:count] = data[:count]
        frames.came(count)
        data = data[count:]


@given(MESSAGES, st.integers(1, 9000), st.booleans())
def test_messages_come_out_as_they_were_sent(
    messages: list[bytes], piece: int, at_once: bool
) -> None:
    frames = Frames(12_000)
    sent = b"".join(LENGTH.pack(len(message)) + message for message in messages)
    got: list[bytes] = []

    def take() -> None:
        while (message := frames.message()) is not None:
            got.append(message)

    for at in range(0, len(sent), piece):
        feed(frames, sent[at : at + piece], piece)
        if not at_once:
            take()
    take()
    assert got == messages
    assert frames.are_empty


def test_a_part_of_a_message_is_none() -> None:
    frames = Frames(10)
    feed(frames, LENGTH.pack(3) + b"ab", 100)
    assert frames.message() is None
    assert not frames.are_empty
    feed(frames, b"c", 100)
    assert frames.message() == b"abc"


def test_what_is_announced_takes_no_memory_before_it_comes() -> None:
    frames = Frames(1 << 30)
    feed(frames, LENGTH.pack(1 << 30) + bytes(10_000), 1 << 20)
    assert frames.message() is None
    assert len(frames.room()) <= 20_000


def test_a_message_that_is_too_long_is_refused_by_its_length() -> None:
    frames = Frames(10)
    feed(frames, LENGTH.pack(10) + bytes(10) + LENGTH.pack(11), 100)
    assert frames.message() == bytes(10)
    with pytest.raises(TooLarge, match=r"11 vs\. 10"):
        frames.message()


def test_bytes_are_taken_without_a_length() -> None:
    frames = Frames(10)
    feed(frames, b"abc", 100)
    assert frames.take(4) is None
    assert frames.take(3) == b"abc"
