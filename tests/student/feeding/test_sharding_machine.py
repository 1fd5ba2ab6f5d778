"""Whichever ranks die, steps are full and the surviving ones have each position once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.runtime.errors import GenerationSuperseded
from edl.tests.student.feeding.ranks import (
    BoardLink,
    Rank,
    batched,
    save,
    settings_of,
    step,
    world_of,
)

MOST_STEPS = 400


class Trainings(RuleBasedStateMachine):
    """One training: steps, saves, deaths, and a new world after each death.

    `history` has every step that the parameters contain: a death removes those not saved.
    """

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
        self.board = JobBoard(MemoryStore())
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

    def step_together(self) -> bool:
        """One step; False where the epoch was over, and the next one has begun."""
        taken = step(self.ranks, self.epoch)
        rows = [int(position) for positions in taken for position in positions]
        done = {position for of, position in self.history if of == self.epoch}
        left = [position for position in range(self.rows) if position not in done]
        assert len(rows) == min(self.feed.batch_sampler.batch_size, len(left)), "it is full"
        if self.settings.deal == "static":
            assert rows == left[: len(rows)], "the order is kept"
        self.history += [(self.epoch, position) for position in rows]
        if rows:
            return True
        self.check_epoch(self.epoch)
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
        one = self.ranks[rank % len(self.ranks)]
        for _ in range(count):
            if len(one.read) < 2:  # at the end of an epoch a source waits with more
                one.read_one()

    @rule()
    def save(self) -> None:
        self.saved = json.loads(json.dumps(save(self.ranks, self.base)))
        self.saved_at = (self.epoch, len(self.history))

    @rule(world=st.integers(1, 4))
    def die(self, world: int) -> None:
        self.form(world)

    @rule(world=st.integers(1, 4))
    def leave_at_a_safe_point(self, world: int) -> None:
        self.save()
        self.form(world)

    @precondition(lambda self: self.generation > 1)
    @rule(rank=st.integers(0, 3))
    def a_rank_of_the_generation_before_is_refused(self, rank: int) -> None:
        late = BoardLink(self.board, self.generation - 1, rank)
        with pytest.raises(GenerationSuperseded):
            late.lease(self.epoch, 1)
        with pytest.raises(GenerationSuperseded):
            late.fill(self.epoch, [(0, 1)])

    def teardown(self) -> None:
        if not hasattr(self, "ranks"):
            return
        for _ in range(MOST_STEPS):
            if not self.step_together():
                break
        else:
            raise AssertionError("the epoch does not end")
        for epoch in range(self.epoch):
            self.check_epoch(epoch)
        for rank in self.ranks:
            rank.end()


Trainings.TestCase.settings = hypothesis_settings(
    max_examples=hypothesis_settings().max_examples, stateful_step_count=25
)
TestTrainings = Trainings.TestCase
