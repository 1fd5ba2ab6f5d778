"""When a student switches to other content, and what a label store does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.label_cache import (
    FIRST_ANSWER_S,
    MOST_CHANCES,
    OFFLINE_AFTER_S,
    CacheView,
    StoredRow,
    cache_step,
    plan_eviction,
)
from edl.scheduler.leadership import rank_servers
from edl.scheduler.reader_core.events import Advice
from edl.scheduler.reader_core.model_switch import (
    ALONE_S,
    AWAY_S,
    ContentState,
    SwitchAction,
    advise,
    begin,
    resume,
    tick,
)

ON_OLD = ContentState("old", 1, Advice("old", "", 1))


class TestSwitching:
    def test_immediate_move_and_no_content(self) -> None:
        state, step = advise(ON_OLD, Advice("new", "", 1), 0.0)
        assert (state.reported, step) == ("new", "relabel")
        state, step = advise(ON_OLD, Advice("", "", 1), 0.0)
        assert (state.reported, step) == ("old", "follow")

    def test_move_that_comes_too_late_waits_while_an_old_teacher_answers(self) -> None:
        state, _ = advise(begin(ON_OLD, 2, 0.0)[0], Advice("old", "new", 1), 0.1)
        state, _ = advise(state, Advice("new", "", 2), 0.2)
        for now, usable in ((1.0, 0), (1.5, 1), (2.0, 0), (1.9 + ALONE_S, 0)):
            state, step = tick(state, now, None, usable)
            assert step == "stay", "a teacher that is full for a moment is waited for"
        state, step = tick(state, 2.0 + ALONE_S, None, usable=0)
        assert (state.reported, step) == ("new", "relabel")

    def test_without_a_coordinator_the_old_content_stays(self) -> None:
        state, _ = advise(ON_OLD, Advice("old", "new", 1), 0.0)
        state, step = begin(state, 2, 10.0)
        assert (state.reported, state.awaited, step) == ("", "new", "hold")
        assert tick(state, 100.0, None, usable=0)[1] == "stay", "one that answers is waited for"
        assert tick(state, 10.0 + AWAY_S / 2, 3.0, usable=0)[1] == "stay"
        state, step = tick(state, 10.0 + AWAY_S, 3.0, usable=0)
        assert (state.reported, step) == ("old", "follow")
        state, step = advise(state, Advice("new", "", 2), 20.0)
        assert (state.reported, step) == ("old", "stay"), "it has begun"
        assert begin(state, 3, 30.0)[0].reported == "new"

    @pytest.mark.parametrize(("told", "step"), [("", "hold"), ("old", "follow")])
    def test_new_engine_resumes(self, told: str, step: SwitchAction) -> None:
        advice = Advice("old", "new", 1)
        for before, heard in (
            (advise(ContentState(), advice, 0.0)[0], True),
            (ContentState(), False),
        ):
            state, taken = resume(before, 2, ContentState(told, advice=advice), heard, 0.1)
            assert (state.reported, taken) == (told, step)
            state, taken = advise(state, advice, 0.2)
            assert (state.reported, taken) == (told, step)

    def test_new_engine_keeps_a_bound_content(self) -> None:
        left = ContentState("old", advice=Advice("old", "", 1), bound=True)
        state, step = resume(ContentState(), 2, left, False, 0.0)
        assert (state.reported, step) == ("old", "follow")
        state, step = advise(state, Advice("new", "", 2), 1.0)
        assert (state.reported, step) == ("old", "stay")
        heard, _ = advise(ContentState(), Advice("new", "", 2), 0.0)
        state, step = resume(heard, 2, left, True, 1.0)
        assert (state.reported, step) == ("old", "stay")


FLAGS = (False, True)
STANDINGS = [
    CacheView(known, mute, remembered, usable, asked, waited_s)
    for known, mute, remembered, usable, asked in product(FLAGS, FLAGS, FLAGS, (0, 2), FLAGS)
    for waited_s in (0.0, FIRST_ANSWER_S, OFFLINE_AFTER_S, 20.0)
]
NEW = CacheView(
    model_known=False, model_unnamed=False, remembered=True, usable=0, asked=False, waited_s=0.0
)


class TestCacheLookup:
    def test_nothing_is_guessed_and_no_wait_is_vain_or_endless(self) -> None:
        steps = [(now, cache_step(now)) for now in STANDINGS]
        assert all(now.model_known for now, what in steps if what == "look")
        for now in (now for now, what in steps if what == "recall"):
            assert (now.remembered, now.usable) == (True, 0)
            assert not now.model_known
            assert not now.model_unnamed
        for now in (now for now, what in steps if what == "wait"):
            assert not now.model_known
            assert now.asked or not now.usable
            assert now.waited_s < max(FIRST_ANSWER_S, OFFLINE_AFTER_S)

    def test_stream_with_and_without_teachers(self) -> None:
        assert cache_step(NEW) == "wait"
        assert cache_step(replace(NEW, usable=1)) == "ask"
        assert cache_step(replace(NEW, usable=1, asked=True)) == "wait"
        assert cache_step(replace(NEW, usable=1, model_known=True)) == "look"
        assert cache_step(replace(NEW, usable=1, model_unnamed=True)) == "ask"
        late = replace(NEW, waited_s=OFFLINE_AFTER_S)
        assert cache_step(late) == "recall"
        assert cache_step(replace(late, remembered=False)) == "ask"
        assert cache_step(replace(late, model_known=True)) == "look"


CANDIDATES = st.lists(st.builds(StoredRow, st.integers(0, 50), st.integers(1, 100)), max_size=30)


class TestEviction:
    @given(CANDIDATES, st.integers(0, 50), st.integers(0, 2000), st.integers(0, 40))
    def test_sweep(self, head: list[StoredRow], typical_s: int, lacking: int, chances: int) -> None:
        """It evicts the first, and no more than are needed."""
        swept = plan_eviction(head, typical_s, lacking, chances)
        assert sorted(swept.gone + swept.moved) == list(range(len(swept.gone + swept.moved)))
        freed = sum(head[place].nbytes for place in swept.gone)
        assert freed >= lacking or len(swept.gone + swept.moved) == len(head)
        if swept.gone:
            assert freed - head[swept.gone[-1]].nbytes < lacking
        assert all(head[place].used_s > typical_s for place in swept.moved)
        assert swept.chances == chances + len(swept.gone) - len(swept.moved) >= 0
        if chances >= len(head):
            assert all(head[place].used_s <= typical_s for place in swept.gone)

    def test_second_chances_are_bounded(self) -> None:
        old = [StoredRow(0, 1)] * 10
        assert plan_eviction(old, 0, 10, MOST_CHANCES - 3).chances == MOST_CHANCES


NAMES = st.text("abcdefgh0123456789:./", min_size=1, max_size=20)
SERVERS = st.lists(NAMES, min_size=1, max_size=8, unique=True)


class TestRendezvousHashing:
    @given(NAMES, SERVERS)
    def test_order_is_the_same(self, client: str, servers: list[str]) -> None:
        assert rank_servers(client, servers) == rank_servers(client, reversed(servers))
        assert sorted(rank_servers(client, servers)) == sorted(servers)

    @given(NAMES, SERVERS)
    def test_lost_server_moves_only_its_clients(self, client: str, servers: list[str]) -> None:
        gone = servers[0]
        before = rank_servers(client, servers)
        after = rank_servers(client, [server for server in servers if server != gone])
        assert after == [server for server in before if server != gone]

    def test_spread_and_separators(self) -> None:
        servers = [f"10.0.0.{n}:7001" for n in range(4)]
        chosen = Counter(rank_servers(f"job/{n}", servers)[0] for n in range(4000))
        assert all(850 < chosen[server] < 1150 for server in servers)
        servers = [f"{n}" for n in range(50)]
        assert rank_servers("a1", servers) != rank_servers(
            "a", [f"1{server}" for server in servers]
        )
