"""Which saves join the history of a training, whoever is late, dies or is cut off meanwhile."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.runtime.errors import CheckpointUnavailable, RedisUnavailable, UsageError, WireError
from edl.scheduler.students.saving import CheckpointHistory, due_without_board
from edl.student.checkpoint import Checkpoint, Persister, Repository
from edl.student.checkpoint.checkpoint import MANIFEST
from edl.student.checkpoint.cli import app
from edl.student.checkpoint.repository import HistoryFence
from edl.student.supervisor.checkpoints import CheckpointManager
from edl.tests.cli_output import json_of, run
from edl.tests.stores import of_job
from edl.tests.student.checkpoint.history import (
    JOB,
    Stopped,
    Training,
    clear_memory,
    contents,
    memory_url,
)
from edl.tests.student.checkpoint.samples import GatedRepository, damage, flip, persist, persisting
from edl.tests.waiting import DEADLINE_S, wait_until


@pytest.fixture(params=["folder", "memory://"])
def training(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Training]:
    yield Training(str(tmp_path) if request.param == "folder" else memory_url())
    clear_memory()


def files_of(checkpoint: Checkpoint) -> set[str]:
    fs, folder = fsspec.core.url_to_fs(checkpoint.location)
    return {path.rpartition("/")[2] for path in fs.ls(folder, detail=False)}


def test_a_history_of_another_version_is_refused(training: Training) -> None:
    fence = training.begin()
    training.save(fence, 1)
    record = training.board.generation(JOB)
    assert record is not None
    stored = dict(record.history)
    newer = {**stored, "newest": {**stored["newest"], "of_tomorrow": 1}}
    assert training.board.replace_history(JOB, training.generation, stored, newer)
    with pytest.raises(WireError, match="is not of this version"):
        training.save(fence, 2)
    with pytest.raises(WireError, match="is not of this version"):
        training.look()


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


def die_joining(training: Training, fence: HistoryFence, step: int, *, joins: bool) -> None:
    """Save a step, and die before the board has it, or before its folder says that it joined."""

    class Dying(HistoryFence):
        def replace(self, known: CheckpointHistory, history: CheckpointHistory) -> bool:
            if joins:
                super().replace(known, history)
            raise KeyboardInterrupt

    dying = Dying(training.board, JOB, fence.generation, fence.after)
    repository = training.repository()
    with pytest.raises(KeyboardInterrupt):
        repository.join(repository.write(contents(step), dying), dying)


@pytest.mark.parametrize("joins", [False, True])
def test_who_dies_while_it_joins_loses_no_save(training: Training, joins: bool) -> None:
    fence = training.begin()
    training.save(fence, 10)
    die_joining(training, fence, 20, joins=joins)
    assert training.newest() == 10
    following = training.begin()
    assert following.after.startswith("step-000000000020")
    training.save(following, 30)
    assert training.counting() == [30, 20]


def test_a_save_notes_that_the_one_before_it_has_joined(training: Training) -> None:
    """Another node of the generation died before it could."""
    fence = training.begin()
    die_joining(training, fence, 10, joins=True)
    assert training.outside() == [10]
    assert training.save(fence, 20).sequence == 2
    assert training.counting() == [20, 10]


def test_who_dies_as_it_begins_a_generation_loses_nothing(training: Training) -> None:
    """The save that the generation begins with had not joined, and nobody noted that it has."""
    fence = training.begin()
    written = training.repository().write(contents(10), fence)
    history, newest = training.look()
    assert newest is not None
    histories = history.to_json(), CheckpointHistory(newest.entry).to_json()
    leader = of_job(training.board, JOB, "leader")
    assert training.board.publish(JOB, leader, 2, {}, histories)
    training.generation = 2
    assert training.newest() == 0
    assert training.begin().after == written.name
    assert training.newest() == 10


@pytest.mark.parametrize(("step", "counting"), [(10, [20, 10]), (30, [30])])
def test_of_two_that_join_at_once_each_continues_the_other(
    training: Training, step: int, counting: list[int]
) -> None:
    """What another node of the generation has joined meanwhile is neither lost nor overtaken."""
    fence = training.begin()

    class Overtaken(HistoryFence):
        def replace(self, known: CheckpointHistory, history: CheckpointHistory) -> bool:
            if not training.counting():
                training.save(fence, step)
            return super().replace(known, history)

    slow = Overtaken(training.board, JOB, fence.generation, fence.after)
    repository = training.repository()
    joined = repository.join(repository.write(contents(20), slow), slow)
    assert (joined.sequence if joined else None) == (2 if step < 20 else None)
    assert training.counting() == counting


def test_two_saves_of_one_second_never_share_a_name(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = (f"6b0ae2c0{number // 2:04x}" for number in itertools.count())  # each twice
    monkeypatch.setattr("edl.student.checkpoint.storage.token", lambda: next(tokens))
    fence = training.begin()
    repository = training.repository()
    first = repository.write(contents(1, by=1), fence)
    second = repository.write(contents(1, by=2), fence)
    assert first.name != second.name
    assert repository.load(first).tensors["model/w"].tolist() == [1, 1]


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


def test_only_what_a_fenced_write_named_is_removed(training: Training) -> None:
    """However late: others have saved meanwhile, who keep more."""
    fence = training.begin()
    training.save(fence, 10, 20)
    late = Stopped(training.url, training.keep)
    assert late.join(late.write(contents(30), fence), fence) is not None
    training.keep = 9
    training.save(fence, 40, 50)
    assert training.counting() == [50, 40, 30, 20, 10]
    late.remove()
    assert training.counting() == [50, 40, 30, 20]


def test_what_a_later_save_of_its_generation_overtook_goes_with_that(training: Training) -> None:
    training.keep = 1
    fence = training.begin()
    for step in (5, 10, 20):
        training.repository().write(contents(step), fence)
    training.save(fence, 10)
    assert training.outside() == [20], "it may join yet"


def test_a_program_that_saves_there_leaves_what_may_still_join(training: Training) -> None:
    training.repository().write(contents(5), training.begin())
    Repository(training.url, keep=1).save(contents(10))
    assert training.outside() == [5]


def test_a_newest_checkpoint_that_is_missing_is_named(
    training: Training, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where each node has a folder of its own, and another one leads now."""
    training.save(training.begin(), 10)
    elsewhere = Repository(str(tmp_path / "own"))
    history, newest = training.look()
    assert newest is not None
    for _ in range(2):
        assert elsewhere.newest_for_next_generation(history, training.generation) is None
    (warning,) = caplog.messages
    assert newest.name in warning
    assert elsewhere.url in warning


@pytest.mark.parametrize(("again", "step"), [(False, 30), (True, 15)])
def test_a_save_is_behind_the_newest_also_where_that_is_missing(
    tmp_path: Path, again: bool, step: int
) -> None:
    """A mount comes back with what was missing: it does not take the training back."""
    training = Training(str(tmp_path / "job"))
    fence = training.begin()
    missing = training.save(fence, 10, 20)
    Path(missing.location).rename(tmp_path / "away")
    if again:
        fence = training.begin()
        assert fence.after.startswith("step-000000000010")
    training.save(fence, step)
    (tmp_path / "away").rename(missing.location)
    assert training.counting() == [step, 20, 10]
    assert training.begin().after.startswith(f"step-{step:012}")


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


def test_a_save_that_is_taken_although_it_has_not_joined_is_the_newest(training: Training) -> None:
    fence = training.begin()
    training.save(fence, 10, 20)
    training.repository().write(contents(30), fence)
    _, newest = training.look()
    assert newest is not None
    assert (newest.step, newest.sequence) == (30, 3)


def test_such_a_save_follows_the_newest_also_where_that_is_missing(tmp_path: Path) -> None:
    """Both continue the checkpoint before; the one that has joined comes back later."""
    training = Training(str(tmp_path / "job"), keep=3)
    fence = training.begin()
    training.save(fence, 10)
    repository = training.repository()
    repository.write(contents(20), fence)
    joined = repository.join(repository.write(contents(30), fence), fence)
    assert joined is not None
    Path(joined.location).rename(tmp_path / "away")
    _, newest = training.look()
    assert newest is not None
    assert (newest.step, newest.sequence) == (20, joined.sequence + 1)


def test_a_checkpoint_of_another_content_than_what_joined_stays_outside(training: Training) -> None:
    """It is no less whole: its name was used again."""
    repository = training.repository()
    written = repository.write(contents(10), training.begin())
    repository.mark(replace(written.entry, digest="0" * 64, sequence=1))
    (found,) = repository.list()
    assert (found.eligible, found.problem) == (False, "")
    repository.mark(replace(written.entry, sequence=1))
    assert training.counting() == [10]


@pytest.fixture(params=[True, False])
def saved(request: pytest.FixtureRequest, training: Training) -> Checkpoint:
    """The newest one, of step 20, which has joined the history or not; before it is step 10."""
    fence = training.begin()
    training.save(fence, 10)
    written = training.repository().write(contents(20), fence)
    if request.param:
        training.repository().join(written, fence)
    return written


def test_what_is_known_to_be_whole_is_read_once(training: Training, saved: Checkpoint) -> None:
    history, _ = training.look()
    repository = GatedRepository(training.url)
    repository.gate.set()
    known = None
    for _ in range(2):
        known = repository.newest_for_next_generation(history, training.generation, known)
        assert known is not None
        assert known.name == saved.name
    assert repository.verified == [20]
    damage(saved, "model.safetensors", lambda data: data[:-1])
    newest = repository.newest_for_next_generation(history, training.generation, known)
    assert newest is not None
    assert newest.step == 10, "its length says that it is damaged now"


def test_what_is_known_to_be_whole_is_no_other(training: Training, saved: Checkpoint) -> None:
    history, _ = training.look()
    damage(saved, "model.safetensors", flip)

    def found(known: Checkpoint | None = None) -> Checkpoint | None:
        return training.repository().newest_for_next_generation(history, training.generation, known)

    newest = found()
    for _ in range(2):
        assert newest is not None
        assert newest.step == 10
        newest = found(newest)
    for one in training.repository().list():
        damage(one, "state.json", lambda data: None)
    assert found(newest) is None


def test_a_save_that_is_about_to_join_is_not_removed(training: Training) -> None:
    fence = training.begin()
    repository = training.repository()
    written = repository.write(contents(90), fence)
    training.save(fence, 10, 20, 30)
    assert training.outside() == [90]
    assert repository.join(written, fence) is not None
    assert training.newest() == 90


def test_a_damaged_checkpoint_of_the_history_evicts_no_valid_one(training: Training) -> None:
    """A program that uses the repository itself saves there; its saves are behind the history."""
    damage(training.save(training.begin(), 5), "model.safetensors", flip)
    for step in (8, 10):
        training.repository().save(contents(step))
    assert training.newest() == 10
    assert training.counting() == [5, 10, 8]


def test_checkpoints_of_older_versions_are_the_beginning(training: Training) -> None:
    files = files_of(training.repository().save(contents(100)))
    fence = training.begin()
    assert files_of(training.repository().list()[0]) == files, "other programs may write there"
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


@pytest.mark.parametrize("is_known", [False, True])
def test_a_damaged_save_of_the_last_generation_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_known: bool
) -> None:
    """`is_known`: the valid checkpoint before it has been read."""
    training = Training(str(tmp_path))
    fence = training.begin()
    saved = training.save(fence, 10)
    outside = training.repository().write(contents(20), fence)
    damage(outside, "model.safetensors", flip)
    repository, history = training.repository(), fence.history()
    known = saved if is_known else None
    for _ in range(2):
        newest = repository.newest_for_next_generation(history, training.generation, known)
        assert newest is not None
        assert newest.step == 10
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"{outside.location} is damaged: model.safetensors" in said


def test_lists_say_what_is_outside(training: Training) -> None:
    fence = training.begin()
    training.save(fence, 10)
    training.repository().write(contents(20), fence)
    told = {one["step"]: one for one in json_of(app, "list", training.url)}
    assert {step: one["eligible"] for step, one in told.items()} == {10: True, 20: False}
    assert told[10]["sequence"] == 1
    assert "not joined" in run(app, "list", training.url).stdout.replace("\n", " ")


#: Of a save that began years ago.
NAME = "step-000000000010-g2-0123456789ab"


def test_an_operator_prunes_beside_a_training(training: Training) -> None:
    """The history is not told, and need not be."""
    fence = training.begin()
    training.save(fence, 10, 20)
    training.repository().write(contents(10), fence, NAME)
    training.repository().write(contents(30), fence)
    before, _ = training.look()
    run(app, "prune", training.url, "--keep", "1")
    assert training.counting() == [20]
    assert training.outside() == [30], "it may be about to join; the other one is over a day old"
    assert training.look()[0] == before, "no tombstones"
    assert training.save(fence, 40).sequence == 3
    assert training.begin().after.startswith("step-000000000040")


def test_saves_wait_on_the_disk_while_the_board_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> bool:
        raise RedisUnavailable("it restarts")

    training = Training(str(tmp_path))
    fence = training.begin()
    with persisting(training.repository()) as (persister, writer):
        persister.follow(fence)
        with monkeypatch.context() as patch:
            patch.setattr(training.board, "replace_history", away)
            for step in (10, 20, 30):
                writer.write(contents(step))
                persister.wake()
                wait_until(lambda: "restarts" in persister.problem)
            wait_until(lambda: persister.on_disk)  # written beside it, as time doubles
            assert training.counting() == []
        wait_until(lambda: persister.newest and persister.newest.step == 30)
        wait_until(lambda: not persister.problem)
    assert training.newest() == 30


def test_a_snapshot_of_another_generation_is_not_saved_unless_it_is_asked_for(
    tmp_path: Path,
) -> None:
    training = Training(str(tmp_path))
    with persisting(training.repository()) as (persister, writer):
        persister.follow(training.begin())
        writer.write(contents(10))
        second = training.begin()
        persister.follow(second)
        persist(persister)
        assert training.repository().list() == []
        persister.follow(second, NAME)
        persist(persister)
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
        training.publish(CheckpointHistory(), None)
        persister.follow(training.fence(), NAME)
        repository.gate.set()
        assert persist(persister) is not None
    assert [one.name for one in training.repository().list() if one.eligible] == [NAME]


def test_a_snapshot_found_before_a_new_generation_does_not_join_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(str(tmp_path))
    with persisting(training.repository()) as (persister, writer):
        persister.follow(training.begin())
        save = Persister._save  # noqa: SLF001 - a moment between two of its locks

        def overtaken(self: Persister, *args: Any) -> int:
            if training.generation == 1:
                self.follow(training.begin())
            return save(self, *args)

        monkeypatch.setattr(Persister, "_save", overtaken)
        writer.write(contents(10))
        persister.wake()
        wait_until(lambda: training.generation == 2 and persister.on_disk)
    assert training.counting() == []


def test_an_error_of_an_earlier_generation_is_no_problem_of_the_next(tmp_path: Path) -> None:
    training = Training(str(tmp_path))
    repository = GatedRepository(training.url)
    repository.fails = CheckpointUnavailable("the disk is full")
    with persisting(repository) as (persister, writer):
        for overtaken in (False, True):  # after the error, or while the write is still to fail
            persister.follow(training.begin())
            repository.began.clear()
            writer.write(contents(10))
            persister.wake()
            wait_until(lambda: repository.began)
            if not overtaken:
                repository.gate.set()
                wait_until(lambda: persister.problem)
            persister.follow(training.begin())
            repository.gate.set()
            persister.wake()
            wait_until(lambda: persister.on_disk)
            assert not persister.problem
            repository.gate.clear()


def test_few_saves_are_written_beside_those_that_wait() -> None:
    written = [10.0]
    for now_s in range(10, 3600):
        if due_without_board(written[-1], 5.0, now_s):
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
        for alone in (True, False):
            with pytest.raises(UsageError, match="another training saves its checkpoints to"):
                CheckpointManager(url, 3, JobBoard(MemoryStore()), JOB, alone)
        other.kill()
        other.wait(DEADLINE_S)
        lock = Repository(url).lock()
        assert lock is not None
        lock.close()


def test_one_job_with_a_coordinator_has_the_place(training: Training) -> None:
    nodes = [CheckpointManager(training.url, 3, training.board, JOB) for _ in range(2)]
    for node in nodes:
        node.close()
    with pytest.raises(UsageError, match=f"those of job {JOB}. Give .* remove the file JOB-{JOB}"):
        CheckpointManager(training.url, 3, training.board, "b")


def test_a_place_that_cannot_be_locked_is_used_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file")
    assert Repository(str(tmp_path / "job")).lock() is None
    with pytest.raises(CheckpointUnavailable):
        Repository(str(tmp_path / "job")).save(contents(1))
