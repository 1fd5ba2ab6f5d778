"""Which saves join the history of a training, in any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.runtime.errors import GenerationSuperseded
from edl.scheduler.students.saving import CheckpointHistory
from edl.student.checkpoint import Checkpoint
from edl.student.checkpoint.repository import HistoryFence
from edl.tests.student.checkpoint.history import (
    JOB,
    Stopped,
    Training,
    clear_memory,
    contents,
    memory_url,
)


class Saver:
    """A node that saves: each of its steps may be the last for a long time."""

    def __init__(self, training: Training, fence: HistoryFence, step: int, number: int) -> None:
        self.training, self.fence, self.number = training, fence, number
        self.origin = self.step = step
        self.written: Checkpoint | None = None
        self.joining = Stopped(training.url, training.keep)

    def write(self) -> None:
        self.step += 1
        repository = self.training.repository()
        self.written = repository.write(contents(self.step, self.number), self.fence)

    def join(self) -> Checkpoint | None:
        """The checkpoint, if it joined; what it may remove waits for `remove`."""
        assert self.written is not None
        written, self.written = self.written, None
        try:
            return self.joining.join(written, self.fence)
        except GenerationSuperseded:
            return None

    def remove(self) -> None:
        self.joining.remove()


class HistoryMachine(RuleBasedStateMachine):
    """Nodes of many generations save whenever they like; one leader at a time forms new ones.

    The model is the line of checkpoints that the current generation comes from.
    """

    def __init__(self) -> None:
        super().__init__()
        self.training = Training(memory_url())
        self.savers: list[Saver] = []
        self.line: list[Checkpoint] = []

    def teardown(self) -> None:
        clear_memory()

    @initialize()
    def begin(self) -> None:
        self.form()

    @rule()
    def form(self) -> None:
        history, newest = self.training.look()
        fence = self.training.publish(history, newest)
        assert fence is not None
        if newest is None:
            assert self.line == []
        elif self.is_new(newest):
            self.line.append(newest)
        step = self.line[-1].step if self.line else 0
        self.savers.append(Saver(self.training, fence, step, len(self.savers)))

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.savers)).write()

    @precondition(lambda self: any(one.written for one in self.savers))
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        saver = data.draw(st.sampled_from([one for one in self.savers if one.written]))
        current = saver is self.savers[-1]
        if joined := saver.join():
            assert current, "only the current generation joins"
            self.line.append(joined)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.savers)).remove()

    @precondition(lambda self: self.savers)
    @rule()
    def empty_the_board(self) -> None:
        """The nodes of before live on, and do not know it; another generation 1 begins."""
        for one in self.savers:
            one.fence = HistoryFence(
                JobBoard(MemoryStore()), JOB, one.fence.generation, one.fence.after
            )
        self.training.board, self.training.generation = JobBoard(MemoryStore()), 0
        self.form()

    @invariant()
    def a_start_goes_on_from_the_line_whatever_the_board_has_forgotten(self) -> None:
        found = self.training.repository().newest_for_next_generation(CheckpointHistory(), None)
        if self.line:
            assert found is not None
            self.is_new(found)
            there = {one.name for one in self.training.repository().list() if not one.problem}
            assert {one.name for one in self.line[-self.training.keep :]} <= there

    def is_new(self, found: Checkpoint) -> bool:
        """Whether what a start goes on from is behind the line: then it continues the line."""
        if self.line and found.name == self.line[-1].name:
            return False
        assert found.after == (self.line[-1].name if self.line else "")
        assert found.step > (self.line[-1].step if self.line else 0)
        return True


TestHistoryMachine = HistoryMachine.TestCase
TestHistoryMachine.settings = settings(max_examples=settings().max_examples, stateful_step_count=30)
