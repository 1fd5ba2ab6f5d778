"""What a leader says of how many teachers its service should have, in virtual time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from edl.coordinator import Registry
from edl.coordinator.machines import Deployment, MachineBoard
from edl.coordinator.options import autoscale_config
from edl.coordinator.serve import DeploymentSettings, autoscale_page
from edl.runtime.errors import RedisUnavailable, UsageError
from edl.runtime.metrics import MetricsServer
from edl.runtime.structured_option import Given
from edl.scheduler.autoscale import AutoscaleConfig
from edl.tests.coordinator.world import GRACE_S, LEADER_TTL_S, SERVICE, World
from edl.tests.stores import FaultyStore, memory
from edl.tests.waiting import DEADLINE_S

BRISK = AutoscaleConfig(max=6, freeze_s=10.0, up_after_s=2.0, down_after_s=5.0, idle_to_zero_s=5.0)
DEPLOYED = Deployment(SERVICE, "file:///m", "a" * 64, min=2, max=5, freeze_s=7.0)


def desired(world: World) -> int | None:
    found = world.registry.desired(SERVICE)
    return None if found is None else found.count


def scaled(world: World) -> list[str]:
    return [entry.text for entry in world.log("scaled")]


def test_a_student_without_a_teacher_wakes_the_service_at_once() -> None:
    world = World()
    world.student("j/0", want=3)
    world.run(1.0, until=lambda: desired(world) == 3)
    assert scaled(world) == ["3 teachers are desired, not 0: 1 student and no teacher: wants 3"]
    for number in range(1, 60):  # more than have their turn at once
        world.student(f"j/{number}", want=1)
    world.run(120.0, until=lambda: (desired(world) or 0) >= 62)


@pytest.mark.parametrize(("want", "unreachable"), [(2, 0), (3, 1), (4, 2), (4, 4)])
def test_a_student_that_reaches_none_of_its_teachers_scales_nothing(
    want: int, unreachable: int
) -> None:
    """While it finds out, once others are wanted, and once these cannot be reached either."""
    world = World(autoscale=BRISK)
    world.teacher("t0", "t1")
    student = world.student("j/0", want=2)
    world.run(15.0, until=lambda: desired(world) == 2)
    student.fields |= {"want": want, "unreachable": unreachable, "state": "starved", "cut_off": 1}
    for second in range(30):
        student.fields["starved_seconds"] = float(second)
        world.run(1.0)
        assert desired(world) == 2
    student.fields |= {"cut_off": 0, "want": 3, "unreachable": 0}
    world.run(15.0, until=lambda: desired(world) == 3)


@pytest.mark.parametrize("lost", ["the call", "its answer"])
def test_a_change_is_logged_once_if_its_first_write_fails(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, failures = World(), [RedisUnavailable(f"{lost} was lost")]
    write = world.registry.set_desired

    def fails_once(*args: Any) -> bool:
        if failures and lost == "the call":
            raise failures.pop()
        done = write(*args)
        if failures:
            raise failures.pop()
        return done

    monkeypatch.setattr(world.registry, "set_desired", fails_once)
    world.student("j/0", want=3)
    world.run(2.0)
    assert not failures
    assert desired(world) == 3
    assert scaled(world) == ["3 teachers are desired, not 0: 1 student and no teacher: wants 3"]


def test_another_leader_goes_on_with_the_same_freeze_window() -> None:
    world = World(managers=2, autoscale=replace(BRISK, freeze_s=3 * LEADER_TTL_S + GRACE_S))
    world.teacher("t1")
    student = world.student("j/0", want=2)
    world.run(20.0, until=lambda: desired(world) == 2)
    began = world.now
    world.kill(world.leading[0])
    student.fields |= {"want": 4, "state": "starved"}
    world.teacher("t2")
    student.subscribe(next(manager for manager in world.managers if manager.alive))
    world.run(30.0, until=lambda: desired(world) == 4)
    assert world.now - began >= world.autoscale.freeze_s
    assert world.now - began < world.autoscale.freeze_s + 2.0


def test_waits_while_another_manager_led_start_no_teachers() -> None:
    world = World(managers=2, autoscale=AutoscaleConfig(freeze_s=1.0))
    names = [f"j{number}/0" for number in range(60)]  # more than have their turn at once
    world.teacher(*(f"t{number}" for number in range(len(names))))
    for name in names:
        world.student(name, want=2, needed=2, t_t_seconds=0.01, t_s_seconds=0.0105)
    world.run(GRACE_S + LEADER_TTL_S)
    assert desired(world) == len(names)
    first = world.leading[0]
    (other,) = (manager for manager in world.managers if manager is not first)
    for leading, sleeping in ((other, first), (first, other)):
        leading.alive, sleeping.alive = True, False
        for student in world.students:
            student.fields["starved_seconds"] = 20.0  # before the other manager first reads it
            student.subscribe(leading)
        world.run(GRACE_S + LEADER_TTL_S)
        assert world.leading == [leading]
    assert desired(world) == len(names)
    assert scaled(world) == []


@pytest.mark.parametrize("same_manager", [True, False])
def test_an_emptied_registry_ends_no_teacher(same_manager: bool) -> None:
    world = World(managers=2, autoscale=BRISK)
    world.teacher("t0", "t1", "t2")
    for name in ("j/0", "j/1", "j/2"):
        world.student(name, want=1)
    world.run(15.0)
    assert desired(world) == 3
    leading = world.leading[0]
    back = list(world.teachers)
    memory(world.registry).clear()
    world.teachers.clear()  # each comes back at its next beat, one after the other
    if not same_manager:
        world.kill(leading)
        for student in world.students:
            student.subscribe(next(one for one in world.managers if one.alive))
    for _ in range(30):
        world.run(0.5)
        if back:
            world.teacher(back.pop())
        assert desired(world) in (None, 3)
    assert desired(world) == 3
    assert [text for text in scaled(world) if not text.startswith("3 ")] == []


def test_a_deployment_bounds_its_service_and_no_other() -> None:
    board, now = MachineBoard(FaultyStore()), [0.0]
    settings = DeploymentSettings(
        board, AutoscaleConfig(freeze_s=1.0, up_after_s=4.0), lambda: now[0]
    )
    assert settings.for_service(SERVICE).max == AutoscaleConfig().max
    board.deploy(DEPLOYED)
    now[0] += 10.0
    scaled = settings.for_service(SERVICE)
    assert (scaled.min, scaled.max, scaled.freeze_s, scaled.up_after_s) == (2, 5, 7.0, 4.0)
    assert settings.for_service("other").max == AutoscaleConfig().max
    assert board.deploy(DEPLOYED.withdrawal, *board.deployments())
    now[0] += 10.0
    assert settings.for_service(SERVICE).max == AutoscaleConfig().max
    usual = AutoscaleConfig(price_per_teacher_hour=1.0, cost_ceiling_per_hour=3.0)
    assert DEPLOYED.autoscale_config(usual).limit == 3
    assert replace(DEPLOYED, price_per_hour=2.5).autoscale_config(usual).limit == 1
    own = replace(DEPLOYED, price_per_hour=0.5)
    assert replace(own, cost_ceiling_per_hour=2.0).autoscale_config(usual).limit == 4
    assert replace(own, min=0, cost_ceiling_per_hour=0.0).autoscale_config(usual).limit == 0
    assert replace(own, cost_ceiling_per_hour=1.5).autoscale_config(AutoscaleConfig()).limit == 3


@pytest.mark.parametrize("price", [0.0, 1.0])
def test_a_cost_ceiling_without_a_price_is_logged(
    price: float, caplog: pytest.LogCaptureFixture
) -> None:
    assert autoscale_config([Given(cost_ceiling=3.0, price=price)]).cost_ceiling_per_hour == 3.0
    assert len(caplog.records) == (not price)


def test_the_server_of_metrics_answers_autoscalers() -> None:
    registry = Registry(FaultyStore())
    assert autoscale_page(registry, "/metrics") is None
    with pytest.raises(UsageError, match="no manager has recently written"):
        autoscale_page(registry, "/autoscale/s")
    with pytest.raises(UsageError, match="the name of a service"):
        autoscale_page(registry, "/autoscale/../x")
    fence = registry.lead("s", "m#1", 600.0).fence
    registry.set_desired("s", fence, 3, "2 students want 3")
    server = MetricsServer("0", CollectorRegistry(), json_route=partial(autoscale_page, registry))
    with (
        closing(server),
        httpx.Client(base_url=f"http://{server.address}", timeout=DEADLINE_S) as client,
    ):
        told = client.get("/autoscale/s?format=json").raise_for_status().json()
        assert (told["desired_teachers"], told["reason"]) == (3, "2 students want 3")
        unknown = client.get("/autoscale/other")
        assert (unknown.status_code, "other" in unknown.json()["error"]) == (404, True)
        assert client.get("/metrics").status_code == 200
        memory(registry).set_available(False)
        assert client.get("/autoscale/s").status_code == 503
    with pytest.raises(RedisUnavailable):
        autoscale_page(registry, "/autoscale/s")
