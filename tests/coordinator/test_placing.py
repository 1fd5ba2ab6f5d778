"""Deployments: what they may say, and the placement of their teachers on machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from edl.coordinator.calling import client
from edl.coordinator.machines import MachineBoard, schema
from edl.coordinator.machines.placement import AVOIDED_S, FRESH_S, HOLD_S, REFUSED_S
from edl.coordinator.machines.placing import SETTLE_S, WITHDRAWN_KEEP_S, Placer
from edl.coordinator.machines.schema import (
    ALLOWED,
    Deployment,
    MachineOrder,
    Report,
    arguments,
    check_options,
    check_url,
    parse_options,
)
from edl.coordinator.operations import deploy, undeploy
from edl.coordinator.registry import DesiredCount, Registry
from edl.proto import coordinator_pb2 as pb
from edl.runtime.errors import UsageError
from edl.scheduler.autoscale import AutoscaleConfig
from edl.teacher.backends.preprocess import BUILT_IN_STEPS
from edl.teacher.options import BACKEND, BATCH, BackendKeys, BatchingKeys
from edl.tests.coordinator.scripted_manager import served
from edl.tests.deploy.command_lines import check
from edl.tests.stores import FaultyStore

A = Deployment("a", "s3://m/a", "aa" * 32, min=1, max=2)
B = Deployment("b", "s3://m/b", "bb" * 32, min=1, max=1, priority=1)
TTL_S = 6.0


class Desiring(Registry):
    """A registry with these numbers from autoscaling, and these refused teachers."""

    counts: dict[str, int]
    refusals: dict[str, str]

    def desired(self, service: str) -> DesiredCount | None:
        return DesiredCount(self.counts[service]) if service in self.counts else None

    def refused(self, service: str) -> dict[str, str]:
        return self.refusals


@dataclass
class Yard:
    """A board, a registry, a placer, and their time."""

    now: list[float] = field(default_factory=lambda: [1_700_000_000.0])
    desired: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = FaultyStore(clock=self.clock)
        self.board = MachineBoard(self.store)
        self.registry = Desiring(FaultyStore(clock=self.clock))
        self.registry.counts, self.registry.refusals = self.desired, self.refusals
        self.placer = self.another()

    def clock(self) -> float:
        return self.now[0]

    def another(self, **options: Any) -> Placer:
        return Placer(self.board, self.registry, clock=self.clock, **options)

    def join(self, name: str, **told: object) -> None:
        self.reports[name] = replace(Report(), **told)  # type: ignore[arg-type]
        self.board.join(name, 1, self.reports[name], TTL_S)

    def tell(self, name: str, **told: object) -> None:
        self.reports[name] = replace(self.reports[name], **told)  # type: ignore[arg-type]
        self.board.beat(name, 1, TTL_S, self.reports[name])

    def pass_s(self, seconds: float, beating: Callable[[str], bool] = lambda _: True) -> None:
        """Let time pass; machines beat, and the placer looks."""
        until = self.now[0] + seconds
        while self.now[0] < until:
            self.now[0] += 0.5
            for name, report in self.reports.items():
                if beating(name):
                    self.board.beat(name, 1, TTL_S, report)
            self.placer.reconcile()

    def empty(self) -> None:
        """Lose all that stands on the board, as when Redis is emptied."""
        self.store.clear()

    def orders(self) -> dict[str, str]:
        return {one.machine_id: one.order.service for one in self.board.machines()}

    def orders_after(self, seconds: float) -> dict[str, str]:
        self.pass_s(seconds)
        return self.orders()

    def log(self, service: str) -> list[tuple[str, str]]:
        return [(one.kind, one.subject) for one in self.registry.events(service)]


def settled(*names: str) -> Yard:
    """With these machines, and a placer that has led for a while."""
    yard = Yard()
    for name in names:
        yard.join(name)
    yard.pass_s(SETTLE_S + 1)
    return yard


def deployed(*names: str) -> Yard:
    yard = settled(*names)
    deploy(yard.board, A)
    yard.pass_s(1.0)
    return yard


def test_a_new_leader_only_looks_for_a_while() -> None:
    yard = Yard()
    yard.join("m")
    deploy(yard.board, A)
    assert yard.orders_after(SETTLE_S - 0.5) == {"m": ""}
    yard.pass_s(2.0)
    (machine,) = yard.board.machines()
    assert (machine.order.number, machine.order.deployment) == (1, yard.board.deployments()[0])
    assert yard.log("a") == [("placed", "m")]
    old, yard.placer = yard.placer, yard.another()
    assert not yard.placer.reconcile(), "another one leads"
    old.stop()
    yard.pass_s(SETTLE_S + 2)
    assert [one.order for one in yard.board.machines()] == [machine.order]
    assert not old.reconcile()


def test_autoscaling_says_how_many_within_the_bounds() -> None:
    yard = deployed("m", "n", "o")
    assert list(yard.orders().values()).count("a") == 1
    yard.desired["a"] = 9
    assert list(yard.orders_after(1.0).values()).count("a") == 2
    yard.desired["a"] = 0  # no student is there yet
    assert list(yard.orders_after(1.0).values()).count("a") == 1
    yard.placer.stop()
    yard.placer = yard.another(defaults=AutoscaleConfig(idle_to_zero_s=5.0))
    assert set(yard.orders_after(SETTLE_S + 1).values()) == {""}


@pytest.mark.parametrize("refused", [False, True])
def test_other_teachers_of_the_service_count(refused: bool) -> None:
    yard = settled("m")
    yard.registry.register("teachers", "a", "by-hand", {"incarnation": "1"}, 3600.0)
    deploy(yard.board, A)
    assert yard.orders_after(1.0) == {"m": ""}
    if refused:
        yard.refusals["by-hand"] = "refused: another instance answers"
    else:
        yard.registry.leave("teachers", "a", "by-hand")
    assert yard.orders_after(1.0) == {"m": "a"}
    yard.registry.register("teachers", "a", "m", {"incarnation": "1"}, 3600.0)  # its own
    assert yard.orders_after(1.0) == {"m": "a"}


def test_a_refused_teacher_goes_first_and_does_not_keep_its_machine() -> None:
    yard = deployed("m", "n")
    yard.desired["a"] = 2
    yard.pass_s(1.0)
    for name in ("m", "n"):
        yard.tell(name, state="serving", service="a", content_id=A.content_id, teacher_id=name)
    yard.refusals["m"] = "refused: it does not answer"
    yard.desired["a"] = 1
    assert yard.orders_after(1.0) == {"m": "", "n": "a"}
    yard.tell("m", state="idle", service="", content_id="")
    yard.refusals |= {"n": yard.refusals.pop("m")}
    assert yard.orders_after(REFUSED_S - 2.0) == {"m": "", "n": "a"}
    assert yard.orders_after(3.0) == {"m": "a", "n": ""}
    assert ("released", "n") in yard.log("a")
    yard.tell("n", state="idle", service="", content_id="")
    yard.desired["a"] = 2
    assert yard.orders_after(AVOIDED_S - 2.0) == {"m": "a", "n": ""}
    assert yard.orders_after(3.0) == {"m": "a", "n": "a"}


def test_a_machine_that_is_gone_is_replaced_and_forgets_its_order() -> None:
    yard = deployed("m", "n")
    (holder,) = [name for name, service in yard.orders().items() if service]
    yard.pass_s(TTL_S + 1.0, beating=lambda name: name != holder)
    assert list(yard.orders().values()) == ["a"]
    assert ("released", holder) in yard.log("a")
    yard.join(holder)
    assert yard.orders()[holder] == ""


def test_a_machine_that_others_use_or_that_fails_is_given_back_and_comes_again() -> None:
    yard = deployed("m")
    for told, service in (
        ({"state": "draining", "leaving": True}, ""),
        ({"state": "yielded"}, ""),
        ({"state": "idle", "leaving": False}, "a"),
    ):
        yard.tell("m", **told)
        assert yard.orders_after(1.0) == {"m": service}
    name = schema.retry_key(A)
    yard.tell("m", state="failing", blocked=(name,), troubles=("another content",))
    assert yard.orders_after(5.0) == {"m": ""}
    assert yard.log("a").count(("failed", "m")) == 1
    assert yard.registry.events("a")[-1].text == "another content"
    yard.tell("m", state="idle", blocked=(), troubles=())
    assert yard.orders_after(1.0) == {"m": "a"}
    yard.tell("m", state="failing", blocked=(name,), troubles=("another content",))
    yard.pass_s(1.0)
    assert yard.log("a").count(("failed", "m")) == 2
    yard.placer.stop()
    yard.placer = yard.another()
    yard.pass_s(SETTLE_S + 1)
    assert yard.log("a").count(("failed", "m")) == 2, "its leader's predecessor has logged it"


def test_serving_goes_on_when_redis_is_emptied() -> None:
    """An emptied Redis: the agents are back, the deployments are not."""
    yard = Yard()
    yard.join("m", state="serving", service="a", content_id=A.content_id, order=7)
    yard.join("n")
    deploy(yard.board, B)
    assert yard.orders_after(SETTLE_S + 2) == {"m": "", "n": "b"}
    deploy(yard.board, A)
    yard.pass_s(2.0)
    assert yard.board.machines()[0].order == MachineOrder()  # it has what it is to have
    yard.desired["a"] = 0
    yard.pass_s(FRESH_S)
    assert yard.board.machines()[0].order.number == 8


def test_deployments_that_redis_has_lost_are_put_back_by_any_manager_that_knows_them() -> None:
    yard = settled("m", "n")
    placers = [yard.another() for _ in range(2)]
    yard.placer.stop()
    deploy(yard.board, A)
    deploy(yard.board, B)
    undeploy(yard.board, "b")
    for placer in placers:
        placer.reconcile()
    for placer in placers:
        yard.empty()
        assert placer.reconcile()
        found = {one.service: one.withdrawn for one in yard.board.deployments()}
        assert found == {"a": False, "b": True}
    first, second = placers
    second.reconcile()
    yard.now[0] += 60.0  # it is suspended
    assert first.reconcile()
    undeploy(yard.board, "a")
    for _ in range(2 * int(SETTLE_S) + 4):
        yard.now[0] += 0.5
        first.reconcile()
    first.stop()
    second.reconcile()
    assert all(one.withdrawn for one in yard.board.deployments()), "it was undeployed meanwhile"


def test_the_managers_cost_ceiling_holds_for_deployments_without_their_own() -> None:
    yard = Yard()
    for name in "mno":
        yard.join(name)
    yard.placer = yard.another(
        defaults=AutoscaleConfig(price_per_teacher_hour=1.0, cost_ceiling_per_hour=2.0)
    )
    deploy(yard.board, replace(A, min=3, max=3))
    assert list(yard.orders_after(SETTLE_S + 1).values()).count("a") == 2


def test_a_service_is_given_its_least_when_it_is_fresh_and_not_for_ever() -> None:
    yard = deployed("m")
    assert yard.orders() == {"m": "a"}
    assert yard.orders_after(FRESH_S) == {"m": ""}
    yard.registry.register("students", "a", "j/0", {"incarnation": "1"}, 3600.0)
    assert yard.orders_after(1.0) == {"m": "a"}
    yard.registry.leave("students", "a", "j/0")
    yard.placer.stop()
    yard.placer = yard.another()
    assert yard.orders_after(HOLD_S - 1) == {"m": "a"}
    assert yard.orders_after(2.0) == {"m": ""}


def test_a_service_that_is_undeployed_gives_back_and_is_forgotten() -> None:
    yard = deployed("m")
    with pytest.raises(UsageError, match="edl delete service a"):
        deploy(yard.board, replace(A, content_id="cc" * 32))
    deploy(yard.board, replace(A, max=5))
    assert yard.board.deployments()[0].max == 5
    yard.tell("m", state="serving", service="a", content_id=A.content_id)
    assert "1" in undeploy(yard.board, "a")
    assert yard.orders_after(1.0) == {"m": ""}
    assert yard.board.deployments()[0].withdrawn  # its teacher is not gone yet
    yard.now[0] += WITHDRAWN_KEEP_S
    yard.join("m", state="serving", service="a", content_id=A.content_id)
    yard.pass_s(SETTLE_S + 1)
    yard.tell("m", state="idle", service="", content_id="")
    assert yard.board.deployments()[0].withdrawn  # its teacher was not gone yet
    yard.pass_s(1.0)
    assert yard.board.deployments() == []
    with pytest.raises(UsageError, match="not deployed"):
        undeploy(yard.board, "a")


def test_a_machine_that_was_cut_off_gives_back_what_was_undeployed_meanwhile() -> None:
    yard = deployed("m")
    yard.tell("m", state="serving", service="a", content_id=A.content_id, order=1)
    yard.placer.stop()
    yard.now[0] += TTL_S + 1.0
    undeploy(yard.board, "a")
    yard.placer = yard.another()
    yard.pass_s(SETTLE_S + 1, beating=lambda _: False)
    assert yard.board.ordered_machines() == [], "also of machines that another leader lost"
    yard.join("m", state="serving", service="a", content_id=A.content_id, order=1)
    yard.pass_s(1.0)
    (order,) = [machine.order for machine in yard.board.machines()]
    assert (order.number, order.service) == (2, "")


class Overtaken(MachineBoard):
    """A board on which another operator is quicker, once."""

    def __init__(self, quicker: Callable[[MachineBoard], object]) -> None:
        super().__init__(FaultyStore())
        self.quicker: Callable[[MachineBoard], object] | None = quicker

    def deployments(self) -> list[Deployment]:
        found = super().deployments()
        quicker, self.quicker = self.quicker, None
        if quicker is not None:
            quicker(self)
        return found


def test_orders_given_at_once_are_carried_out_one_after_the_other() -> None:
    other = replace(A, content_id="cd" * 32)
    board = Overtaken(lambda board: deploy(board, other))
    with pytest.raises(UsageError, match=f"deployed with content {other.content_id}"):
        deploy(board, A)
    assert [one.content_id for one in board.deployments()] == [other.content_id]

    def replaced(board: MachineBoard) -> None:
        undeploy(board, "a")
        deploy(board, other)

    board = Overtaken(lambda board: None)
    deploy(board, A)
    board.quicker = replaced
    undeploy(board, "a")
    (found,) = board.deployments()
    assert (found.content_id, found.withdrawn) == (other.content_id, True)


def test_an_operator_deploys_and_takes_back_by_any_manager() -> None:
    request = pb.DeployRequest(
        service="a", model_url=A.model_url, content_id=A.content_id, options=["threads=2"],
        min=1, max=2, freeze_seconds=5.0, priority=-1,
    )  # fmt: skip
    with served() as mesh:
        assert "a is to have 1 to 2 teachers" in client.deploy(mesh.url, request)
        (found,) = MachineBoard(FaultyStore.shared(mesh.url)).deployments()
        assert (found.options, found.freeze_s, found.priority) == ((("threads", "2"),), 5.0, -1)
        with pytest.raises(UsageError, match="cannot set 'host'"):
            client.deploy(mesh.url, pb.DeployRequest(service="a", options=["host=0.0.0.0"]))
        withdraw = pb.DeployRequest(service="a", withdraw=True)
        assert "gives its machines back" in client.deploy(mesh.url, withdraw)
        with pytest.raises(UsageError, match="not deployed"):
            client.deploy(mesh.url, pb.DeployRequest(service="b", withdraw=True))


GOOD = Deployment("a", "s3://bucket/a", "ab" * 32, options=(("micro-batch", "4"),), max=3)
#: Options of a teacher that name code, programs, files or sockets of the machine.
DANGEROUS = (
    "model=os:system", "preprocess=os:system", "preprocess=a.b:c", "serving-python=/bin/sh",
    "engine=paddle-serving", "backend=callable", "canary=/etc/passwd", "host=0.0.0.0",
    "insecure=true", "tokens=/tmp/x", "tls-key=/tmp/x", "coordinator=redis://evil",
    "teacher-id=other", "service=other", "http=0.0.0.0:80", "metrics-listen=0.0.0.0:80",
    "advertise=evil:1", "devices=gpu:0", "no-self-test=true",
)  # fmt: skip


@pytest.mark.parametrize(
    "texts",
    [*([option] for option in DANGEROUS), ["micro-batch"], ["micro-batch=0"],
     ["micro-batch=4", "micro-batch=8"], ["rate=--x"], ["rate=1e9999"], ["threads=-1"],
     ["input=a:FP32"], ["input=a:FP32:1;rm"], ["slots="], ["micro-batch=4\n--listen=0.0.0.0"],
     ["preprocess=unit"] * 65],
)  # fmt: skip
def test_options_that_could_open_a_door_or_have_another_form_are_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match=r"option|cannot set"):
        parse_options(texts)


def test_allowed_options_become_arguments_of_a_teacher() -> None:
    values = {"backend": "paced", "deterministic": "true", "input": "x:FP32:-1",
              "output": "y:FP32:1", "precision": "bf16", "preprocess": "unit"}  # fmt: skip
    every = [(name, values.get(name, "8")) for name in ALLOWED]
    check_options(every)
    read = check(["edl-teacher", "serve", "--model", "m", *arguments(every)])
    assert BACKEND.read(read["backend"]) == BackendKeys("paced", 8.0)
    assert BATCH.read(read["batch"]) == BatchingKeys(8, 8.0, "8")
    assert (read["slots"], read["threads"], list(read["outputs"])) == (8, 8, ["y:FP32:1"])
    for name in BUILT_IN_STEPS:
        assert parse_options([f"preprocess={name}"])
    options = parse_options(["--micro-batch=auto", "deterministic=true", "input=x:FP32:-1,3"])
    assert arguments(options) == ["--micro-batch=auto", "--deterministic", "--input=x:FP32:-1,3"]
    with pytest.raises(UsageError, match="did you mean micro-batch"):
        parse_options(["microbatch=4"])


@pytest.mark.parametrize(
    "url",
    ["/models/a", "a", "ftp://h/a", "ssh://h/a", "s3://", "file:///", "zip://a::https://h/b",
     "https://user:word@h/a", "s3://b/a b", "s3://b/\n", "memory://a", "s3://" + "x" * 3000],
)  # fmt: skip
def test_a_url_that_is_no_models_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_url(url)
    assert "word" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    "change",
    [{"min": 4}, {"min": -1}, {"priority": 5000}, {"price_per_hour": float("inf")},
     {"price_per_hour": -1.0}, {"freeze_s": 1e9}, {"content_id": "AB" * 32}, {"content_id": ".."},
     {"service": "a b"}, {"model_url": "nowhere"}, {"options": [["host", "0.0.0.0"]]},
     {"options": [["micro-batch"]]}, {"options": "x"}, {"min": "1"}, {"withdrawn": 1},
     {"cost_ceiling_per_hour": "1"}, {"cost_ceiling_per_hour": -1.0, "price_per_hour": 1.0},
     {"cost_ceiling_per_hour": 5.0, "price_per_hour": 0.0}, {"price_per_hour": 10**400},
     {"cost_ceiling_per_hour": 1.0, "price_per_hour": 0.6, "min": 2, "max": 2}],
)  # fmt: skip
def test_a_record_that_could_not_be_deployed_is_not_read_either(change: dict[str, object]) -> None:
    told = {**asdict(GOOD), **change}
    text = json.dumps(told)
    assert schema.deployment_from(text) is None
    order = json.dumps({"number": 3, "deployment": told, "why": ""})
    assert schema.order_from(order) == MachineOrder()


def test_what_was_written_is_read_and_newer_fields_are_left_out() -> None:
    assert schema.deployment_from(schema.json_of(GOOD)) == GOOD
    newer = json.dumps({**asdict(GOOD), "of_tomorrow": 1})
    assert schema.deployment_from(newer) == GOOD
    older = {name: getattr(GOOD, name) for name in ("service", "model_url", "content_id")}
    assert schema.deployment_from(json.dumps(older)) == Deployment(**older)
    assert schema.order_from(schema.json_of(MachineOrder(2, GOOD, "why"))) == MachineOrder(
        2, GOOD, "why"
    )
    told = Report(blocked=(schema.retry_key(GOOD),), troubles=("it broke",))
    assert Report.from_json(asdict(told)).trouble_with(GOOD) == "it broke"


@pytest.mark.parametrize("before", ["deployments", "lead"])
def test_a_loss_of_data_within_a_round_loses_no_deployment(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard = deployed("m")
    call = getattr(yard.board, before)

    def emptied(*arguments: Any) -> Any:
        monkeypatch.undo()
        yard.empty()
        return call(*arguments)

    monkeypatch.setattr(yard.board, before, emptied)
    yard.pass_s(1.0)
    assert [one.service for one in yard.board.deployments()] == ["a"]
