"""The supervisor's thread: the newest snapshot reaches the disk, once, whoever asks and when."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl.errors import CheckpointUnavailable
from edl.student.checkpoint import (
    Checkpoint,
    Contents,
    Persister,
    Repository,
    SnapshotOwner,
    SnapshotWriter,
)
from edl.tests.student.checkpoint.samples import check, contents_of
from edl.tests.waiting import DEADLINE_S, wait_until


class Slow(Repository):
    """Saves when it is let; remembers what it was given, and fails when told so."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.may_save = threading.Event()
        self.may_save.set()
        self.began: list[int] = []
        self.fails: Exception | None = None

    def save(self, contents: Contents) -> Checkpoint:
        self.began.append(contents.step)
        assert self.may_save.wait(DEADLINE_S)
        if self.fails is not None:
            raise self.fails
        return super().save(contents)


@contextmanager
def persisting(tmp_path: Path) -> Iterator[tuple[Persister, Slow, SnapshotWriter, SnapshotOwner]]:
    repository = Slow(str(tmp_path))
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        persister = Persister(owner, repository, retry_base_s=0.01)
        persister.start()
        try:
            yield persister, repository, writer, owner
        finally:
            repository.may_save.set()
            persister.stop(DEADLINE_S)


def test_what_is_told_is_written_once(tmp_path: Path) -> None:
    with persisting(tmp_path) as (persister, repository, writer, _):
        assert persister.persist_now(DEADLINE_S) is None, "there is nothing"
        writer.write(contents_of(1))
        persister.wake()
        wait_until(lambda: persister.newest)
        assert persister.persist_now(DEADLINE_S) == persister.newest
        persister.wake()
    assert repository.began == [1]


def test_a_snapshot_that_is_overtaken_is_not_written(tmp_path: Path) -> None:
    with persisting(tmp_path) as (persister, repository, writer, _):
        repository.may_save.clear()
        writer.write(contents_of(1))
        persister.wake()
        wait_until(lambda: repository.began)
        for step in (2, 3, 4):  # the rank does not wait for the disk
            writer.write(contents_of(step))
            persister.wake()
        repository.may_save.set()
        found = persister.persist_now(DEADLINE_S)
        assert found is not None
        assert found.step == 4
    assert repository.began == [1, 4]
    for one in repository.list():
        check(repository.load(one))


def test_the_end_waits_for_the_last_snapshot(tmp_path: Path) -> None:
    with persisting(tmp_path) as (_, repository, writer, _owner):
        writer.write(contents_of(5))
    found = repository.newest_valid()
    assert found is not None
    assert found.step == 5


def test_a_wish_has_a_deadline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with persisting(tmp_path) as (persister, repository, writer, _):
        repository.may_save.clear()
        writer.write(contents_of(1))
        with caplog.at_level(logging.WARNING):
            assert persister.persist_now(0.05) is None
        assert "step 1 is not written" in caplog.text
        repository.may_save.set()
        assert persister.persist_now(DEADLINE_S) is not None, "it was written nevertheless"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CheckpointUnavailable("the server is away"), "the server is away"),
        (RuntimeError("what nobody thought of"), "RuntimeError: what nobody thought of"),
    ],
)
def test_what_fails_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    with persisting(tmp_path) as (persister, repository, writer, _):
        repository.fails = error
        with caplog.at_level(logging.INFO):
            writer.write(contents_of(1))
            persister.wake()
            wait_until(lambda: len(repository.began) > 3)
            assert persister.trouble == said
            repository.fails = None
            wait_until(lambda: not persister.trouble)
        assert persister.newest is not None
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert "checkpoints are written again" in caplog.text


def test_after_a_way_back_the_lower_step_counts(tmp_path: Path) -> None:
    with persisting(tmp_path) as (persister, repository, writer, _):
        for step in (20, 12):
            writer.write(contents_of(step))
            found = persister.persist_now(DEADLINE_S)
            assert found is not None
            assert found.step == step
    assert repository.began == [20, 12]
