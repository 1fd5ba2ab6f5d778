"""One of several operators acts; another takes over when it is gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from edl.deploy.operator.election import Election
from edl.errors import KubernetesUnavailable, LeaseSuperseded
from edl.mesh.kubernetes.client import Client
from edl.mesh.kubernetes.resources import CONFIG_MAP, LEASE
from edl.tests.deploy.kube_api.cluster import Cluster, Killed

NAME = "edl-operator"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@contextmanager
def candidates(cluster: Cluster, clock: Clock, *names: str) -> Iterator[list[Election]]:
    with ExitStack() as undo:
        clients = [undo.enter_context(Client(cluster.connection)) for _ in names]
        yield [
            Election(client, NAME, name, 15, clock=clock)
            for client, name in zip(clients, names, strict=True)
        ]


def _look(*all_of_them: Election) -> list[bool]:
    for one in all_of_them:
        one.look()
    return [one.leads() for one in all_of_them]


def test_the_first_leads_and_the_other_takes_over_when_it_is_gone(cluster: Cluster) -> None:
    clock = Clock()
    with candidates(cluster, clock, "a", "b") as (first, second):
        assert _look(first, second) == [True, False]
        for _ in range(10):
            clock.s += 4
            assert _look(first, second) == [True, False]
        clock.s += 14  # the first is dead from here on, or hangs
        assert not first.leads()  # it stopped acting before anybody could follow
        assert _look(second) == [False]
        clock.s += 2
        assert _look(second) == [True]
        assert _look(first, second) == [False, True]
        spec = cluster.client.get(LEASE, NAME)["spec"]
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)


def test_one_that_ends_in_order_is_followed_at_once(cluster: Cluster) -> None:
    clock = Clock()
    with candidates(cluster, clock, "a", "b") as (first, second):
        first.start()
        assert _look(first, second) == [True, False]
        first.stop()
        assert not first.leads()
        assert _look(second) == [True]


def test_a_lease_that_is_deleted_stays_with_who_had_it(cluster: Cluster) -> None:
    clock = Clock()
    with candidates(cluster, clock, "a", "b") as (first, second):
        assert _look(first, second) == [True, False]
        cluster.client.delete(LEASE, NAME)
        clock.s += 1
        assert _look(second, first) == [False, True]
        cluster.client.delete(LEASE, NAME)
        clock.s += 1
        assert _look(second) == [False]
        clock.s += 15  # and the first has gone, too
        assert (first.leads(), *_look(second)) == (False, True)


def test_a_lease_that_somebody_has_emptied_is_taken(cluster: Cluster) -> None:
    cluster.client.create(LEASE, {"metadata": {"name": NAME}})
    with candidates(cluster, Clock(), "a") as (only,):
        assert _look(only) == [True]


def test_one_that_leads_no_more_changes_nothing(cluster: Cluster) -> None:
    clock = Clock()
    with candidates(cluster, clock, "a") as (only,), cluster.calling(only.check) as client:
        with pytest.raises(LeaseSuperseded, match="a leads no more"):
            client.create(CONFIG_MAP, {"metadata": {"name": "x"}})
        only.look()
        client.create(CONFIG_MAP, {"metadata": {"name": "x"}})
        clock.s += 11
        client.get(CONFIG_MAP, "x")
        with pytest.raises(LeaseSuperseded):
            client.delete(CONFIG_MAP, "x")


def test_a_candidate_dies_at_any_call_and_another_leads_in_time(cluster: Cluster) -> None:
    for calls, after in itertools.product(range(4), (False, True)):
        clock = Clock()
        name = f"lease-{calls}-{after}".lower()
        with cluster.mortal(calls, after=after) as client, Client(cluster.connection) as other:
            first = Election(client, name, "a", 15, clock=clock)
            second = Election(other, name, "b", 15, clock=clock)
            with suppress(Killed):
                for _ in range(3):
                    first.look()
                raise AssertionError("it makes fewer calls")
            second.look()
            clock.s += 16
            assert _look(second) == [True]


def test_while_the_server_is_away_the_lead_is_lost_and_comes_back(cluster: Cluster) -> None:
    clock = Clock()
    away = [False]

    def hook(method: str, path: str) -> None:
        if away[0]:
            raise KubernetesUnavailable("away")

    changes: list[bool] = []
    with cluster.calling(hook) as client:
        only: Election
        note: Callable[[], None] = lambda: changes.append(only.leads())  # noqa: E731
        only = Election(client, NAME, "a", 15, note, clock)
        only.look()
        away[0] = True
        clock.s += 5
        only.look()
        assert only.leads()  # its lease has not run out
        clock.s += 6
        only.look()
        assert not only.leads()
        away[0] = False
        only.look()
        assert only.leads()
    assert changes == [True, False, True]


def test_a_lead_that_lapses_between_two_looks_begins_anew(cluster: Cluster) -> None:
    clock, changes = Clock(), [0]

    def note() -> None:
        changes[0] += 1

    with Client(cluster.connection) as client:
        only = Election(client, NAME, "a", 15, note, clock)
        only.look()
        clock.s += 4
        only.look()
        assert changes == [1]
        clock.s += 11  # the process, or its machine, has slept: who rested meanwhile is woken
        assert not only.leads()
        only.look()
        assert only.leads()
    assert changes == [2]
