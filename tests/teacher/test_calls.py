"""Which call goes when there is no room: one that owes its request, of who has most of them."""

from __future__ import annotations

import random

import pytest

from edl.errors import RateLimited
from edl.teacher.front.calls import Call, CallTable


def begun(table: CallTable, *peers: str) -> list[Call]:
    return [table.begin(peer) for peer in peers]


def test_calls_come_and_go() -> None:
    table = CallTable(3, 2)
    a, b = begun(table, "a", "b")
    table.received(a)
    assert len(table) == 2
    table.end(a)
    table.end(b)
    assert len(table) == 0
    begun(table, "a", "a", "b")


def test_one_client_has_its_share_and_no_more() -> None:
    table = CallTable(9, 2)
    for call in begun(table, "a", "a"):
        table.received(call)
    with pytest.raises(RateLimited, match="2 calls of one client"):
        table.begin("a")
    begun(table, "b", "b")


def test_all_clients_together_have_no_more_than_there_is() -> None:
    table = CallTable(3, 2)
    for call in begun(table, "a", "b", "c"):
        table.received(call)
    with pytest.raises(RateLimited, match="3 calls are open"):
        table.begin("d")


def test_the_oldest_call_that_owes_its_request_makes_room_for_one_of_the_same_client() -> None:
    table = CallTable(9, 3)
    first, second, third = begun(table, "a", "a", "a")
    ended: list[str] = []
    second.on_evicted = lambda: ended.append("second")
    table.received(first)
    table.begin("a")
    assert ended == ["second"]
    assert [call.evicted for call in (first, second, third)] == [False, True, False]
    assert len(table) == 3
    table.end(second)  # its own end comes later, and counts no second time
    assert len(table) == 3


def test_whoever_has_most_calls_that_owe_their_request_makes_room_for_others() -> None:
    table = CallTable(4, 3)
    good = table.begin("good")
    bad = begun(table, "bad", "bad", "bad")
    newcomer = table.begin("newcomer")
    assert bad[0].evicted
    assert not good.evicted
    assert not newcomer.evicted


def test_whatever_comes_it_holds_no_more_than_it_may_and_forgets_what_is_over(
    rng: random.Random,
) -> None:
    table = CallTable(12, 5)
    held: list[Call] = []
    for _ in range(5000):
        action = rng.random()
        if action < 0.5:
            try:
                held.append(table.begin(rng.choice("abcd")))
            except RateLimited:
                assert not any(call.evicted for call in held)
        elif held and action < 0.7:
            table.received(rng.choice(held))
        elif held:
            table.end(held.pop(rng.randrange(len(held))))
        for call in [call for call in held if call.evicted]:
            held.remove(call)
            table.end(call)
        assert len(table) == len(held) <= 12
        assert max((sum(c.peer == p for c in held) for p in "abcd"), default=0) <= 5
    for call in held:
        table.end(call)
    assert (len(table), table._of, table._owing) == (0, {}, {})
