"""A stream is pinned to one numerics_id, and nobody of another labels it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.pinning import admits, pinned, promises

ids = st.sampled_from(["", "paddle-fp32-1", "paddle-fp32-2", "merged-fp32-1", "mixed-fp32-1"])


@given(st.lists(ids), ids)
def test_what_is_pinned_admits_itself_alone(offered: list[str], other: str) -> None:
    one = pinned("", offered)
    assert bool(one) == any(map(promises, offered))
    if one:
        assert one in offered
        assert admits(one, one)
        assert admits(one, other) == (other == one)


@given(st.lists(ids), st.lists(ids))
def test_it_stays_and_does_not_depend_on_an_order(offered: list[str], later: list[str]) -> None:
    one = pinned("", offered)
    assert pinned("", sorted(offered)) == one == pinned("", offered[::-1])
    if one:
        assert pinned(one, later) == one


def test_it_is_what_most_have() -> None:
    assert pinned("", ["b", "a", "b"]) == "b"
    assert pinned("", ["b", "a"]) == "a"


def test_those_that_promise_nothing_are_never_admitted() -> None:
    for numerics_id in ("", "merged-paddle-3", "mixed-fp32-4"):
        assert not promises(numerics_id)
        assert not admits("", numerics_id)
        assert not admits(numerics_id, numerics_id)
