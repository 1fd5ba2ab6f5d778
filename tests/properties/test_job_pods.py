"""Laws of elastic jobs whose nodes are pods, whenever who decides is killed."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from edl.deploy.operator.config import OperatorConfig
from edl.scheduler.elastic_values import ElasticConfig

from ..deploy.operator.pod_world import AT_ONCE, Killed, PodWorld

#: Each example is a whole life of a cluster.
FEW = settings(max_examples=max(10, settings().max_examples // 3))
Step = tuple[str, int, int]
Shapes = list[tuple[int, int, int, int]]  # of each job: least, more, priority, cpu

SHAPE = st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 2), st.integers(1, 2))
SHAPES = st.lists(SHAPE, min_size=1, max_size=4)
HAPPENS = (
    "fail", "lose", "evict", "done", "ask", "wrong", "stop", "go", "room", "reserve", "wait",
    "kill",
)  # fmt: skip
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.sampled_from(HAPPENS), st.integers(0, 3), st.integers(0, 8)), max_size=10
)
#: So many pods of one job can be placed at all; None: as many as there is room.
PLACEABLE = st.none() | st.integers(0, 3)
CONFIGS = st.builds(
    lambda freeze_s, gap, load: OperatorConfig(
        elastic=ElasticConfig(freeze_s=freeze_s, rebalance_gap=gap, max_load=load),
        place_within_s=60,
        lost_pause_s=0,
    ),
    st.sampled_from([0.0, 30.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([1.0, 0.75]),
)


def world_of(
    shapes: Shapes, room: int, config: OperatorConfig, placeable: int | None = None
) -> PodWorld:
    world = PodWorld(room, config, placeable=placeable)
    for index, (least, more, priority, cpu) in enumerate(shapes):
        needs = {"cpu": float(cpu)}
        world.submit(f"job{index}", least, least + more, priority=priority, needs=needs)
    return world


ROOMS = st.integers(0, 14)
WORLDS = st.builds(world_of, SHAPES, ROOMS, CONFIGS, PLACEABLE)
PROMPT_WORLDS = st.builds(world_of, SHAPES, ROOMS, st.just(AT_ONCE), PLACEABLE)


def happen(world: PodWorld, step: Step) -> None:
    what, index, amount = step
    name = f"job{index % len(world.wanted)}"
    staying = world.staying(name)
    match what:
        case "fail" | "lose" | "done" if staying:
            code = {"fail": 3, "lose": None, "done": 0}[what]
            world.end(name, staying[amount % len(staying)], code)
        case "evict" if staying:
            number = staying[amount % len(staying)]
            world.pods[name][number] = replace(world.pods[name][number], deleting=True)
        case "ask":
            world.ask(name, node_limit=amount or None)
        case "wrong":
            world.ask(name, spec_error="no such template" if amount % 3 else "")
        case "stop" | "go":
            world.ask(name, stop=what == "stop")
        case "room":
            world.room = amount
        case "reserve":
            world.reserved = amount / 2
        case "wait":
            world.live(amount * 15.0)
        case "kill":
            die(world, 1 + amount)
            world.live(0)


def die(world: PodWorld, kill_at: int) -> None:
    """Who decides dies before the call of number `kill_at`, or has made fewer."""
    world.calls = 0
    with contextlib.suppress(Killed):
        world.reconcile(kill_at)


def check(world: PodWorld) -> None:
    limit = max(0.0, world.room * world.config.elastic.max_load - world.held) + 1e-6
    cpu = {name: one.needs["cpu"] for name, one in world.wanted.items() if not one.spec_error}
    assert sum(world.ledgers[name].target * cpu[name] for name in cpu) <= limit
    for name, wanted in world.wanted.items():
        target, staying = world.ledgers[name].target, len(world.staying(name))
        assert target <= wanted.most
        fewer = (
            world.orders[name].ledger.done or wanted.spec_error
        )  # the last ones, or what is left
        assert target == 0 or target >= wanted.least or fewer
        assert staying <= target
        if wanted.stop:
            assert staying == 0


@FEW
@given(WORLDS, STEPS)
def test_whatever_happens_jobs_stay_within_limits(world: PodWorld, steps: list[Step]) -> None:
    for step in [("wait", 0, 0), *steps]:
        happen(world, step)
        world.reconcile()
        check(world)
        world.live()
        world.reconcile()
        check(world)
        pods = [pod for of_job in world.pods.values() for pod in of_job.values()]
        if any(pod.deleting and pod.machine == "none" for pod in pods):
            continue  # such a node held no room: what it was counted with is free at once
        again = world.decide()  # what is decided and carried out is not decided again
        assert [one.job for one in again] == list(world.wanted)
        for one in again:
            # What was told to leave is still there, and its room is nobody else's yet.
            assert (one.start, one.leave, one.events) == ((), (), ())
            assert one.ledger == world.ledgers[one.job]


@FEW
@given(st.integers(1, 4), st.integers(0, 6), st.integers(0, 5), st.lists(st.integers(1, 8)))
def test_no_retry_is_counted_twice(nodes: int, retries: int, fails: int, kills: list[int]) -> None:
    world = PodWorld(nodes)
    world.submit("a", nodes, nodes, retries=retries)
    world.rest()
    failed = 0
    for _ in range(fails):
        if not world.staying("a"):
            break
        world.end("a", world.staying("a")[0], 1)
        failed += 1
        for kill_at in kills:
            die(world, kill_at)
            world.live(0)
        world.rest(40)
    assert world.ledgers["a"].failures == failed
    assert (world.state("a") == "failed") == (failed > retries)


@FEW
@given(SHAPES, st.integers(1, 14), st.integers(0, 4))
@example([(3, 2, 2, 2), (3, 4, 2, 1), (2, 4, 0, 2), (3, 2, 2, 2)], 6, 2)
@example([(3, 0, 2, 1), (3, 3, 0, 2), (2, 1, 1, 2), (1, 1, 1, 2)], 5, 2)
def test_what_cannot_be_placed_keeps_nobody_from_running(
    shapes: Shapes, room: int, placeable: int
) -> None:
    """Of the jobs that can be placed, one of the highest priority runs half of the time.

    It need not be the oldest one: a running job goes before a waiting one of its priority, and one
    that needs less may have overtaken it.
    """
    world = world_of(shapes, room, AT_ONCE, placeable)
    fits = {
        name
        for name, wanted in world.wanted.items()
        if wanted.least <= placeable and wanted.least * wanted.needs["cpu"] <= room
    }
    highest = max((world.wanted[name].priority for name in fits), default=0)
    first = {name for name in fits if world.wanted[name].priority == highest}
    seconds_run = 0
    for _ in range(240):
        world.reconcile()
        running = set()
        for name, wanted in world.wanted.items():
            staying = [pod for pod in world.pods[name].values() if pod.stays]
            if sum(pod.runs for pod in staying) >= wanted.least:
                running.add(name)
            for pod in staying:
                assert pod.unplaced_since_s is None or world.now - pod.unplaced_since_s < 60
        if running & first:
            seconds_run += 30
        world.live(30)
    if first:
        assert seconds_run >= 3600


@FEW
@given(PROMPT_WORLDS, st.lists(st.integers(0, 100), max_size=6))
def test_while_specs_are_wrong_nothing_is_done(world: PodWorld, pauses: list[int]) -> None:
    world.reconcile()
    world.live()
    for name in world.wanted:
        world.ask(name, spec_error="no such template")
    world.reconcile()
    calls, told = world.calls, list(world.said)
    for pause_s in pauses:
        world.live(pause_s)
        world.reconcile()
    assert world.calls == calls
    assert world.said == told
