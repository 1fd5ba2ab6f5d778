"""Batches of one service or of two are released in order, once, complete, and not too far ahead."""

from __future__ import annotations

from statistics import fmean
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.no_teacher import Ensemble, Policy
from edl.scheduler.reader_core import instructions as do
from edl.scheduler.reader_core.delivery import STEPS, Delivery, look_ahead
from edl.scheduler.reader_core.events import Waiting

TEACHER: Final = "t"
POLICIES: Final = (Policy(), Policy("hard_only", 1.0), Policy("fail", 1.0))
#: Each is a method of `Stream`; how often they stand here is how often they happen.
RULES: Final = (
    *("pull", "answer", "answer", "answer_all", "refuse"),
    *("exchange", "lie", "doubt", "lose", "come", "go_on"),
    *("look", "look", "take", "take"),
)


class Stream:
    """Each service has a ledger and one teacher; this carries out what is said, as an engine does.

    Its books are of what the ledgers said: which service has labels of a batch, goes without, or
    calls it poison.
    """

    def __init__(self, services: str, *, ordered: bool, missing: str, policy: Policy) -> None:
        self.services, self.ordered, self.policy = services, ordered, policy
        weights = dict.fromkeys(services, 1.0)
        self.ensemble = Ensemble(weights, "wait" if missing == "wait" else "tolerate", 0.5)
        self.start()
        self.labelled: dict[str, set[int]] = {name: set() for name in services}
        self.forgone: dict[str, set[int]] = {name: set() for name in services}
        self.poison: dict[str, set[int]] = {name: set() for name in services}
        self.line: list[int] = []  # not released, in the order of the source
        self.offered: dict[int, frozenset[str] | None] = {}  # with labels of these; None: poison
        self.released: list[int] = []  # and not taken
        self.pulled = 0
        self.now = 0.0
        for name in services:
            self.come(name, 0)

    # --- as a driver does it

    def start(self) -> None:
        self.held: set[int] = set()  # that an engine before this one has offered
        self.steps: list[float] = []  # that this one has heard of
        self.ledgers = {name: Ledger() for name in self.services}
        self.delivery = Delivery(
            self.ledgers, ordered=self.ordered, policy=self.policy, ensemble=self.ensemble
        )

    def tell(self, name: str, event: ev.Event) -> None:
        for instruction in self.ledgers[name].handle(event):
            match instruction:
                case ev.Labelled(batch):
                    self.labelled[name].add(batch)
                case ev.Forgone(batch):
                    self.forgone[name].add(batch)
                case ev.Poison(batch):
                    self.poison[name].add(batch)
                case ev.Unlabelled(batch):
                    assert batch in self.line
                    for known in (self.labelled, self.forgone, self.poison):
                        known[name].discard(batch)
                case _:
                    continue
            self.do(self.delivery.heard(name, instruction))

    def do(self, instructions: list[do.StreamInstruction]) -> None:
        released: list[int] = []
        for one in instructions:
            match one:
                case do.Offer(batch, mixture):
                    self.is_offered(batch)
                    self.offered[batch] = frozenset(mixture.shares if mixture else ())
                case do.OfferPoison(batch):
                    self.is_offered(batch)
                    self.offered[batch] = None
                case do.Withdraw(batch):
                    del self.offered[batch]
                    self.held.discard(batch)
                case do.Release(batches):
                    released += batches
                case do.Tell(_, Waiting()):
                    pass
                case do.Tell(name, event):
                    assert not isinstance(event, Waiting)
                    assert not isinstance(event, ev.Released) or event.batch in self.offered
                    self.tell(name, event)
                case do.GiveUp():
                    assert self.policy.name == "fail"
                case do.DropBatch() | do.News():
                    pass
        for batch in released:
            self.is_released(batch)

    def is_offered(self, batch: int) -> None:
        assert batch in self.line, "offered, but it is over"
        assert batch not in self.offered, "offered twice"
        assert self.is_complete(batch), "offered, but a service is at work on it"

    def is_released(self, batch: int) -> None:
        assert not self.ordered or batch == self.line[0], "out of order"
        self.line.remove(batch)
        whose = self.offered.pop(batch)
        self.released.append(batch)
        if batch in self.held:
            return
        assert (whose is None) is self.is_poison(batch)
        if whose is None:
            self.is_taken(batch, None)  # the loop of a real student would end
            return
        labelled = {name for name in self.services if batch in self.labelled[name]}
        assert whose == labelled or (not whose and self.ensemble.missing == "wait")
        assert self.policy.name == "hard_only" or (
            whose and (self.ensemble.missing == "tolerate" or whose == set(self.services))
        ), "the user did not allow that"

    def is_taken(self, batch: int, step_s: float | None) -> None:
        self.released.remove(batch)
        self.delivery.taken(batch, step_s)
        for name in self.services:
            self.tell(name, ev.Taken(batch))

    def is_poison(self, batch: int) -> bool:
        return any(batch in self.poison[name] for name in self.services)

    def is_complete(self, batch: int) -> bool:
        return self.is_poison(batch) or all(
            batch in self.labelled[name] or batch in self.forgone[name] for name in self.services
        )

    # --- what happens

    def pull(self, _: str, index: int) -> None:
        count = 1 + index % 4 if len(self.line) < 8 else 0
        for batch in range(self.pulled, self.pulled + count):
            self.pulled += 1
            self.line.append(batch)
            self.delivery.queue(batch)
            for name in self.services:
                self.tell(name, ev.Queued(batch, 100, 1))

    def answer(self, name: str, index: int) -> None:
        if requests := self.ledgers[name].in_flight_at(TEACHER):
            self.tell(name, ev.Answered(TEACHER, requests[index % len(requests)], 1, 0.1))

    def answer_all(self, name: str, _: int) -> None:
        for request in self.ledgers[name].in_flight_at(TEACHER):
            self.tell(name, ev.Answered(TEACHER, request, 1, 0.1))

    def refuse(self, name: str, index: int) -> None:
        if requests := self.ledgers[name].in_flight_at(TEACHER):
            self.tell(name, ev.Refused(TEACHER, requests[index % len(requests)], "no"))

    def exchange(self, name: str, _: int) -> None:
        self.tell(name, ev.Relabel())

    def lie(self, name: str, _: int) -> None:
        if self.ledgers[name].teachers:
            self.tell(name, ev.Disbelieve(TEACHER))
            self.tell(name, ev.Readmitted(TEACHER))

    def doubt(self, name: str, index: int) -> None:
        self.tell(name, ev.Doubt(index % (self.pulled + 1)))

    def lose(self, name: str, index: int) -> None:
        if index % 3 == 0:
            self.tell(name, ev.TeacherLost(TEACHER))

    def come(self, name: str, _: int) -> None:
        self.tell(name, ev.TeacherJoined(TEACHER, 64, has_labelled=True))

    def go_on(self, _: str, index: int) -> None:
        """Time goes by, for long or not."""
        self.now += (0.1, 0.4, 2.0)[index % 3]

    def look(self, _: str, index: int) -> None:
        if not self.released and index % 2:
            self.delivery.wait()
        ahead = look_ahead(fmean(self.steps[-STEPS:]) if self.steps else None)
        before, in_line = len(self.released), len(self.line)
        could_go_on = any(map(self.is_complete, self.line[:1] if self.ordered else self.line))
        self.do(self.delivery.look(self.now))
        assert len(self.released) <= max(ahead, before), "too far ahead"
        if not before and could_go_on:
            assert len(self.line) < in_line, "the loop waits for nothing"

    def take(self, _: str, index: int) -> None:
        if self.released:
            step_s = (0.01, 0.03, 0.1)[index % 3]
            self.steps.append(step_s)
            self.is_taken(self.released[0 if self.ordered else index % len(self.released)], step_s)

    def restart(self) -> None:
        """The engine dies; another one is told which batches the trainer was offered."""
        self.start()
        for known in (*self.labelled.values(), *self.forgone.values(), *self.poison.values()):
            known.clear()
        for batch in sorted((*self.released, *self.line)):
            if batch in self.line and batch not in self.offered:
                self.delivery.queue(batch)
                for name in self.services:
                    self.tell(name, ev.Queued(batch, 100, 1))
                continue
            self.held.add(batch)
            for name in self.services:
                self.labelled[name].add(batch)
                self.tell(name, ev.Held(batch, 100, 1, makers=(TEACHER,)))
            told = self.delivery.hold(batch, released=batch in self.released)
            assert len(told) == len(self.services) * (batch in self.released)
            for name in self.services:
                if batch in self.released:
                    self.tell(name, ev.Released(batch))

    def reset(self) -> None:
        """The epoch is left."""
        self.delivery.reset()
        for name in self.services:
            self.tell(name, ev.Reset())
            for known in (self.labelled, self.forgone, self.poison):
                known[name].clear()
        self.line.clear()
        self.offered.clear()
        self.released.clear()

    # --- what holds

    def check(self) -> None:
        """What is complete is offered in its turn, and nothing else."""
        for batch in self.line:
            is_offered = batch in self.offered
            if self.is_complete(batch):
                assert is_offered, "complete, and the trainer is not told"
            else:
                assert not is_offered, "offered, and not complete"
                if self.ordered:
                    return

    def finish(self) -> None:
        """Liveness: with a teacher for each service, everything comes to its end."""
        for name in self.services:
            self.come(name, 0)
        for _ in range(200):
            if not (self.line or self.released):
                return
            for name in self.services:
                self.answer_all(name, 0)
                self.check()
            self.look("", 1)
            self.take("", 2)
        raise AssertionError(f"batches {self.line} are never released")


step = st.tuples(st.sampled_from(RULES), st.integers(0, 1), st.integers(0, 30))
epochs = st.lists(st.lists(step, min_size=30, max_size=60), min_size=1, max_size=2)


@given(
    services=st.sampled_from(["s", "ab"]),
    ordered=st.booleans(),
    missing=st.sampled_from(["wait", "tolerate"]),
    policy=st.sampled_from(POLICIES),
    epochs=epochs,
    dies=st.booleans(),
)
def test_batches_are_released_in_order_once_and_complete(
    services: str,
    ordered: bool,
    missing: str,
    policy: Policy,
    epochs: list[list[tuple[str, int, int]]],
    dies: bool,
) -> None:
    stream = Stream(services, ordered=ordered, missing=missing, policy=policy)
    for epoch in epochs:
        for rule, of, index in epoch:
            getattr(stream, rule)(services[of % len(services)], index)
            stream.check()
        if epoch is not epochs[-1]:
            (stream.restart if dies else stream.reset)()
    stream.finish()
