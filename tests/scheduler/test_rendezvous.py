"""Rendezvous hashing: even, the same for everyone, and little moves when a server goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.rendezvous import ranked

NAMES = st.text("abcdefgh0123456789:./", min_size=1, max_size=20)
SERVERS = st.lists(NAMES, min_size=1, max_size=8, unique=True)


@given(NAMES, SERVERS)
def test_the_order_does_not_depend_on_how_the_servers_came(client: str, servers: list[str]) -> None:
    assert ranked(client, servers) == ranked(client, reversed(servers))
    assert sorted(ranked(client, servers)) == sorted(servers)


@given(NAMES, SERVERS, st.data())
def test_a_server_that_goes_moves_only_those_that_it_had(
    client: str, servers: list[str], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(servers))
    before = ranked(client, servers)
    after = ranked(client, [server for server in servers if server != gone])
    assert after == [server for server in before if server != gone]


def test_clients_spread_evenly_over_servers() -> None:
    servers = [f"10.0.0.{n}:7001" for n in range(4)]
    chosen = Counter(ranked(f"job/{n}", servers)[0] for n in range(4000))
    assert all(850 < chosen[server] < 1150 for server in servers)


def test_what_is_equal_when_joined_is_not_the_same() -> None:
    servers = [f"{n}" for n in range(50)]
    assert ranked("a1", servers) != ranked("a", [f"1{server}" for server in servers])
