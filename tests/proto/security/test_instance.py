"""Proofs of instances, and failed TLS handshakes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.security.access_control import HandshakeMonitor
from edl.proto.security.instance import new_challenge, new_key, prove, verify


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


class Counted:
    """Handshakes with a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.failed = 0
        self.handshakes = HandshakeMonitor(self._fail, patience_s=10, clock=lambda: self.now)

    def _fail(self) -> None:
        self.failed += 1


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_flood_is_counted_and_not_kept(counted: Counted) -> None:
    for number in range(10_000):
        counted.handshakes.handshake_started()
        counted.handshakes.handshake_started()
        counted.handshakes.call_received(f"ipv4:10.0.0.1:{number}")
    assert 10_000 - 4096 <= counted.failed < 10_000
    counted.now = 11
    counted.handshakes.call_received("ipv4:10.0.0.1:0")
    assert counted.failed == 10_000


def test_few_peers_are_remembered(counted: Counted) -> None:
    for number in range(20_000):
        counted.handshakes.call_received(f"p{number}")
    for peer, failed in (("p0", 0), ("p19999", 1)):
        counted.handshakes.handshake_started()
        counted.handshakes.call_received(peer)  # a peer that was forgotten counts as a new one
        counted.now += 11
        counted.handshakes.call_received(peer)
        assert counted.failed == failed
