"""Whatever ranks and the job board lose, saved steps have each position once; steps are full."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.schema import job_key
from edl.runtime.errors import GenerationSuperseded
from edl.tests.stores import FaultyStore, memory
from edl.tests.student.feeding.ranks import (
    JOB,
    Rank,
    batched,
    save,
    settings_of,
    step,
    world_of,
)

MOST_STEPS = 400
T = TypeVar("T")


class Trainings(RuleBasedStateMachine):
    """One training: steps, saves, deaths, losses of the board, and a new world after each.

    `history` has every step that the parameters contain: a death removes those not saved.
    """

    lost = False  # the board has returned with older data since the world was formed

    @initialize(
        samples=st.integers(1, 60),
        batch=st.integers(1, 20),
        shard_rows=st.none() | st.integers(1, 9),
        world=st.integers(1, 4),
        deal=st.sampled_from(["static", "dynamic"]),
        drop_last=st.booleans(),
    )
    def begin(
        self, samples: int, batch: int, shard_rows: Any, world: int, deal: str, drop_last: bool
    ) -> None:
        self.feed = batched(samples, batch, drop_last=drop_last)
        self.rows = samples - samples % batch if drop_last else samples
        self.settings = settings_of(deal=deal, shard_rows=shard_rows, seed=samples)
        self.board = JobBoard(FaultyStore())
        self.history: list[tuple[int, int]] = []  # epoch, position
        self.saved: dict[str, Any] | None = None
        self.saved_at = (0, 0)  # epoch, entries of the history
        self.generation = self.epoch = 0
        self.ranks: list[Rank] = []
        self.form(world)

    def form(self, world: int) -> None:
        for rank in self.ranks:
            rank.end()
        self.generation += 1
        self.lost = False
        self.base = self.saved
        self.epoch, kept = self.saved_at
        del self.history[kept:]
        self.ranks = world_of(
            self.board,
            self.feed,
            self.settings,
            generation=self.generation,
            world=world,
            saved=self.saved,
            epoch=self.epoch,
        )
        for rank in self.ranks:
            rank.begin()

    def tried(self, call: Callable[[], T]) -> T | None:
        """What the call returns; None: the board had lost data, and a new world has begun."""
        try:
            return call()
        except GenerationSuperseded:
            assert self.lost
            self.form(len(self.ranks))
            return None

    def step_together(self) -> bool:
        """One step, or a new world; False where the epoch was over, and the next one has begun."""
        if (taken := self.tried(lambda: step(self.ranks, self.epoch))) is None:
            return True
        rows = [int(position) for positions in taken for position in positions]
        done = {position for of, position in self.history if of == self.epoch}
        left = [position for position in range(self.rows) if position not in done]
        full = min(self.feed.batch_sampler.batch_size, len(left))
        assert self.lost or len(rows) == full, "it is full"
        if self.settings.deal == "static":
            assert rows == left[: len(rows)], "the order is kept"
            assert not memory(self.board).holds(job_key(JOB, "filled")), "no board is asked"
        self.history += [(self.epoch, position) for position in rows]
        if rows:
            return True
        self.epoch += 1
        for rank in self.ranks:
            rank.begin()
        return False

    def check_epoch(self, epoch: int) -> None:
        counts = Counter(position for of, position in self.history if of == epoch)
        assert counts == Counter(range(self.rows))

    @rule(count=st.integers(1, 6))
    def train(self, count: int) -> None:
        for _ in range(count):
            self.step_together()

    @rule(rank=st.integers(0, 3), count=st.integers(1, 3))
    def read_ahead(self, rank: int, count: int) -> None:
        for _ in range(count):
            one = self.ranks[rank % len(self.ranks)]
            if len(one.read) < 2:  # at the end of an epoch a source waits with more
                self.tried(one.read_one)

    @rule()
    def save(self) -> None:
        if (saved := self.tried(lambda: save(self.ranks, self.base))) is None:
            return
        self.saved = json.loads(json.dumps(saved))
        self.saved_at = (self.epoch, len(self.history))
        assert len(self.saved["trained"]) <= 1, "it does not grow with the epochs"
        assert len(self.history) == len(set(self.history)), "each position at most once"
        for epoch in range(self.epoch):
            self.check_epoch(epoch)

    @rule(count=st.integers(0, 3), rank=st.integers(0, 3), ahead=st.integers(0, 2))
    def board_returns_with_older_data(self, count: int, rank: int, ahead: int) -> None:
        older, generation = memory(self.board).snapshot(), self.generation
        self.train(count)
        self.read_ahead(rank, ahead)
        if self.generation == generation:
            memory(self.board).restore(older)
            self.lost = True

    @rule(world=st.integers(1, 4))
    def die(self, world: int) -> None:
        self.form(world)

    @rule(world=st.integers(1, 4))
    def leave_at_a_safe_point(self, world: int) -> None:
        self.save()
        self.form(world)

    def teardown(self) -> None:
        if not hasattr(self, "ranks"):
            return
        for _ in range(MOST_STEPS):
            epoch, generation = self.epoch, self.generation
            self.step_together()
            self.save()
            if self.epoch > epoch and self.generation == generation:
                break
        else:
            raise AssertionError("the epoch does not end")
        for rank in self.ranks:
            rank.end()


Trainings.TestCase.settings = hypothesis_settings(
    max_examples=hypothesis_settings().max_examples, stateful_step_count=25
)
TestTrainings = Trainings.TestCase
