"""Which saves join the history of a training, whoever is late, dies or is cut off meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.errors import CheckpointUnavailable, RegistryUnavailable, UsageError
from edl.scheduler.students.saving import History, due_beside
from edl.student.checkpoint import Repository
from edl.student.checkpoint.cli import app
from edl.student.checkpoint.manifest import MANIFEST
from edl.student.supervisor.fencing import BoardFence
from edl.student.supervisor.keeping import Keeping
from edl.tests.cli_output import json_of, run
from edl.tests.student.checkpoint.history import (
    JOB,
    Training,
    clear_memory,
    contents,
    memory_url,
)
from edl.tests.student.checkpoint.samples import GatedRepository, persisting
from edl.tests.waiting import DEADLINE_S, wait_until


@pytest.fixture(params=["folder", "memory://"])
def training(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Training]:
    yield Training(str(tmp_path) if request.param == "folder" else memory_url())
    clear_memory()


def test_names_have_generation_and_token(training: Training) -> None:
    fence = training.begin()
    names = {training.save(fence, step).name for step in (1, 2)}
    assert all(name.startswith(f"step-00000000000{name[16]}-g1-") for name in names)
    assert len({name.rpartition("-")[2] for name in names} | names) >= 3


def test_a_generation_that_began_further_back_is_the_history(training: Training) -> None:
    """The newest checkpoint is damaged for a while: the steps before it are trained again."""
    fence = training.begin()
    older, newer = training.save(fence, 50), training.save(fence, 100)
    history, _ = training.look()
    again = training.publish(history, older)
    assert again is not None
    training.save(again, 60)
    assert training.newest() == 60
    assert newer.step == 100


@pytest.mark.parametrize("dies", ["before", "after"])
def test_who_dies_while_it_joins_loses_no_save(training: Training, dies: str) -> None:
    fence = training.begin()
    training.save(fence, 10)

    class Dying(BoardFence):
        def replace(self, known: History, history: History) -> bool:
            if dies == "after":
                super().replace(known, history)
            raise KeyboardInterrupt

    dying = Dying(training.board, JOB, fence.generation, fence.after)
    repository = training.repository()
    with pytest.raises(KeyboardInterrupt):
        repository.join(repository.write(contents(20), dying), dying)
    assert training.newest() == 10
    following = training.begin()
    assert following.after.startswith("step-000000000020")
    training.save(following, 30)
    assert training.counting() == [30, 20]


def test_who_dies_as_it_begins_a_generation_loses_nothing(training: Training) -> None:
    """The save that the generation begins with had not joined, and nobody noted that it has."""
    fence = training.begin()
    written = training.repository().write(contents(10), fence)
    history, newest = training.look()
    assert newest is not None
    following = History(newest.entry)
    assert training.board.publish(JOB, "leader", 2, {}, (history.to_json(), following.to_json()))
    training.generation = 2
    assert training.newest() == 0
    assert training.begin().after == written.name
    assert training.newest() == 10


def test_two_nodes_of_a_generation_save_in_order_of_their_steps(training: Training) -> None:
    fence = training.begin()
    one, other = training.repository(), training.repository()
    late = one.write(contents(10), fence)
    newer = other.write(contents(20), fence)
    assert other.join(newer, fence) is not None
    assert one.join(late, fence) is None
    assert training.newest() == 20


def test_what_stays_outside_goes_with_the_next_save(training: Training) -> None:
    stale = training.begin()
    training.repository().write(contents(90), stale)
    training.save(stale, 95)
    training.repository().write(contents(99), stale)  # may join yet, as far as others know
    assert sorted(training.outside()) == [90, 99]
    fence = training.publish(training.look()[0], None)
    assert fence is not None
    training.save(fence, 10, 20)
    assert training.outside() == []


def test_a_newest_checkpoint_that_is_missing_is_named(
    training: Training, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where each node has a folder of its own, and another one leads now."""
    training.save(training.begin(), 10)
    elsewhere = Repository(str(tmp_path / "own"))
    history, newest = training.look()
    assert newest is not None
    for _ in range(2):
        assert elsewhere.newest_of(history, training.generation) is None
    (warning,) = caplog.messages
    assert newest.name in warning
    assert elsewhere.url in warning


def test_a_checkpoint_with_a_damaged_manifest_keeps_its_place(tmp_path: Path) -> None:
    """It stays to be looked into until as many whole ones are newer as are kept."""
    training = Training(str(tmp_path))
    fence = training.begin()
    damaged = training.save(fence, 10, 20, 30)
    (tmp_path / damaged.name / MANIFEST).write_text("{}")
    training.save(fence, 40)
    assert training.counting() == [40, 30, 20]
    training.save(fence, 50)
    assert training.counting() == [50, 40]


def test_what_an_older_generation_wrote_late_is_not_taken(training: Training) -> None:
    """It continues the newest checkpoint, as the generation after it has not saved yet."""
    training.save(training.begin(), 10)
    stale = training.begin()
    training.begin()
    training.repository().write(contents(90), stale)
    assert training.begin().after.startswith("step-000000000010")


def test_a_save_that_is_about_to_join_is_not_removed(training: Training) -> None:
    fence = training.begin()
    repository = training.repository()
    written = repository.write(contents(90), fence)
    training.save(fence, 10, 20, 30)
    assert training.outside() == [90]
    assert repository.join(written, fence) is not None
    assert training.newest() == 90


def test_checkpoints_of_older_versions_are_the_beginning(training: Training) -> None:
    training.repository().save(contents(100))
    fence = training.begin()
    assert fence.after.startswith("step-000000000100")
    assert training.save(fence, 60).sequence == 1
    assert training.newest() == 60


@pytest.mark.parametrize("file", ["JOINED.json", "MANIFEST.json"])
def test_a_damaged_note_is_passed_over_and_named(
    tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(str(tmp_path))
    fence = training.begin()
    training.save(fence, 10)
    spoilt = Path(training.save(fence, 20).location) / file
    spoilt.write_bytes(spoilt.read_bytes().replace(b"2", b"3"))
    assert training.newest() == 10
    (said,) = [record.getMessage() for record in caplog.records]
    assert file in said


def test_lists_say_what_is_outside(training: Training) -> None:
    fence = training.begin()
    training.save(fence, 10)
    training.repository().write(contents(20), fence)
    told = {one["step"]: one for one in json_of(app, "list", training.url)}
    assert {step: one["counts"] for step, one in told.items()} == {10: True, 20: False}
    assert told[10]["sequence"] == 1
    assert "not joined" in run(app, "list", training.url).stdout.replace("\n", " ")
    run(app, "prune", training.url, "--keep", "1")
    assert training.outside() == [20], "a training may be about to have it join"


def test_saves_wait_on_the_disk_while_the_board_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> bool:
        raise RegistryUnavailable("it restarts")

    training = Training(str(tmp_path))
    fence = training.begin()
    with persisting(training.repository()) as (persister, writer):
        persister.follow(fence)
        with monkeypatch.context() as patch:
            patch.setattr(training.board, "replace_history", away)
            for step in (10, 20, 30):
                writer.write(contents(step))
                persister.wake()
                wait_until(lambda: "restarts" in persister.trouble)
            wait_until(lambda: persister.on_disk)  # written beside it, as time doubles
            assert training.counting() == []
        wait_until(lambda: persister.newest and persister.newest.step == 30)
        wait_until(lambda: not persister.trouble)
    assert training.newest() == 30


NAME = "step-000000000010-g2-0123456789ab"


def test_a_snapshot_of_another_generation_is_not_saved_unless_it_is_asked_for(
    tmp_path: Path,
) -> None:
    training = Training(str(tmp_path))
    with persisting(training.repository()) as (persister, writer):
        persister.follow(training.begin())
        writer.write(contents(10))
        second = training.begin()
        persister.follow(second)
        persister.persist_now(DEADLINE_S)
        assert training.repository().list() == []
        persister.follow(second, NAME)
        persister.persist_now(DEADLINE_S)
        assert [one.name for one in training.repository().list()] == [NAME]
    assert training.newest() == 10


def test_a_write_that_a_new_generation_overtakes_is_void(tmp_path: Path) -> None:
    training = Training(str(tmp_path))
    repository = GatedRepository(training.url)
    with persisting(repository) as (persister, writer):
        persister.follow(training.begin())
        writer.write(contents(10))
        persister.wake()
        wait_until(lambda: repository.began)
        training.publish(History(), None)
        persister.follow(training.fence(), NAME)
        repository.gate.set()
        assert persister.persist_now(DEADLINE_S) is not None
    assert [one.name for one in training.repository().list() if one.counts] == [NAME]


def test_few_saves_are_written_beside_those_that_wait() -> None:
    written = [10.0]
    for now_s in range(10, 3600):
        if due_beside(written[-1], 5.0, now_s):
            written.append(now_s)
            assert (now_s - written[-2]) <= 0.55 * (now_s - 5.0)
    assert len(written) < 12


# --- without a coordinator


HOLDER = """
import sys
from edl.student.checkpoint import Repository
lock = Repository(sys.argv[1]).lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_one_training_without_a_coordinator_has_the_place(tmp_path: Path) -> None:
    url = str(tmp_path / "job")
    command = [sys.executable, "-P", "-c", HOLDER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another training saves its checkpoints to"):
            Keeping(url, 3, MemoryBoard(), JOB, alone=True)
        other.kill()
        other.wait(DEADLINE_S)
        lock = Repository(url).lock()
        assert lock is not None
        lock.close()


def test_a_place_that_cannot_be_locked_is_used_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file")
    assert Repository(str(tmp_path / "job")).lock() is None
    with pytest.raises(CheckpointUnavailable):
        Repository(str(tmp_path / "job")).save(contents(1))
