"""Peers of another protocol version are refused in words that say what to do."""

from __future__ import annotations

import pytest

from edl.errors import VersionMismatch
from edl.proto.version import OLDEST_VERSION, PROTOCOL_VERSION, check_version


@pytest.mark.parametrize("peer", range(OLDEST_VERSION, PROTOCOL_VERSION + 1))
def test_ours_are_taken(peer: int) -> None:
    check_version(peer)


def test_a_newer_peer_is_told_what_we_speak() -> None:
    with pytest.raises(
        VersionMismatch, match=f"version {PROTOCOL_VERSION + 1}.* {PROTOCOL_VERSION}"
    ):
        check_version(PROTOCOL_VERSION + 1)


def test_an_older_peer_is_told_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl.proto.version.OLDEST_VERSION", 5)
    with pytest.raises(VersionMismatch, match="speaks protocol version 4; at least 5 is needed"):
        check_version(4)


@pytest.mark.parametrize("peer", [0, -1])
def test_a_peer_without_a_version_is_refused(peer: int) -> None:
    with pytest.raises(VersionMismatch, match=f"no protocol version; at least {OLDEST_VERSION}"):
        check_version(peer)
