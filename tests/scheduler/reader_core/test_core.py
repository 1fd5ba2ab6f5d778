"""The core of a reader, event by event, in virtual time."""

from __future__ import annotations

import random

import pytest

from edl.proto.dataclass_json import from_plain, to_plain
from edl.scheduler.canaries import CanaryConfig
from edl.scheduler.circuit_breakers import PAUSE_S
from edl.scheduler.flow import FlowConfig
from edl.scheduler.reachability import ATTEMPT_S, SILENT_S
from edl.scheduler.reader_core import CoreConfig, ReaderCore
from edl.scheduler.reader_core import events as ev
from edl.scheduler.reader_core import instructions as do
from edl.scheduler.reader_core.events import Advice
from edl.scheduler.reader_core.hedging import LOOK_EVERY_S
from edl.scheduler.reader_core.windows import WindowConfig

ROWS = 4
NBYTES = 100


class World:
    """A core, its teachers and its student, as a test says."""

    def __init__(self, window_max: int = 2, **options: object) -> None:
        flow = FlowConfig(100 * NBYTES, 50 * NBYTES, teachers_max=64)
        config = CoreConfig("s", flow, WindowConfig(2, window_max), **options)  # type: ignore[arg-type]
        self.core = ReaderCore(config, random.Random(7))
        self.now = 0.0
        self.links: dict[str, int] = {}
        self.asked: list[do.SendRequest] = []
        self.probes: list[str] = []
        self.pulled = 0

    def tell(self, event: ev.Event) -> list[do.Instruction]:
        out = self.core.handle(event, self.now)
        for one in out:
            match one:
                case do.OpenConnection(link, peer):
                    self.links[peer.teacher_id] = link
                case do.Probe(_, teacher):
                    self.probes.append(teacher)
                case do.SendRequest():
                    self.asked.append(one)
        return out

    def assign(self, *names: str, ready: bool = True) -> None:
        self.tell(ev.Assigned(tuple(ev.Peer(name, name, "m") for name in names)))
        for name in names if ready else ():
            self.tell(ev.Probed(name, self.links[name]))

    def queue(self) -> None:
        self.tell(ev.Pulled(0.0, ROWS, ROWS))
        self.tell(ev.Queued(self.pulled, NBYTES, ROWS))
        self.pulled += 1

    def answer(self, device_s: float = 0.1) -> list[do.Instruction]:
        """The request that was sent first is answered."""
        ask = self.asked.pop(0)
        return self.tell(
            ev.AnswerCame(ask.send.teacher, ask.link, ask.send.request, ROWS, 8, device_s, ROWS)
        )

    def fail(self, failure: ev.FailureCause) -> None:
        """The request that was sent first comes to nothing."""
        send, link, _ = self.asked[0].send, self.asked[0].link, self.asked.pop(0)
        self.tell(ev.RequestFailed(send.teacher, link, send.request, failure, "as the test says"))


def test_what_comes_over_a_closed_connection_counts_for_nothing() -> None:
    world = World()
    world.assign("a")
    world.queue()
    late = world.asked[0]
    world.fail("lost")
    assert world.links["a"] != late.link
    answer = ev.AnswerCame("a", late.link, late.send.request, ROWS, 8, 0.1, ROWS)
    assert world.tell(answer) == [do.Discard(late.send.request, "a")]
    assert world.core.ledger.labelled == 0


def test_a_cancelled_request_keeps_neither_a_time_nor_the_connection() -> None:
    world = World()
    world.assign("a")
    world.queue()
    sent = world.asked[0].send
    world.assign()
    assert world.core.pacing.oldest("a") == 0.0
    assert do.CloseConnection(world.links["a"]) in world.tell(ev.Cancelled("a", sent.request))
    assert world.core.pacing.oldest("a") is None


def test_refusing_teachers_are_ejected_and_their_batches_are_labelled_by_others() -> None:
    world = World()
    world.assign("good", "u", "v", "w")
    for _ in range(8):
        world.queue()
    world.asked.sort(key=lambda ask: ask.send.teacher == "good")
    for _ in range(200):
        if not world.asked:
            break
        if world.asked[0].send.teacher == "good":
            world.answer()
        else:
            world.fail("refused")
    assert world.core.ledger.labelled == 8
    assert set(world.core.teachers.breakers.ejected) == {"u", "v", "w"}


@pytest.mark.parametrize("is_probed", [False, True])
def test_a_teacher_that_is_ejected_for_failures_is_replaced_until_it_is_readmitted(
    is_probed: bool,
) -> None:
    """`is_probed`: a probe is under way when the third failure ejects the teacher."""
    world = World()
    world.assign("a", "b")
    world.tell(ev.Tick())
    want = world.core.decision.want
    probed = ev.Probed("a", world.links["a"])
    for _ in range(4):
        world.queue()

    def fail() -> None:
        world.asked.sort(key=lambda ask: ask.send.teacher == "b")
        world.fail("failed")

    fail()
    world.tell(probed)
    fail()
    world.now += 1.0 if is_probed else 0.0
    world.tell(ev.Tick())
    fail()
    if is_probed:
        world.tell(probed)
    world.now += LOOK_EVERY_S
    assert do.ReportNow() in world.tell(ev.Tick())
    assert world.core.teachers.breakers.ejected == {"a": "failed"}
    assert (world.core.unavailable, world.core.decision.want) == (frozenset("a"), want + 1)
    assert "as the test says" in world.core.teachers.links.last_trouble
    world.probes.clear()
    world.now += PAUSE_S["failed"]
    world.tell(ev.Tick())
    assert world.probes == ["a"]
    world.tell(probed)
    world.tell(ev.Tick())
    assert (world.core.unavailable, world.core.decision.want) == (frozenset(), want)


def test_a_lone_teacher_gets_a_batch_that_crashed_it_again_after_all_others() -> None:
    world, sent = World(), list[int]()
    world.assign("a")
    world.probes.clear()
    world.queue()
    for turn in range(20):
        while world.asked:
            sent.append(batch := world.asked[0].send.spans[0].batch)
            if batch == 0:
                world.fail("crashed")
            else:
                world.answer()
        if turn == 0:
            world.queue()
            world.queue()
        world.now += 1.0
        world.tell(ev.Tick())
        while world.probes:
            world.tell(ev.Probed(name := world.probes.pop(), world.links[name]))
    assert sent == [0, 1, 2, 0, 0]
    assert world.core.ledger.unlabelled == 0, "batch 0 is poison after three crashes"


def test_the_last_answers_of_a_revoked_teacher_leave_no_time() -> None:
    world = World()
    world.assign("slow", "fast")
    for _ in range(4):
        world.queue()
    world.assign("fast")
    for device_s in (8.0, 0.4, 8.0, 0.4):
        world.answer(device_s)
    assert world.core.stats.t_t_s == pytest.approx(0.1)
    assert world.core.stats.served("slow") == 0


def test_no_batch_waits_for_a_teacher_that_rests_and_fits_no_more() -> None:
    world = World()
    world.assign("rests", "refuses")
    world.queue()
    world.fail("failed")
    assert world.asked[0].send.teacher == "refuses"
    world.answer()
    world.queue()
    world.fail("refused")
    assert world.core.ledger.unlabelled == 1, "the other one may label it"
    probed = ev.Probed("rests", world.links["rests"], misfit="other outputs")
    assert any(isinstance(one, do.Poison) for one in world.tell(probed))


def test_a_teacher_that_was_lost_is_not_said_to_be_reachable() -> None:
    world = World()
    peers = {name: ev.Peer(name, name, "m") for name in ("a", "b")}
    world.tell(ev.Assigned((*peers.values(),)))
    said: list[str] = []
    for _ in range(60):
        world.now += 0.1
        for one in world.tell(ev.Tick()):
            match one:
                case do.TryPaths(_, began_at):
                    world.tell(ev.PathsTried(began_at, dict.fromkeys(peers.values(), "no path")))
                case do.LogMessage(_, text):
                    said.append(text)
    assert world.core.teachers.links.out_of_reach == {"a", "b"}
    world.tell(ev.Assigned((peers["b"],), lost=frozenset("a")))
    world.now += 0.1
    said = [one.text for one in world.tell(ev.Tick()) if isinstance(one, do.LogMessage)]
    assert world.core.teachers.links.out_of_reach == {"b"}
    assert "teacher a can be reached again" not in said


def test_a_breaker_is_half_open_when_its_teacher_may_be_probed() -> None:
    world = World()
    world.assign("a", "b")
    breakers = world.core.teachers.breakers
    breakers.convict("a", "wrong", world.now)
    assert list(breakers.ejected) == ["a"]
    assert breakers.half_open(1, world.now) == []
    world.now += breakers.pause_s("a", 1, world.now)
    assert breakers.half_open(1, world.now) == ["a"]


def test_a_step_that_is_long_now_and_then_asks_for_no_more_teachers() -> None:
    """An asynchronous device: four gaps of 5 ms, and every fifth of 480 ms."""
    world = World()
    world.assign("a", "b")
    for number in range(200):
        world.queue()
        world.now += 0.1
        world.answer(device_s=0.15)
        world.tell(ev.Released(number))
        world.tell(ev.BatchTaken(number, ROWS, 0.48 if number % 5 == 4 else 0.005))
        world.tell(ev.Tick())
    assert world.core.decision.needed == 2


def test_a_teacher_that_has_no_room_gets_fewer_requests_at_once() -> None:
    world = World(window_max=8)
    world.assign("a")
    for _ in range(9):
        world.queue()
    taken = 0
    while len(world.asked) == 2:  # until a wider window is tried
        assert taken < 200
        world.queue()
        world.now += 0.1
        world.answer(device_s=0.05)
        world.tell(ev.Released(taken))
        world.tell(ev.BatchTaken(taken, ROWS, 0.01))
        taken += 1
    assert len(world.core.ledger.in_flight_at("a")) == 3
    world.fail("full")
    world.now += 60.0
    world.tell(ev.Tick())
    world.tell(ev.Probed("a", world.links["a"]))
    assert len(world.core.ledger.in_flight_at("a")) == 2


@pytest.mark.parametrize("agrees", [True, False])
def test_a_newcomer_gets_a_copy_and_is_admitted_once_it_agrees(agrees: bool) -> None:
    world = World(canaries=CanaryConfig(0.0))
    world.assign("a", "b")
    world.queue()
    first, copy = world.asked
    assert (first.in_own_memory, copy.in_own_memory) == (False, True)
    assert first.send.request == copy.send.request
    out = world.answer()
    assert do.KeepAnswer(first.send.request, "a") in out
    answer = ev.AnswerCame("b", copy.link, copy.send.request, ROWS, 8, 0.1, ROWS)
    out = world.tell(answer._replace(agrees=frozenset({"a"} if agrees else ())))
    assert do.DropAnswers(first.send.request) in out
    assert (world.core.ledger.on_trial == ()) is agrees
    disputed = do.Disputed(first.send.request, ("a", "b"), ("a", "b"))
    assert (disputed in out) is not agrees


def publish(world: World, name: str, kind: str, unconverted: bool = True) -> list[do.Instruction]:
    kinds = (ev.PublishedKind("out", kind, unconverted),)
    return world.tell(ev.Probed(name, world.links[name], kinds=kinds))


def labelled_as(world: World, name: str, kind: str, *, unconverted: bool = True) -> World:
    """A batch is labelled by this teacher, which publishes this kind."""
    world.assign(name, ready=False)
    publish(world, name, kind, unconverted=unconverted)
    world.queue()
    world.answer()
    return world


def usable(world: World) -> set[str]:
    return set(world.core.ledger.usable_teachers)


def test_a_teacher_that_publishes_another_kind_of_output_does_not_label() -> None:
    world = labelled_as(World(), "a", "logits")
    world.assign("a", "b", "c", ready=False)
    out = publish(world, "b", "probabilities")
    [said] = [one for one in out if isinstance(one, do.LogMessage)]
    assert said.level == "warning"
    assert "b is ejected: it does not fit: it publishes that output 'out' is prob" in said.text
    publish(world, "c", "log-probabilities")
    assert usable(world) == {"a", "c"}, "log-probabilities are valid logits"
    assert "--output out=KIND" in said.text


def test_the_kind_stays_when_the_teachers_that_published_it_are_gone() -> None:
    world = labelled_as(World(), "a", "logits")
    world.assign("b", ready=False)
    assert not any(
        isinstance(one, do.RefuseSettings) for one in publish(world, "b", "probabilities")
    )
    assert usable(world) == set()
    assert "does not fit" in world.core.teachers.links.last_trouble


def test_the_kind_is_open_again_while_nothing_is_labelled() -> None:
    world = World()
    world.assign("a", ready=False)
    publish(world, "a", "logits")
    world.assign("b", ready=False)
    publish(world, "b", "probabilities")
    assert usable(world) == {"b"}


def test_another_engine_takes_outputs_for_the_same_kind() -> None:
    before = labelled_as(World(), "a", "logits")
    left = from_plain(ev.HandoffState, to_plain(before.core.model_switch.handoff_state))
    world = World()
    world.tell(ev.EngineResumed(0, left, ended=False, waiting=False))
    world.assign("b", ready=False)
    publish(world, "b", "probabilities")
    assert usable(world) == set()


@pytest.mark.parametrize(("unconverted", "follows"), [(True, False), (False, True)])
def test_the_next_model_content_may_have_another_kind_where_teachers_make_the_labels(
    unconverted: bool, follows: bool
) -> None:
    world = World()

    def move(name: str, content: str, kind: str) -> None:
        peers = (ev.Peer(name, name, "m", content_id=content),)
        world.tell(ev.Assigned(peers, advice=Advice(content)))
        publish(world, name, kind, unconverted=unconverted)

    move("a", "one", "logits")
    world.queue()
    world.answer()
    move("b", "two", "probabilities")
    assert (usable(world) == {"b"}) == follows


def test_silence_is_noticed_while_another_teacher_is_being_tried() -> None:
    world = World()
    world.assign("a", "b")
    for _ in range(2):
        world.queue()

    def tried(now: float) -> list[str]:
        world.now = now
        found = [one for one in world.tell(ev.Tick()) if isinstance(one, do.TryPaths)]
        return [peer.teacher_id for one in found for peer in one.peers]

    assert tried(0.0) == []
    assert tried(SILENT_S) == ["a", "b"]
    a, b = world.core.teachers.links.wanted.values()
    world.tell(ev.PathsTried(began_at=SILENT_S, refusals={a: "no route", b: ""}))
    world.asked.sort(key=lambda ask: ask.send.teacher == "a")
    world.answer()
    assert tried(SILENT_S + 0.1) == []
    assert tried(SILENT_S + ATTEMPT_S + 0.05) == ["a"]
    assert tried(SILENT_S + SILENT_S + 0.2) == ["b"], "the attempt to reach a has no result yet"


def test_silence_before_a_reconnection_does_not_count() -> None:
    world = World()
    world.assign("a", "b")

    def queue() -> None:
        """Both teachers get a batch, and b labels its own after 0.1 s."""
        for _ in range(2):
            world.queue()
        world.asked.sort(key=lambda ask: ask.send.teacher == "a")
        world.now += 0.1
        world.answer()

    def look() -> None:
        world.now += LOOK_EVERY_S
        world.tell(ev.Tick())

    def wait_until_silent() -> None:
        while not world.core.teachers.lateness.hedging.silent:
            assert world.now < 60.0
            look()

    queue()
    world.answer()
    queue()
    wait_until_silent()
    world.asked.sort(key=lambda ask: ask.send.teacher == "b")
    world.fail("lost")
    world.answer()  # the hedge
    for _ in range(20):
        look()
    world.tell(ev.Probed("a", world.links["a"]))
    queue()
    wait_until_silent()
    assert world.core.teachers.breakers.ejected == {}
    world.asked.sort(key=lambda ask: ask.send.teacher == "a")
    world.answer()  # the hedge
    for _ in range(20):
        look()
    assert world.core.teachers.breakers.ejected == {"a": "silent"}
