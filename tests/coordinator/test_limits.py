"""Places: so many at once, of one principal fewer, and each comes free again."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from edl.coordinator.limits import Limits, Overloaded, Places, TooLarge
from edl.errors import RateLimited


def test_so_many_at_once_and_of_one_principal_fewer() -> None:
    places = Places("streams", 3, 2)
    with ExitStack() as held:
        held.enter_context(places.one("a"))
        held.enter_context(places.one("a"))
        with pytest.raises(RateLimited, match="2 streams with one credential"), places.one("a"):
            raise AssertionError("one too many")
        held.enter_context(places.one("b"))
        with pytest.raises(Overloaded, match="holds 3 streams"), places.one("c"):
            raise AssertionError("one too many")
        assert places.taken == 3
    assert places.taken == 0


def test_a_place_comes_free_when_its_holder_fails() -> None:
    places = Places("streams", 1, 1)
    with pytest.raises(KeyError), places.one("a"):
        raise KeyError
    with places.one("b"):
        assert places.taken == 1


def test_a_message_may_be_as_large_as_the_limit() -> None:
    limits = Limits(message_bytes=3)
    limits.check_size(b"123")
    with pytest.raises(TooLarge, match=r"larger than max \(4 vs\. 3 bytes\)"):
        limits.check_size(b"1234")
