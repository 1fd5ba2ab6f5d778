"""Answers come over a near line in whatever pieces the socket hands over."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.clients import near_line
from edl.proto.clients.near_line import NearLine
from edl.proto.doors import Invitation


@contextmanager
def entered() -> Iterator[tuple[NearLine, socket.socket]]:
    """A line, and the teacher's end of it."""
    ours, theirs = socket.socketpair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_line, "enter", lambda _: ours)
        line = NearLine(Invitation("door", "ticket"))
    with closing(line), closing(theirs):
        yield line, theirs


def framed(answer: bytes) -> bytes:
    return struct.pack("<I", len(answer)) + answer


def all_of(line: NearLine) -> list[memoryview]:
    """What is heard for as long as there is something to read."""
    heard: list[memoryview] = []
    while select.select([line], [], [], 0)[0]:
        heard += line.hear()
    return heard


@given(
    answers=st.lists(st.binary(max_size=40), max_size=8),
    cuts=st.lists(st.integers(1, 30), max_size=12),
)
def test_answers_come_whole_and_in_order_however_they_are_cut(
    answers: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(framed, answers))
    heard: list[memoryview] = []
    with entered() as (line, theirs):
        for cut in (*cuts, len(stream)):
            piece, stream = stream[:cut], stream[cut:]
            if not piece:
                break
            theirs.sendall(piece)
            heard += all_of(line)
        assert [bytes(answer) for answer in heard] == answers, "and none is written over by another"


def test_what_was_put_goes_out_by_one_call_and_once() -> None:
    with entered() as (line, theirs):
        assert line.put(b"a")
        assert not line.put(b"bc")
        line.send()
        assert line.put(b"d")
        line.send()
        assert theirs.recv(100) == framed(b"a") + framed(b"bc") + framed(b"d")


def test_who_reads_nothing_is_not_waited_for() -> None:
    with entered() as (line, _):
        line.put(bytes(1 << 24))
        with pytest.raises(BlockingIOError, match="reads no requests"):
            line.send()


def test_an_answer_as_long_as_the_one_before_is_read_by_one_call() -> None:
    with entered() as (line, theirs):
        theirs.sendall(framed(b"x" * 1000))
        heard = all_of(line)
        for _ in range(3):
            theirs.sendall(framed(b"y" * 1000))
            heard += line.hear()
        assert list(map(len, heard)) == [1000] * 4


def test_the_end_and_what_cannot_be_are_errors() -> None:
    with entered() as (line, theirs):
        theirs.sendall(struct.pack("<I", 0xFFFFFFFF))
        with pytest.raises(OSError, match="announces"):
            line.hear()
    with entered() as (line, theirs):
        theirs.close()
        with pytest.raises(OSError, match="closed"):
            line.hear()
