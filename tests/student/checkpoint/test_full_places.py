"""Saving to places that are full, refuse or are slow; the thread that writes snapshots."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from edl.errors import CheckpointUnavailable
from edl.student.checkpoint import (
    Checkpoint,
    Contents,
    Persister,
    Repository,
    SnapshotOwner,
    SnapshotWriter,
    open_checkpoint,
)
from edl.tests.student.checkpoint.samples import check, contents_of, newest_step
from edl.tests.waiting import DEADLINE_S, wait_until

NOBODY = 65534


class Quota(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A store in memory that takes no more when `full` is set."""

    protocol = "quota"
    store: dict[str, Any] = {}  # noqa: RUF012 - that of its parent is of this type
    pseudo_dirs = [""]  # noqa: RUF012
    full = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        if mode == "wb" and Quota.full:

            def refuse(data: bytes) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            file.write = refuse
        return file


@pytest.fixture
def quota() -> Iterator[str]:
    fsspec.register_implementation("quota", Quota, clobber=True)
    yield "quota://job"
    Quota.full = False
    Quota.store.clear()
    Quota.pseudo_dirs[:] = [""]


@contextlib.contextmanager
def no_file_grows_beyond(limit_bytes: int) -> Iterator[None]:
    """The system refuses to write more, as a disk without room does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_system_that_refuses_in_the_midst(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path))
    older = repository.save(contents_of(1))
    with (
        no_file_grows_beyond(100_000),
        pytest.raises(
            CheckpointUnavailable, match=r"step 2 to .*File too large.*make room"
        ) as told,
    ):
        repository.save(contents_of(2))
    assert told.value.full
    assert [path.name for path in tmp_path.iterdir()] == [older.name], "half of it is in the way"
    assert repository.newest_valid() == older
    assert repository.save(contents_of(2)).step == 2


def test_a_disk_without_enough_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(str(tmp_path))
    older = repository.save(contents_of(1))
    small = SimpleNamespace(f_bavail=10, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    with pytest.raises(CheckpointUnavailable, match=r"0\.0 MiB are free, 0\.5 MiB are needed") as e:
        repository.save(contents_of(2))
    assert e.value.full
    assert [path.name for path in tmp_path.iterdir()] == [older.name]


def test_a_place_without_rights() -> None:
    folder = Path(tempfile.mkdtemp())  # which others reach too, as those of pytest are not
    folder.chmod(0o555)
    as_root = os.geteuid() == 0
    try:
        if as_root:
            os.seteuid(NOBODY)
        with pytest.raises(CheckpointUnavailable, match="Permission denied") as told:
            Repository(str(folder / "job")).save(contents_of(1))
        assert not told.value.full
    finally:
        if as_root:
            os.seteuid(0)
        shutil.rmtree(folder)


def test_training_goes_on_while_the_place_is_full(
    quota: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The older checkpoint stays, the newest snapshot is written as soon as there is room."""
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        persister = Persister(owner, Repository(quota), retry_base_s=0.01)
        persister.start()
        try:
            writer.write(contents_of(1))
            assert persister.persist_now(DEADLINE_S) is not None
            Quota.full = True
            with caplog.at_level(logging.ERROR):
                for step in (2, 3):
                    writer.write(contents_of(step))
                    assert persister.persist_now(DEADLINE_S) is None
                    assert "No space left" in persister.trouble
            (said,) = [record.getMessage() for record in caplog.records]
            assert "step 2" in said
            assert "training goes on" in said
            assert "step-000000000001" in said
            assert newest_step(quota) == 1
            Quota.full = False
            wait_until(lambda: not persister.trouble)  # by a retry: nobody asks
        finally:
            persister.stop(DEADLINE_S)
    assert newest_step(quota) == 3
    check(open_checkpoint(quota))


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


def test_each_snapshot_is_written_once(tmp_path: Path) -> None:
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
    with persisting(tmp_path) as (_, _repository, writer, _owner):
        writer.write(contents_of(5))
    assert newest_step(tmp_path) == 5


def test_waiting_has_a_deadline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
def test_a_failed_write_is_logged_once_and_retried(
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
