"""Proofs of instances, failed TLS handshakes, and servers that outlive unknown paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.security import listen
from edl.proto.security.instance import new_challenge, new_key, prove, verify
from edl.proto.security.listening import Handshakes
from edl.proto.security.sturdy import aio_server
from edl.tests.proto.raw_http2 import answer, call


def test_only_the_holder_of_the_key_proves() -> None:
    key, challenge = new_key(), new_challenge()
    proof = prove(key, "t1", 7, challenge)
    assert verify(key, "t1", 7, challenge, proof)
    assert not verify(new_key(), "t1", 7, challenge, proof)
    assert not verify(key, "t2", 7, challenge, proof)
    assert not verify(key, "t1", 8, challenge, proof)
    assert not verify(key, "t1", 7, new_challenge(), proof)
    assert not verify(key, "t1", 7, challenge, proof, "h:1"), "it was not vouched for"
    assert verify(key, "t1", 7, challenge, prove(key, "t1", 7, challenge, "h:1"), "h:1")
    for junk in ("", "0" * 64, "\ud800", "é"):
        assert not verify(key, "t1", 7, challenge, junk)
    assert not verify("", "t1", 7, challenge, prove("", "t1", 7, challenge)), "there is no key"


@given(*[st.text(max_size=4)] * 6)
def test_vouched_proof_is_unique(a: str, b: str, vouched: str, c: str, d: str, other: str) -> None:
    same = (a, b, vouched) == (c, d, other)
    assert (prove("k", a, 1, b, vouched) == prove("k", c, 1, d, other)) is same


def test_a_teacher_signs_no_long_texts() -> None:
    with pytest.raises(ValueError, match="at most 512"):
        prove(new_key(), "t", 1, "x" * 513)


class Counted:
    """Handshakes with a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.failed = 0
        self.handshakes = Handshakes(self._fail, patience_s=10, clock=lambda: self.now)

    def _fail(self) -> None:
        self.failed += 1


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_flood_is_counted_and_not_kept(counted: Counted) -> None:
    for number in range(10_000):
        counted.handshakes.began()
        counted.handshakes.began()
        counted.handshakes.called(f"ipv4:10.0.0.1:{number}")
    assert 10_000 - 4096 <= counted.failed < 10_000
    counted.now = 11
    counted.handshakes.called("ipv4:10.0.0.1:0")
    assert counted.failed == 10_000


def test_few_peers_are_remembered(counted: Counted) -> None:
    for number in range(20_000):
        counted.handshakes.called(f"p{number}")
    for peer, failed in (("p0", 0), ("p19999", 1)):
        counted.handshakes.began()
        counted.handshakes.called(peer)  # a peer that was forgotten counts as a new one
        counted.now += 11
        counted.handshakes.called(peer)
        assert counted.failed == failed


TIMEOUT_S = 20.0
#: Of a path: bytes that are no UTF-8, another method, another service, none.
PATHS = [b"/s/\xe8\xfd", b"\xff" * 100, b"/s/other", b"/other/echo", b"/s/echo\x80", b"/", b""]


async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@pytest.mark.parametrize("times", [1, 50])
def test_unknown_paths_are_refused_and_the_others_answered(times: int) -> None:
    unknown: list[None] = []

    async def talk() -> list[Any]:
        methods = {"echo": grpc.stream_stream_rpc_method_handler(echo)}
        server = aio_server("s", methods, on_unknown=lambda: unknown.append(None))
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0')}"
        await server.start()
        try:
            answers: list[Any] = []
            for path in PATHS * times:
                said = await asyncio.to_thread(answer, address, call(path, b""))
                answers.append(b"grpc-status\x0212" in said or said == b"")
            async with grpc.aio.insecure_channel(address) as channel:
                any_channel: Any = channel
                asked = any_channel.stream_stream("/s/echo")(iter([b"a", b"b"]))
                answers.append([said async for said in asked])
            return answers
        finally:
            await server.stop(0)

    answers = asyncio.run(asyncio.wait_for(talk(), TIMEOUT_S))
    assert answers.pop() == [b"a", b"b"]
    assert all(answers)
    assert len(unknown) >= 5 * times
