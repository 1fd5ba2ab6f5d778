"""Snapshots are whole, survive their writer, and are not overwritten while they are read."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest

from edl.errors import MemoryRefused, UsageError
from edl.student.checkpoint import Contents, SnapshotOwner, SnapshotWriter, open_checkpoint
from edl.student.checkpoint.snapshot import newest_of, open_slots
from edl.tests.student.checkpoint.samples import check, contents_of


def newest(owner: SnapshotOwner) -> Contents | None:
    with owner.newest() as found:
        return None if found is None else found[1].copied()


def test_the_newest_snapshot_is_restored() -> None:
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        assert newest(owner) is None
        assert owner.newest_step() is None
        for step in (1, 2, 3, 2):  # a training may go back to an older checkpoint
            writer.write(contents_of(step))
            assert owner.newest_step() == step
            found = newest(owner)
            assert found is not None
            check(found)
        check(open_checkpoint(owner.location))


def test_contents_may_grow_and_shrink() -> None:
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        for size in (16, 1 << 18, 16, 1 << 19):
            for step in (1, 2):
                writer.write(contents_of(step, size))
                found = newest(owner)
                assert found is not None
                check(found, size)


def test_all_ranks_of_a_node_read_the_newest_at_once() -> None:
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        writer.write(contents_of(1))
        writer.write(contents_of(2))
        slots = [open_slots(owner.keys) for _ in range(3)]
        with contextlib.ExitStack() as reading:
            found = [reading.enter_context(newest_of(of_rank)) for of_rank in slots]
            assert [one and one[0].step for one in found] == [2, 2, 2]
            del found
        for of_rank in slots:
            for slot in of_rank:
                slot.close()


def test_a_snapshot_being_read_is_not_overwritten() -> None:
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        writer.write(contents_of(1))
        writer.write(contents_of(2))
        with owner.newest() as found:
            assert found is not None
            for step in (3, 4, 5):  # all of them into the other slot
                writer.write(contents_of(step))
            check(found[1])
            assert found[1].step == 2
        assert owner.newest_step() == 5


@pytest.mark.parametrize("first", [True, False])
def test_a_dead_writer_spoils_one_slot(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        if not first:
            writer.write(contents_of(1))
        copied = []

        def die(target: object, source: object) -> None:
            copied.append(target)
            if len(copied) == 3:
                raise SystemExit

        with monkeypatch.context() as patched:
            patched.setattr(np, "copyto", die)
            with pytest.raises(SystemExit):
                writer.write(contents_of(2))
        assert owner.newest_step() == (None if first else 1)
        with SnapshotWriter(owner.keys) as successor:
            successor.write(contents_of(3))
        found = newest(owner)
        assert found is not None
        check(found)
        assert found.step == 3


@pytest.mark.parametrize("at", [0, 8, 20, 40, 47, 4096, 4200])
def test_a_spoilt_byte_of_header_or_table_is_noticed(at: int) -> None:
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        writer.write(contents_of(1))
        writer.write(contents_of(2))
        fd = int(owner.keys[1].rpartition("-")[2])
        (byte,) = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte ^ 0x55]), at)
        found = newest(owner)
        assert found is not None
        assert found.step == 1


def test_memory_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, os.strerror(12))

    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        writer.write(contents_of(1))
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(MemoryRefused, match="MiB of shared memory: Cannot allocate memory"):
            writer.write(contents_of(2))
        assert owner.newest_step() == 1


def test_memory_without_an_owner_is_refused() -> None:
    with SnapshotOwner() as owner:
        keys = list(owner.keys)
    with pytest.raises(UsageError, match="snapshots"):
        SnapshotWriter(keys)
    with pytest.raises(UsageError, match="names no memory"):
        SnapshotWriter(["/dev/shm/other", "x"])
    with pytest.raises(UsageError, match="no memory for snapshots was named"):
        SnapshotWriter([])


def test_an_owner_without_a_snapshot_has_nothing_to_open() -> None:
    with SnapshotOwner() as owner, pytest.raises(UsageError, match="no snapshot in the memory"):
        open_checkpoint(owner.location)
