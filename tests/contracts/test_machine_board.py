"""One contract, two machine boards, within the process and on a real Valkey."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, replace

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from edl.coordinator.machines import Deployment, MachineBoard, MachineOrder, Report, open_machines
from edl.coordinator.machines.board import fence_of
from edl.coordinator.store.redis_store import RedisStore
from edl.runtime.errors import LeaseSuperseded, RedisUnavailable, UsageError
from edl.tests.contracts.conftest import LONG_S, SHORT_S, Hold, Holds
from edl.tests.waiting import DEADLINE_S, wait_until

Machines = Holds[MachineBoard]
DEPLOYED = Deployment(
    "resnet", "s3://bucket/resnet", "ab" * 32, min=1, max=3, priority=2, price_per_hour=0.5,
    options=(("micro-batch", "4"), ("preprocess", "unit"), ("preprocess", "nhwc")),
    cost_ceiling_per_hour=1.5,
)  # fmt: skip
TOLD = Report(
    host="h", devices=("cpu:0-1", "gpu:0"), memory_bytes=1 << 30, state="serving",
    service="resnet", content_id="ab" * 32, teacher_id="m", order=3, load=0.5,
    why="a reason, with { and é", blocked=("x",), troubles=("it broke",), cached=("y",),
)  # fmt: skip


def deployed(board: MachineBoard) -> list[Deployment]:
    return [replace(one, since_ms=0) for one in board.deployments()]


@pytest.fixture
def machines(hold: Hold) -> Machines:
    return hold(MachineBoard)


def test_a_machine_lives_until_its_deadline_which_beats_prolong(machines: Machines) -> None:
    def prolonged() -> bool:
        assert machines.one.beat("m", 7, LONG_S) == MachineOrder()
        return machines.another.machines()[0].expires_in_s > LONG_S - 0.1

    machines.one.join("m", 7, TOLD, LONG_S)
    (found,) = machines.another.machines()
    assert (found.machine_id, found.incarnation, found.report) == ("m", 7, TOLD)
    assert found.order == MachineOrder()
    assert 0 < found.expires_in_s <= LONG_S
    machines.pass_s(0.2)
    wait_until(prolonged)  # once no process was suspended between its two calls
    assert machines.another.machines()[0].report == TOLD
    later = replace(TOLD, state="idle", service="", why="")
    machines.one.beat("m", 7, LONG_S, later)
    assert machines.another.machines()[0].report == later
    machines.one.join("m", 7, TOLD, SHORT_S)
    machines.pass_s(SHORT_S + 0.01)
    assert machines.another.machines() == []
    assert machines.one.beat("m", 7, LONG_S) is None


def test_the_newer_agent_has_the_name(machines: Machines) -> None:
    for name in ("m", "c", "a"):
        machines.one.join(name, 7, TOLD, LONG_S)
    assert [one.machine_id for one in machines.another.machines()] == ["m", "c", "a"]
    machines.another.join("m", 8, Report(), LONG_S)
    assert machines.one.beat("m", 7, LONG_S) is None
    with pytest.raises(LeaseSuperseded, match="--machine"):
        machines.one.join("m", 7, TOLD, LONG_S)
    machines.one.leave("m", 7)
    assert 8 in [one.incarnation for one in machines.one.machines()]
    machines.one.leave("m", 8)
    machines.one.leave("never-there", 1)
    assert {one.machine_id for one in machines.one.machines()} == {"c", "a"}


def test_one_leads_and_only_it_gives_orders(machines: Machines) -> None:
    machines.one.join("m", 7, Report(), LONG_S)
    order = MachineOrder(4, DEPLOYED, "wanted")
    first = machines.one.lead("one", LONG_S)
    assert first.change == "first"  # nobody led a board that is empty
    assert machines.one.lead("one", LONG_S).change == "kept"
    other = machines.another.lead("two", LONG_S)
    assert (other.change, other.holder) == ("", "one")
    one = fence_of(first)
    assert machines.one.order(one, {"m": order})
    assert not machines.another.order(replace(one, holder="two"), {"m": None})
    assert machines.another.beat("m", 7, LONG_S) == order
    assert machines.another.machines()[0].order == order
    assert machines.one.lead("one", SHORT_S).change == "kept"
    machines.pass_s(SHORT_S + 0.01)
    assert not machines.one.order(one, {"m": None})
    gained = machines.another.lead("two", LONG_S)
    assert gained.change == "gained"
    machines.one.resign("one")
    assert machines.another.order(fence_of(gained), {"m": None, "gone": None})
    assert machines.another.beat("m", 7, LONG_S) == MachineOrder()
    machines.another.resign("two")
    assert machines.one.lead("one", LONG_S).change == "gained"
    assert not machines.one.order(one, {"m": order}), "it led before: its token is an older one"


def test_a_deployment_stands_until_it_is_withdrawn_and_forgotten(machines: Machines) -> None:
    other = replace(DEPLOYED, service="bert", options=())
    machines.one.deploy(DEPLOYED)
    machines.one.deploy(other)
    assert deployed(machines.another) == [other, DEPLOYED]
    assert all(one.since_ms > 1_600_000_000_000 for one in machines.another.deployments())
    stood = machines.another.deployments()[1]
    assert not machines.one.deploy(replace(DEPLOYED, max=9))
    assert not machines.one.deploy(replace(DEPLOYED, max=9), replace(stood, priority=7))
    assert machines.another.deployments()[1] == stood
    assert machines.one.deploy(replace(DEPLOYED, max=9), stood)
    assert machines.another.deployments()[1].max == 9
    one = fence_of(machines.one.lead("one", LONG_S))
    assert not machines.one.forget(one, "resnet")
    assert not machines.one.forget(one, "never-there")
    assert machines.one.deploy(DEPLOYED.withdrawal, machines.another.deployments()[1])
    assert machines.another.deployments()[1].withdrawn
    assert not machines.another.forget(replace(one, holder="two"), "resnet")
    assert machines.one.forget(one, "resnet")
    assert deployed(machines.another) == [other]


@pytest.mark.parametrize("name", ["", "a b", "x" * 201, "m\n"])
def test_a_name_that_cannot_stand_in_a_key_is_refused(machines: Machines, name: str) -> None:
    with pytest.raises(UsageError, match="machine"):
        machines.one.join(name, 1, Report(), 1.0)


def test_a_url_names_the_board() -> None:
    assert open_machines("memory://machines").store is open_machines("memory://machines").store
    with pytest.raises(UsageError):
        open_machines("nothing")


def test_keys_expire_and_foreign_content_is_skipped(redis: Redis, private_valkey_url: str) -> None:
    with closing(MachineBoard(RedisStore(private_valkey_url, timeout_s=DEADLINE_S))) as board:
        board.join("m", 7, TOLD, LONG_S)
        board.deploy(DEPLOYED)
        assert board.order(fence_of(board.lead("one", LONG_S)), {"m": MachineOrder(1, DEPLOYED)})
        found: list[str] = sorted(redis.keys("*"))  # type: ignore[arg-type]
        assert len(found) == 6
        assert [key for key in found if redis.pttl(key) < 0] == []
        redis.hset("edl:{edl:machines}:deployments", "evil", '{"service": "evil", "max": "x"}')
        redis.hset("edl:{edl:machines}:deployments", "worse", "[" * 10_000)
        endless = asdict(DEPLOYED) | {"service": "endless", "price_per_hour": 10**400}
        redis.hset("edl:{edl:machines}:deployments", "endless", json.dumps(endless))
        unfinished = '{"number": 1, "deployment": {"service": "s"}}'
        for broken in ("no json", '{"number": {}}', unfinished):
            redis.hset("edl:{edl:machines}:orders", "m", broken)
            assert board.beat("m", 7, LONG_S) == MachineOrder()
        assert deployed(board) == [DEPLOYED]
        for load in ("x", 10**400, True):
            odd = json.dumps({"state": "odd", "load": load, "why": 3})
            redis.hset("edl:{edl:machines}:machine:m", "report", odd)
            assert board.machines()[0].report == Report()
        for name in ("order", "memory_bytes"):  # the number of an order would grow beyond JSON
            odd = json.dumps({name: 1 << 63})
            redis.hset("edl:{edl:machines}:machine:m", "report", odd)
            assert board.machines()[0].report == Report()


def test_an_agent_of_an_older_version_is_refused(redis: Redis, private_valkey_url: str) -> None:
    """It would register beside the facts that it knows, and wait for orders for ever."""
    redis.hset("edl:{edl:machines}:facts", "m", "1 7 30000 {}")
    with closing(MachineBoard(RedisStore(private_valkey_url, timeout_s=DEADLINE_S))) as board:
        assert board.lead("one", LONG_S).change == "first"
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            redis.hget("edl:{edl:machines}:facts", "m")
        redis.set("edl:{edl:machines}:leader", "a manager of an older version")
        with pytest.raises(RedisUnavailable, match="another type"):
            board.lead("one", LONG_S)
