"""How ranks end: at a safe point when told to, when a peer dies, with words when they fail."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from edl.student.checkpoint import SnapshotOwner, open_checkpoint
from edl.student.words import EXIT_AGAIN, Failed, Finished, Left, Progress, Ready, Saved, Scaled
from edl.tests.student.id_log import assert_each_once, lines
from edl.tests.student.rank.world import World, settings

pytestmark = pytest.mark.system

ROWS = 90


def test_a_world_leaves_and_another_goes_on(tmp_path: Path) -> None:
    """2 -> 1 ranks: nothing is trained twice or left out, and the change is told once."""
    ids = tmp_path / "ids"
    job = settings(epochs=3, id_log=str(ids), lr_policy="linear", amp="bfloat16", micro_batch=5)
    slowly = {"EDL_TEST_ROWS": str(ROWS), "EDL_TEST_ROW_S": "0.002"}
    with SnapshotOwner() as owner:
        with World(job, 2, owner=owner, environment=slowly) as world:
            world.wait(lambda: any(p.step >= 8 for p in world.said(Progress)), "step 8")
            world.crew.leave()
            assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
            first, second = world.said(Left)
            assert first.step == second.step
            assert first.safe
            assert second.safe
            assert owner.newest_step() == first.step == world.said(Saved)[-1].step
            assert not world.said(Scaled), "the first world is no change"
        left = open_checkpoint(owner.location)
        assert left.world == 2
        again = World(job, 1, owner=owner, restore=owner.location, generation=2, environment=slowly)
        with again as world:
            world.wait(lambda: bool(world.said(Ready)), "the second world")
            assert world.said(Ready)[0].step == first.step
            assert world.ended() == {0: 0}
            assert world.said(Scaled) == [Scaled(2, 1)]
            assert [line for line in world.lines if "on_scale" in line] == ["0: on_scale(2, 1)"]
            metrics = world.said(Finished)[0].metrics
        done = open_checkpoint(owner.location)
    assert_each_once(ids, [ROWS] * 3)
    totals = [line["total"] for line in lines(ids)]
    assert max(totals) == 16  # whatever the world
    assert done.world == 1
    assert done.state["learning_rate_factor"] == 0.5
    assert done.state["training"]["optimizer"]["rate"] == 0.05
    assert done.state["metrics"] == metrics
    assert metrics["accuracy"] > 0.4


def test_ranks_that_wait_say_so_and_can_leave() -> None:
    """Rank 1's data set hangs in its 40th row; others are not cut off, and all leave when told."""
    blocked = {"EDL_TEST_ROWS": "400", "EDL_TEST_BLOCK": "1:40"}
    with SnapshotOwner() as owner:
        with World(settings(epochs=1), 2, owner=owner, environment=blocked) as world:

            def waiting(rank: int) -> set[str]:
                told = [word for who, word in world.words if who == rank]
                return {word.waiting_for for word in told if isinstance(word, Progress)}

            feed, others = "the next batch of the feed", "the other ranks"
            world.wait(lambda: feed in waiting(1) and others in waiting(0), "that they wait")
            world.crew.leave()
            assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
            assert all(left.safe for left in world.said(Left))
        assert owner.newest_step() == world.said(Left)[0].step > 0


def test_who_loses_a_peer_goes_too_and_says_why() -> None:
    slowly = {"EDL_TEST_ROWS": "4000", "EDL_TEST_ROW_S": "0.001"}
    with World(settings(epochs=1), 2, environment=slowly) as world:
        world.wait(lambda: any(p.step >= 3 for p in world.said(Progress)), "step 3")
        world.crew.ranks[1].process.send_signal(signal.SIGKILL)
        assert world.ended() == {0: EXIT_AGAIN, 1: -signal.SIGKILL}
        (left,) = world.said(Left)
        assert not left.safe
        assert "one of them is gone" in left.why


def test_a_crash_in_the_job_names_step_and_batch(tmp_path: Path) -> None:
    """The 4th call of the loss raises on rank 1, in an epoch of 16 rows a step."""
    ids = tmp_path / "ids"
    crash = {"EDL_TEST_CRASH": "1:4"}
    job = settings(epochs=1, id_log=str(ids))
    with World(job, 2, environment=crash) as world:
        codes = world.ended()
        assert codes[0] == EXIT_AGAIN
        assert codes[1] not in (0, EXIT_AGAIN)
        (failed,) = world.said(Failed)
        assert (failed.step, failed.epoch, failed.usage) == (4, 0, False)
        assert "the loss has had enough" in failed.error
        assert "small_job.py" in failed.error
        assert "small_job.py" in failed.traceback
        trained = {p for line in lines(ids) for p in line["positions"]}
        assert len(failed.positions) == 8
        assert not trained & set(failed.positions)


def test_a_rank_that_cannot_begin_says_what_to_do() -> None:
    with World(settings(epochs=1, total_batch=1), 2) as world:
        assert 0 not in world.ended().values()
        assert all(failed.usage for failed in world.said(Failed))
        assert "too few for 2 ranks" in world.said(Failed)[0].error
        assert not world.said(Failed)[0].traceback


def test_a_feed_without_ids_is_gone_on_with_where_it_was_left(tmp_path: Path) -> None:
    """96 rows in 6 batches, 3 for each rank; evaluated over all of them, each rank its own."""
    stream = {"EDL_TEST_STREAM": "1", "EDL_TEST_ROW_S": "0.002"}
    job = settings(epochs=4, id_log=str(tmp_path), nodes=(1, 1), ranks_per_node=2)
    with SnapshotOwner() as owner:
        with World(job, 2, owner=owner, environment=stream) as world:
            world.wait(lambda: any(p.step >= 4 for p in world.said(Progress)), "step 4")
            world.crew.leave()
            assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
        again = World(job, 2, owner=owner, restore=owner.location, generation=2, environment=stream)
        with again as world:
            assert world.ended() == {0: 0, 1: 0}
            first, second = world.said(Finished)
            assert (first.step, second.step) == (12, 12)
            assert first.metrics == second.metrics
            assert first.metrics["accuracy"] == pytest.approx(first.metrics["by_paddle"])
    assert sum(line["rows"] for line in lines(tmp_path)) == 4 * 96
    assert {line["generation"] for line in lines(tmp_path)} == {1, 2}


def test_a_feed_without_rows_is_named() -> None:
    with World(settings(epochs=9), 1, environment={"EDL_TEST_SIZES": "0," * 9}) as world:
        assert world.ended()[0] != 0
        assert "gives no rows" in world.said(Failed)[0].error
