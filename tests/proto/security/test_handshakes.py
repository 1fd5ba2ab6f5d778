"""TLS handshakes that came to nothing are counted, and no others."""

from __future__ import annotations

import pytest

from edl.proto.security.handshakes import Handshakes


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


def test_a_call_in_time_makes_it_good(counted: Counted) -> None:
    for number in range(20):
        counted.handshakes.began()
        counted.now += 1
        counted.handshakes.called(f"ipv4:10.0.0.1:{number}")
        counted.now += 100
        counted.handshakes.called(f"ipv4:10.0.0.1:{number}")
    assert counted.failed == 0


def test_one_without_a_call_has_failed(counted: Counted) -> None:
    counted.handshakes.called("old")
    counted.handshakes.began()
    counted.handshakes.began()
    counted.now = 9
    counted.handshakes.called("new")
    counted.handshakes.called("new")
    assert counted.failed == 0
    counted.now = 11
    counted.handshakes.called("old")
    assert counted.failed == 1
    counted.now = 50
    counted.handshakes.called("old")
    assert counted.failed == 1


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
    assert len(counted.handshakes._known) == 16384
