"""Snapshots in memory, and the thread that writes them to places that are full or slow."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile

from edl.runtime.errors import CheckpointUnavailable, MemoryRefused, UsageError
from edl.student.checkpoint import Repository, SnapshotOwner, SnapshotWriter, open_checkpoint
from edl.tests.leaks import open_files
from edl.tests.student.checkpoint.history import clear_memory
from edl.tests.student.checkpoint.samples import (
    SIZE,
    GatedRepository,
    check,
    contents_of,
    newest_step,
    persist,
    persisting,
)
from edl.tests.waiting import wait_until


@pytest.fixture
def owner() -> Iterator[SnapshotOwner]:
    with SnapshotOwner() as owner:
        yield owner


@pytest.fixture
def writer(owner: SnapshotOwner) -> Iterator[SnapshotWriter]:
    with SnapshotWriter(owner.keys) as writer:
        yield writer


def check_newest(owner: SnapshotOwner, step: int, size: int = SIZE) -> None:
    with owner.newest() as found:
        assert found is not None
        assert found[1].step == step
        check(found[1], size)


def test_the_newest_snapshot_is_restored(owner: SnapshotOwner, writer: SnapshotWriter) -> None:
    with owner.newest() as found:
        assert found is None
    assert owner.newest_step() is None
    for size in (16, 1 << 18, 16, 1 << 19):
        for step in (1, 3, 2):  # a training may go back to an older checkpoint
            writer.write(contents_of(step, size))
            assert owner.newest_step() == step
            check_newest(owner, step, size)


def test_a_snapshot_that_is_read_is_not_overwritten_meanwhile() -> None:
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        writer.write(contents_of(1))
        writer.write(contents_of(2))
        with owner.newest() as found:
            assert found is not None
            assert found[0].step == 2
            for step in (3, 4, 5):  # all of them into the other slot
                writer.write(contents_of(step))
            check(found[1])
            del found
        assert owner.newest_step() == 5


@pytest.mark.parametrize("first", [True, False])
def test_a_dead_writer_spoils_one_slot(
    owner: SnapshotOwner, writer: SnapshotWriter, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not first:
        writer.write(contents_of(1))
    with monkeypatch.context() as patched:
        patched.setattr(np, "copyto", Mock(side_effect=[None, None, SystemExit]))
        with pytest.raises(SystemExit):
            writer.write(contents_of(2))
    assert owner.newest_step() == (None if first else 1)
    with SnapshotWriter(owner.keys) as successor:
        successor.write(contents_of(3))
    check_newest(owner, 3)


@pytest.mark.parametrize("at", [0, 8, 20, 40, 47, 4096, 4200])
def test_a_spoilt_byte_of_header_or_table_is_noticed(
    owner: SnapshotOwner, writer: SnapshotWriter, at: int
) -> None:
    writer.write(contents_of(1))
    writer.write(contents_of(2))
    fd = int(owner.keys[1].rpartition("-")[2])
    (byte,) = os.pread(fd, 1, at)
    os.pwrite(fd, bytes([byte ^ 0x55]), at)
    check_newest(owner, 1)


def test_memory_that_the_system_does_not_give(
    owner: SnapshotOwner, writer: SnapshotWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write(contents_of(1))
    refuse = Mock(side_effect=OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MemoryRefused, match="MiB of shared memory: Cannot allocate memory"):
        writer.write(contents_of(2))
    assert owner.newest_step() == 1


def test_memory_without_an_owner_is_refused_and_no_slot_stays_open(owner: SnapshotOwner) -> None:
    with SnapshotOwner() as closed:
        keys = list(closed.keys)
    before = open_files().keys()
    for wrong, match in (
        (keys, "snapshots"),
        (["/dev/shm/other", "x"], "is not a key of memory"),
        ([owner.keys[0], "x"], "is not a key of memory"),
        ([], "no keys of memory for snapshots were given"),
    ):
        with pytest.raises(UsageError, match=match):
            SnapshotWriter(wrong)
    assert open_files().keys() <= before


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
    refused = pytest.raises(CheckpointUnavailable, match=r"step 2 to .*File too large.*room")
    with no_file_grows_beyond(100_000), refused as told:
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
    full = r"40\.0 KiB are free, \d+\.\d KiB are needed"
    with pytest.raises(CheckpointUnavailable, match=full) as e:
        repository.save(contents_of(2))
    assert e.value.full
    assert [path.name for path in tmp_path.iterdir()] == [older.name]


NOBODY = 65534


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


@pytest.fixture
def place() -> Iterator[str]:
    yield "memory://full"
    clear_memory()


def test_training_goes_on_while_the_place_is_full(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The older checkpoint stays, the newest snapshot is written as soon as there is room."""
    with persisting(Repository(place)) as (persister, writer):
        writer.write(contents_of(1))
        assert persist(persister) is not None
        with monkeypatch.context() as full, caplog.at_level(logging.ERROR):
            no_space = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            full.setattr(MemoryFile, "write", no_space, raising=False)
            for step in (2, 3):
                writer.write(contents_of(step))
                assert persist(persister) is None
                assert "No space left" in persister.problem
            wait_until(lambda: caplog.records)  # logged after `problem` is set
            assert newest_step(place) == 1
        wait_until(lambda: persister.on_disk and not persister.problem)  # by a retry: nobody asks
    (said,) = [record.getMessage() for record in caplog.records]
    for part in ("step 2", "training goes on", "step-000000000001"):
        assert part in said
    assert newest_step(place) == 3
    check(open_checkpoint(place))


@pytest.fixture
def repository(tmp_path: Path) -> GatedRepository:
    repository = GatedRepository(str(tmp_path))
    repository.gate.set()
    return repository


def test_a_snapshot_that_is_overtaken_is_not_written(repository: GatedRepository) -> None:
    with persisting(repository) as (persister, writer):
        assert persist(persister) is None, "there is nothing"
        repository.gate.clear()
        writer.write(contents_of(1))
        persister.wake()
        wait_until(lambda: repository.began)
        for step in (2, 3, 4):  # the rank does not wait for the disk
            writer.write(contents_of(step))
            persister.wake()
        repository.gate.set()
        found = persist(persister)
        assert found is not None
        assert found.step == 4
        writer.write(contents_of(2))  # after a way back the lower step counts
        found = persist(persister)
        assert found is not None
        assert found.step == 2
    assert repository.began == [1, 4, 2]
    for one in repository.list():
        check(repository.load(one))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CheckpointUnavailable("the server is away"), "the server is away"),
        (RuntimeError("what nobody thought of"), "RuntimeError: what nobody thought of"),
    ],
)
def test_a_failed_write_is_logged_once_and_retried(
    repository: GatedRepository, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    with persisting(repository) as (persister, writer):
        repository.fails = error
        with caplog.at_level(logging.INFO):
            writer.write(contents_of(1))
            persister.wake()
            wait_until(lambda: len(repository.began) > 3)
            assert persister.problem == said
            repository.fails = None
            wait_until(lambda: not persister.problem)
        assert persister.newest is not None
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert "checkpoints are written again" in caplog.text
