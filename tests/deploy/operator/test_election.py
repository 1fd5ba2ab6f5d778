"""One of several operators acts; another takes over when it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from edl.deploy.operator.election import Election
from edl.errors import KubernetesUnavailable, LeaseSuperseded
from edl.mesh.kubernetes.client import Client
from edl.mesh.kubernetes.resources import CONFIG_MAP, LEASE
from edl.tests.deploy.kube_api.cluster import Cluster

NAME = "edl-operator"
DURATION_S = 15


class Clock:
    """Seconds that pass when a test says so."""

    s = 1000.0

    def __call__(self) -> float:
        return self.s


@contextmanager
def candidates(cluster: Cluster, clock: Clock, *names: str) -> Iterator[list[Election]]:
    with ExitStack() as undo:
        clients = [undo.enter_context(Client(cluster.connection)) for _ in names]
        yield [
            Election(client, NAME, name, DURATION_S, clock=clock)
            for client, name in zip(clients, names, strict=True)
        ]


def _look(*all_of_them: Election) -> list[bool]:
    for one in all_of_them:
        one.look()
    return [one.leads() for one in all_of_them]


def test_the_first_leads_and_the_other_takes_over_when_it_is_gone(cluster: Cluster) -> None:
    clock = Clock()
    with candidates(cluster, clock, "a", "b") as (first, second):
        for _ in range(10):
            assert _look(first, second) == [True, False]
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
        second.start()
        second.stop()
        assert not second.leads()
        assert _look(first) == [True], "a lease that was given back is free at once"


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


def test_a_lead_that_was_lost_or_has_lapsed_begins_anew(cluster: Cluster) -> None:
    clock, away, changes = Clock(), [False], list[bool]()

    def hook(method: str, path: str) -> None:
        if away[0]:
            raise KubernetesUnavailable("away")

    with cluster.calling(hook) as client:
        only: Election
        note: Callable[[], None] = lambda: changes.append(only.leads())  # noqa: E731
        only = Election(client, NAME, "a", DURATION_S, note, clock)
        assert _look(only) == [True]
        away[0] = True
        clock.s += 5
        assert _look(only) == [True], "its lease has not run out"
        clock.s += 6
        assert _look(only) == [False]
        away[0] = False
        assert _look(only) == [True]
        assert changes == [True, False, True]
        clock.s += 11  # the process, or its machine, has slept: wake what rested meanwhile
        assert not only.leads()
        assert _look(only) == [True]
    assert changes == [True, False, True, True]
