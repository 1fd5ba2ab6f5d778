"""Whatever its teachers and the training loop do, the engine hands each batch its own labels."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from edl.proto.arena import Record
from edl.runtime.errors import EdlError
from edl.scheduler.ledger import events as ev
from edl.tests.distill_reader.engine.bench import tell_ledger

from ..scheduler.ledger import invariants
from .engine_world import ERRORS, NAMES, EngineWorld, x_of

nth = st.integers(0, 30)  # picks from whatever there is, modulo its length
seldom = st.sampled_from([False, False, False, True])  # what undoes much of what was built up
subsets = st.sets(st.sampled_from(NAMES))


class EngineMachine(EngineWorld):
    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            self.all_comes_to_its_end()
        finally:
            self.stop()
            self.ring.close()
            self.patches.close()

    @rule(count=st.integers(1, 4), rows=st.integers(1, 6))
    def the_source_yields(self, count: int, rows: int) -> None:
        for _ in range(count):
            number = self.next_number
            self.next_number += 1
            self.pulled += 1
            self.records[number] = rows, self.ring.put([x_of(number, rows)])
            self.untaken.append(number)
            self.announce(number)

    @rule(count=st.integers(1, 3), rows=st.integers(1, 6))
    def labels_are_called_for(self, count: int, rows: int) -> None:
        for _ in range(count):
            self.call((rows, self.ring.put([x_of(self.next_number, rows)])))

    @precondition(lambda self: self.calls)
    @rule(which=nth)
    def a_call_is_cancelled(self, which: int) -> None:
        number = self.calls.pop(which % len(self.calls))
        self.ring.free(self.records.pop(number)[1].offset)
        self.say("cancel", number=number, why="cancelled")

    @rule(now=st.booleans(), answers=st.integers(0, 4))
    def the_engine_dies(self, now: bool, answers: int) -> None:
        if not now:
            return
        self.requests_are_answered(answers, 3)
        self.hear()
        self.the_trainer_hears()
        self.stop()
        self.to_free.clear()
        self.start()
        self.latest_taken = None  # the new one has not seen the models change
        released = {*self.released}
        for number in list(self.untaken):
            if (outcome := self.outcomes.get(number)) is not None:
                told = {"makers": outcome.get("makers", {}), "released": number in released}
                self.say("restored", labels_nbytes=8, **told, **self.described(number))
            else:
                self.announce(number)
        told = {"epoch": self.epoch, "data_epoch": self.epoch, "handoff_states": {}}
        self.say("resumed", pulled=self.pulled, ended=False, waiting=False, **told)
        self.repeat_calls()

    @precondition(lambda self: self.takeable)
    @rule()
    def a_batch_is_taken(self) -> None:
        (number,) = self.takeable
        released_at = self.released.pop(number)
        self.untaken.remove(number)
        message = self.outcomes.pop(number)
        rows, record = self.records.pop(number)
        if message["record"] is not None:
            (ref,) = Record.from_json(message["record"]).arrays
            soft = message["arena"].get(ref)
            self.are_of_one_model(soft, x_of(number, rows))
            makers = [name for names in message["makers"].values() for name in names]
            assert makers
            for name in makers:
                disbelieved_at = self.disbelieved.get(name, 0)
                assert not message["at"] < disbelieved_at < released_at
            self.give_back(message)
        else:
            assert self.policy == "hard_only"
        self.ring.free(record.offset)
        self.say("taken", number=number, samples=rows, step_s=0.01)

    @precondition(lambda self: self.untaken and not self.takeable)
    @rule()
    def the_loop_waits(self) -> None:
        self.say("waiting")

    @rule(now=seldom)
    def the_epoch_is_left(self, now: bool) -> None:
        if now:
            for number in self.untaken:
                self.ring.free(self.records.pop(number)[1].offset)
            self.released.clear()
            for number in list(self.outcomes):
                self.give_back(self.outcomes.pop(number))
            self.untaken.clear()
            self.epoch += 1
            self.latest_taken = 0 if self.latest_taken is None else self.latest_taken
            self.say("reset", epoch=self.epoch, data_epoch=self.epoch, pulled=self.pulled)
            self.repeat_calls()

    @rule(which=nth, names=subsets, lost=subsets, now=st.booleans())
    def the_roster_changes(self, which: int, names: set[str], lost: set[str], now: bool) -> None:
        members = self.engine.members
        if now:
            self.assign(members[which % len(members)], names, lost)

    @rule(seconds=st.sampled_from([0.01, 0.06, 0.3, 1.1, 6.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        self.decide()
        for member in self.engine.members:
            invariants.check(member.ledger)

    @precondition(lambda self: self.busy)
    @rule(count=st.integers(1, 6), which=nth)
    def requests_are_answered(self, count: int, which: int) -> None:
        for _ in range(count):
            if self.busy:
                member, name = self.busy[which % len(self.busy)]
                *_, flight = member.ledger.requests_at(name)
                self.end(member, name, flight.request, flight.spans, None)

    @precondition(lambda self: self.busy)
    @rule(which=nth, nth_request=nth, error=st.sampled_from([None] * 8 + list(ERRORS)))
    def a_request_ends(self, which: int, nth_request: int, error: EdlError | None) -> None:
        member, name = self.busy[which % len(self.busy)]
        flights = list(member.ledger.requests_at(name))
        flight = flights[nth_request % len(flights)]
        self.end(member, name, flight.request, flight.spans, error)

    @rule(which=nth, name=st.sampled_from(NAMES))
    def one_is_not_believed(self, which: int, name: str) -> None:
        member = self.engine.members[which % len(self.engine.members)]
        self.happened += 1
        self.disbelieved[f"{member.config.service}.{name}"] = self.happened
        tell_ledger(member, ev.InvalidateTeacher(f"{member.config.service}.{name}"))
        self.hear()

    @rule(which=nth, now=seldom)
    def the_model_is_exchanged(self, which: int, now: bool) -> None:
        """Of a single service by one of another shape; perhaps while batches are recalled."""
        if not now:
            return
        member = self.engine.members[which % len(self.engine.members)]
        self.model += len(self.engine.members) == 1
        member.labels.clear()
        tell_ledger(member, ev.Relabel())
        self.hear()

    def all_comes_to_its_end(self) -> None:
        """With a healthy teacher everything is labelled, and nothing is left of it."""
        for member in self.engine.members:
            self.assign(member, set(), set(NAMES))
            self.assign(member, {"a"}, set())
            tell_ledger(member, ev.Readmitted(f"{member.config.service}.a"))
        for _ in range(1000):
            poisoned = any(o["kind"] == "poison" for o in self.outcomes.values())
            if not self.calls and (poisoned or not self.untaken):
                break
            self.now += 0.5
            self.decide()
            self.the_trainer_hears()
            while self.takeable:
                self.a_batch_is_taken()
            for member, name in self.busy:
                for flight in list(member.ledger.requests_at(name)):
                    self.end(member, name, flight.request, flight.spans, None)
        else:
            raise AssertionError(f"{self.untaken} and {self.calls} are never labelled")
        self.decide()
        assert all(member.core.calls == 0 for member in self.engine.members)
        self.the_trainer_hears()  # it frees what it was told of after its epoch or the poison
        if not self.untaken:
            self.say("ended")
            assert self.arena.used_bytes == 0, "labels outlive their batch"
        self.the_epoch_is_left(True)
        assert self.arena.used_bytes == 0
        assert self.ring.used_bytes == 0


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=settings().max_examples, stateful_step_count=40)


def world_with_a_call() -> EngineMachine:
    world = EngineMachine()
    world.it_starts(
        ordered=True, rows=None, services=("s",), policy="wait", missing="wait", prompt=False
    )
    world.labels_are_called_for(count=1, rows=2)
    return world


def test_teachers_do_not_label_a_cancelled_call_again_when_the_model_changes() -> None:
    world = world_with_a_call()
    world.a_call_is_cancelled(0)
    (member,) = world.engine.members
    world.the_model_is_exchanged(0, now=True)
    assert member.core.calls == 0
    assert not member.ledger.queued
    world.teardown()


def test_a_call_does_not_get_labels_that_are_revoked_in_the_same_turn() -> None:
    world = world_with_a_call()
    (_, name), *_ = world.busy  # a call is sent to several teachers
    world.requests_are_answered(count=1, which=0)
    world.one_is_not_believed(0, name.removeprefix("s."))
    world.decide()
    world.the_trainer_hears()
    assert world.calls == [0], "it has the labels of a teacher that lies"
    world.teardown()
