"""One of several operators acts; another takes over when it is gone."""

from __future__ import annotations

import pytest

from edl.deploy.operator.election import LeaseElection
from edl.mesh.kubernetes.client import Client
from edl.mesh.kubernetes.resources import LEASE
from edl.runtime.errors import KubernetesUnavailable, LeaseSuperseded
from edl.tests.deploy.kube_api.cluster import Cluster
from edl.tests.deploy.kube_api.kinds import CONFIG_MAP

NAME = "edl-operator"
CONFIG = {"metadata": {"name": "x"}}


class Clock:
    s = 1000.0

    def __call__(self) -> float:
        return self.s


def candidate(client: Client, clock: Clock, name: str = "a") -> LeaseElection:
    return LeaseElection(client, NAME, name, 15, clock=clock)


def _look(*candidates: LeaseElection) -> list[bool]:
    for one in candidates:
        one.renew()
    return [one.leads() for one in candidates]


def test_the_first_leads_and_the_other_takes_over_when_it_is_gone(cluster: Cluster) -> None:
    clock = Clock()
    first, second = (candidate(cluster.client, clock, name) for name in "ab")
    for _ in range(10):
        assert _look(first, second) == [True, False]
        clock.s += 4
    assert _look(first, second) == [True, False]
    clock.s += 14  # the first is dead from here on, or hangs
    assert not first.leads(), "it stops acting before another may follow"
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


def test_a_lease_without_a_holder_is_taken_by_the_faster_one(cluster: Cluster) -> None:
    cluster.client.create(LEASE, {"metadata": {"name": NAME}})
    clock = Clock()
    faster = candidate(cluster.client, clock)

    def hook(method: str, path: str) -> None:
        if method == "PUT":  # the slower one has read the lease already
            faster.renew()

    with cluster.calling(hook) as client:
        assert _look(candidate(client, clock, "b")) == [False]
    assert faster.leads()


def test_one_that_leads_no_more_changes_nothing(cluster: Cluster) -> None:
    clock = Clock()
    only = candidate(cluster.client, clock)
    with cluster.calling(only.check) as client:
        with pytest.raises(LeaseSuperseded, match="a no longer leads"):
            client.create(CONFIG_MAP, CONFIG)
        only.renew()
        client.create(CONFIG_MAP, CONFIG)
        clock.s += 11
        client.get(CONFIG_MAP, "x")
        with pytest.raises(LeaseSuperseded):
            client.delete(CONFIG_MAP, "x")


def test_a_lead_that_was_lost_or_has_lapsed_begins_anew(cluster: Cluster) -> None:
    clock, away, changes = Clock(), False, list[bool]()

    def hook(method: str, path: str) -> None:
        if away:
            raise KubernetesUnavailable("away")

    def note() -> None:
        changes.append(only.leads())

    with cluster.calling(hook) as client:
        only = LeaseElection(client, NAME, "a", 15, note, clock)
        assert _look(only) == [True]
        away = True
        clock.s += 5
        assert _look(only) == [True], "its lease has not run out"
        clock.s += 6
        assert _look(only) == [False]
        away = False
        assert _look(only) == [True]
        assert changes == [True, False, True]
        clock.s += 11  # the process, or its machine, has slept: wake what rested meanwhile
        assert not only.leads()
        assert _look(only) == [True]
    assert changes == [True, False, True, True]
