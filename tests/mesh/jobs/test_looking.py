"""How far a training is, of what stands in Redis: by its ranks, or by whoever has written there."""

from __future__ import annotations

from typing import Any

import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.mesh.jobs.looking import Sight, look


def board_with(body: dict[str, Any], *reports: dict[str, Any]) -> MemoryBoard:
    board = MemoryBoard()
    board.join("ctr", "n1", {}, 10)
    assert board.lead("ctr", "n1", 10)
    assert board.publish("ctr", "n1", 1, body)
    for rank, facts in enumerate(reports):
        assert board.report("ctr", 1, rank, facts)
    return board


def test_the_rank_that_is_furthest_counts() -> None:
    board = board_with({"nodes": ["n1"]}, {"step": 30, "steps": 120}, {"step": 60, "steps": 120})
    assert look(board, "ctr", 1) == Sight(0.5, steady=True, step=60, steps=120)


def test_a_training_whose_length_is_not_known() -> None:
    assert look(board_with({"nodes": []}, {"step": 30}), "ctr", 1) == Sight(None, False, 30, 0)


@pytest.mark.parametrize("odd", ["x", -1, None, [], {}, 1.5, float("nan"), float("inf"), 10**400])
def test_what_no_rank_has_written_spoils_nothing(odd: Any) -> None:
    world: dict[str, Any] = {"nodes": ["n1"]}
    rank: dict[str, Any] = {"step": 30, "steps": 120}
    assert look(board_with({"nodes": odd}, rank), "ctr", 1).step == 30
    assert not look(board_with({"nodes": odd}, rank), "ctr", 1).steady
    for facts in ({"step": odd, "steps": 120}, {"step": 1, "steps": odd}):
        found = look(board_with(world, facts, rank), "ctr", 1)
        assert found.steady
        assert found.progress is not None
        assert 0 <= found.progress <= 1
