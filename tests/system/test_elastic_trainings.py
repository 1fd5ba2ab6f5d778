"""Trainings as jobs of a fleet: real `edl student train`, which scales, makes room, goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.coordinator.jobs import open_board
from edl.mesh.jobs.looking import look
from edl.tests.ground.programs import wait_for
from edl.tests.system.fleet_world import World, new_world

#: A start of Paddle takes seconds of each core, and other tests may run.
START_S = 100.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as world:
        yield world


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_a_training_is_done_and_one_that_cannot_work_fails_at_once(world: World) -> None:
    world.edl("submit", world.training("good", "--steps 20"))
    world.edl("submit", world.training("bad", "--steps 20 --deal unknown"))
    world.fleet()
    world.reaches("good", "succeeded", 0, START_S)
    world.reaches("bad", "failed", 0, START_S)
    failed = world.job("bad").progress
    assert failed.failures == 1, "exit code 2 is not tried again"
    assert "exit code 2" in failed.reason
    assert "finished at step 20" in world.edl("logs", "good")


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_training_grows_makes_room_for_a_service_and_goes_on(world: World) -> None:
    """Two nodes, one, none, and again: each time from where it was."""
    options = "--steps 100000 --save-every-steps 50"
    env = 'env: {EDL_TEST_STEP_S: "0.02", EDL_TEST_ROWS: "4800"}'
    world.edl("submit", world.training("student", options, "max_nodes: 2", env))
    world.fleet(2, "--yield-within", 9)
    board = open_board(world.url)

    def trains_with(nodes: int, more_than: int = 0) -> bool:
        sight = look(board, "student", nodes)
        return sight.steady and sight.step > more_than

    wait_for(lambda: trains_with(2, 10), START_S)
    with world.reserved(1) as said:
        assert float(said[2]) < 10.0
        step = look(board, "student", 1).step
        wait_for(lambda: trains_with(1, step), START_S)
        assert world.job("student").progress.running == 1
    wait_for(lambda: trains_with(2), START_S)
    step = look(board, "student", 2).step
    with world.reserved(2) as said:
        assert float(said[2]) < 10.0
        assert world.job("student").progress.state == "creating"
    wait_for(lambda: trains_with(2, step), START_S)
    world.edl("stop", "student", "--wait", 60)
    assert world.job("student").progress.failures == 0
    board.close()
