"""Ledger and flow control together, whatever may happen to a mesh.

Every run ends with one healthy teacher and nothing new going wrong: then the stream must come to
its end, each batch taken once and in order, and pulling must not hold it up.
"""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.scheduler.flow import FlowConfig, FlowMemory, FlowView, decide
from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.ledger.figures import InFlight

BATCH_BYTES, LABEL_BYTES, ROWS, TICK_S = 100, 10, 10, 0.05
WHOLE = BATCH_BYTES + LABEL_BYTES
nth = st.integers(0, 30)
names, windows = st.sampled_from("abcd"), st.integers(1, 3)
sizes = st.none() | st.sampled_from([3, ROWS, 25])


class MeshMachine(RuleBasedStateMachine):
    """Carries out what ledger and flow control say, and tells them what comes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.end = inf  # batches that the source has
        self.pulled = self.allowed = 0
        self.in_line: list[int] = []  # yielded, not delivered
        self.ready: list[int] = []  # delivered, not taken
        self.over: list[int] = []  # taken, poisoned or of an epoch that was left
        self.teachers: dict[str, tuple[int, int | None]] = {}  # window and most rows of each
        self.leaving: set[str] = set()  # these finish what they have
        self.venomous: set[int] = set()  # batches that every teacher refuses
        self.most_unlabelled = self.answers = 0

    @initialize(upper=st.integers(1, 12 * BATCH_BYTES), lower=st.floats(0, 1, exclude_max=True))
    def the_stream_opens(self, upper: int, lower: float) -> None:
        self.config = FlowConfig(upper, int(upper * lower))
        self.start_engine()

    def start_engine(self) -> None:
        """A new engine learns from the student's side what is held and what lacks labels."""
        self.ledger, self.memory = Ledger(), FlowMemory.start()
        for name in self.leaving:
            del self.teachers[name]
        self.leaving.clear()
        for batch in self.ready:
            self.carry_out(ev.Held(batch, WHOLE))
        for batch in self.in_line.copy():
            self.carry_out(ev.Queued(batch, BATCH_BYTES, ROWS))
        for name, (window, most_rows) in self.teachers.items():
            self.carry_out(ev.TeacherJoined(name, window, most_rows))
        self.look()

    def tell(self, event: ev.Event) -> None:
        self.carry_out(event)
        self.look()

    def carry_out(self, event: ev.Event) -> None:
        for instruction in self.ledger.handle(event):
            match instruction:
                case ev.Send(_, teacher):
                    assert teacher in self.teachers.keys() - self.leaving
                case ev.Deliver(batch):
                    assert self.in_line.pop(0) == batch, "out of order, or twice"
                    self.ready.append(batch)
                case ev.Poison(batch):
                    assert self.in_line.pop(0) == batch, "out of order, or twice"
                    self.over.append(batch)

    def look(self) -> None:
        """Decide what may be pulled."""
        ledger = self.ledger
        windows, free_windows, teachers, idle = ledger.load
        view = FlowView(
            *(ledger.volume_bytes, ledger.queued, ledger.unlabelled, ledger.deliverable),
            *(windows, free_windows, idle, teachers),
            waiting=not self.ready,
            source_ended=self.pulled >= self.end,
            t_t_s=None,
            t_s_s=None,
            batch_bytes=ledger.batch_bytes,
        )
        decision, self.memory = decide(view, self.memory, self.now, self.config)
        if self.pulled + decision.pull > self.allowed:
            self.allowed = self.pulled + decision.pull
            in_flight = {span.batch for _, request in self.requests for span in request.spans}
            unlabelled = ledger.unlabelled + decision.pull
            assert unlabelled <= len(in_flight) + max(2, view.windows), "beyond the read-ahead"
            self.most_unlabelled = max(self.most_unlabelled, unlabelled)

    @property
    def requests(self) -> list[tuple[str, InFlight]]:
        """What is in flight, and where."""
        return [(name, one) for name in self.teachers for one in self.ledger.requests_at(name)]

    @invariant()
    def memory_and_windows_are_bounded(self) -> None:
        self.ledger.validate()
        most = self.config.upper_bytes + self.most_unlabelled * WHOLE
        assert self.ledger.volume_bytes <= most, "memory grows"
        for name, (window, _) in self.teachers.items():
            assert len(self.ledger.in_flight_at(name)) <= window

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 2.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    @rule(count=st.integers(1, 8))
    def the_source_yields(self, count: int) -> None:
        for _ in range(count):
            if self.pulled < min(self.allowed, self.end):
                self.in_line.append(self.pulled)
                self.pulled += 1
                self.tell(ev.Queued(self.in_line[-1], BATCH_BYTES, ROWS))

    @precondition(lambda self: self.ready)
    @rule()
    def a_batch_is_taken(self) -> None:
        self.over.append(self.ready.pop(0))
        self.tell(ev.Taken(self.over[-1]))

    @rule(name=names, window=windows, most_rows=sizes)
    def a_teacher_joins(self, name: str, window: int, most_rows: int | None) -> None:
        if name not in self.teachers:
            self.teachers[name] = window, most_rows
            self.tell(ev.TeacherJoined(name, window, most_rows))

    @precondition(lambda self: self.teachers)
    @rule(index=nth, how=st.sampled_from(["is lost", "is revoked", "has rested"]))
    def a_teacher_changes(self, index: int, how: str) -> None:
        name = list(self.teachers)[index % len(self.teachers)]
        if how == "is lost":
            self.lose(name)
        elif how == "is revoked":
            self.revoke(name)
        else:
            self.tell(ev.Resumed(name))

    def lose(self, name: str) -> None:
        del self.teachers[name]
        self.leaving.discard(name)
        self.tell(ev.TeacherLost(name))

    def revoke(self, name: str) -> None:
        self.leaving.add(name)
        self.tell(ev.TeacherRevoked(name))
        self.one_may_have_left(name)

    def one_may_have_left(self, name: str) -> None:
        if name in self.leaving and not self.ledger.in_flight_at(name):
            self.leaving.remove(name)
            del self.teachers[name]

    @precondition(lambda self: self.requests)
    @rule(index=nth, how=st.sampled_from(["answer", "fail", "refuse"]))
    def a_request_ends(self, index: int, how: str) -> None:
        name, request = self.requests[index % len(self.requests)]
        number = request.request
        if how == "fail":
            self.tell(ev.Failed(name, number))
        elif how == "refuse" or self.venomous & {span.batch for span in request.spans}:
            self.tell(ev.Refused(name, number, "does not like it"))
            if self.ledger.is_useless(name) and name not in self.leaving:
                self.tell(ev.Ejected(name))
                self.tell(ev.TeacherJoined(name, *self.teachers[name]))  # over a new connection
        else:
            self.answers += 1
            self.tell(ev.Answered(name, number, LABEL_BYTES // ROWS, 0.1))
        self.one_may_have_left(name)

    @rule(ahead=st.integers(0, 5))
    def a_poison_batch_is_coming(self, ahead: int) -> None:
        batch = self.pulled + ahead
        if not {batch - 1, batch + 1} & self.venomous:  # a teacher has something to label
            self.venomous.add(batch)

    @rule(how=st.sampled_from(["engine", "engine", "epoch", "model"]))
    def all_starts_over(self, how: str) -> None:
        if how == "engine":
            self.start_engine()
        elif how == "epoch":
            self.over += [*self.in_line, *self.ready]
            self.in_line.clear()
            self.ready.clear()
            self.tell(ev.Reset())
        else:  # the model is exchanged
            for name in list(self.teachers):
                self.revoke(name)
            self.tell(ev.Relabel())

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for name in list(self.teachers):
            self.lose(name)
        self.end, self.answers = self.pulled + 5, 0
        rounds = 2 * (len(self.ready) + len(self.in_line) + 5)
        self.a_teacher_joins("healthy", 2, None)
        self.all_goes_well(rounds)
        if self.in_line and not self.answers:
            # It was asked for nothing but poison: nobody can tell whose fault that is.
            assert self.in_line[0] in self.venomous
            self.venomous.clear()
            self.a_teacher_joins("healthy", 2, None)
            self.all_goes_well(rounds)
        assert (self.in_line, self.ready) == ([], []), "the stream stands still"
        assert self.pulled == self.end
        assert self.ledger.volume_bytes == self.ledger.unlabelled == 0
        assert sorted(self.over) == list(range(self.pulled))

    @rule(rounds=st.integers(1, 4), takes=st.booleans())
    def all_goes_well(self, rounds: int, takes: bool = True) -> None:
        """For a while; `takes`: the student does not stop training meanwhile."""
        for _ in range(rounds):
            self.time_goes_by(TICK_S)
            self.the_source_yields(8)
            for _ in range(len(self.requests)):
                if self.requests:
                    self.a_request_ends(0, "answer")
            while self.ready and takes:
                self.a_batch_is_taken()
            self.memory_and_windows_are_bounded()


TestMeshMachine = MeshMachine.TestCase
TestMeshMachine.settings = settings(max_examples=settings().max_examples, stateful_step_count=100)


@pytest.mark.parametrize(("window", "upset"), [(1, "engine"), (2, "poison")])
def test_requests_that_straddle_batches_keep_to_the_read_ahead(window: int, upset: str) -> None:
    machine = MeshMachine()
    machine.the_stream_opens(upper=660, lower=0.0)
    machine.the_source_yields(8)
    machine.a_teacher_joins("a", window, 10)
    if upset == "engine":
        machine.start_engine()
    else:
        machine.a_poison_batch_is_coming(0)
    machine.a_teacher_joins("b", 1, 3)
    machine.all_goes_well(20)
    machine.teardown()


@given(batches=st.floats(0.1, 6.0), upper=st.floats(0.01, 1.0))
def test_the_buffer_is_bounded_however_many_teachers_there_are(
    batches: float, upper: float
) -> None:
    limit = int(batches * WHOLE)
    machine = MeshMachine()
    machine.config = FlowConfig(max(int(upper * limit), 1), 0, buffer_bytes=limit)
    machine.start_engine()
    for name in "abcdef":
        machine.a_teacher_joins(name, 8, None)
    for _ in range(40):
        machine.all_goes_well(1)
        machine.the_source_yields(8)
        held = machine.ledger.volume_bytes + machine.ledger.unlabelled * BATCH_BYTES
        # How large labels are is not known when the first batches are pulled.
        assert held <= max(limit, BATCH_BYTES) * WHOLE / BATCH_BYTES
    assert len(machine.over) >= 40
