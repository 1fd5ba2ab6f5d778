"""Regions of clients' memory, the places in them, and the users behind connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.proto.shared_buffer import BufferRef
from edl.runtime.errors import EdlError, RateLimited, RequestRefused, RetryableError
from edl.teacher.servers import callers, shared_regions
from edl.teacher.servers.callers import CallCredentials, CallerIdentity
from edl.teacher.servers.shared_regions import SharedMemoryRegions
from edl.teacher.servers.shared_segment import FOLDER
from edl.tests.leaks import open_files
from edl.tests.teacher.segments import Object, shared

HERE = CallerIdentity("anyone", "127.0.0.1", 1)
OTHER = CallerIdentity("student:other", "127.0.0.1", 1)
AT = 64


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """`HERE` and `OTHER` have connections of our user."""
    monkeypatch.setattr(CallerIdentity, "listed_uid", lambda _: os.geteuid())


@pytest.fixture
def memory(connected: None, monkeypatch: pytest.MonkeyPatch) -> SharedMemoryRegions:
    for name, limit in (("REGIONS", 3), ("REGION_BYTES", 1 << 20), ("REGIONS_IN_ALL", 4)):
        monkeypatch.setattr(shared_regions, name, limit)
    return SharedMemoryRegions(enabled=True)


@pytest.fixture
def owned() -> Iterator[Object]:
    with shared(4096) as found:
        yield found


def register(
    memory: SharedMemoryRegions, found: Object, name: str = "r", caller: CallerIdentity = HERE
) -> None:
    memory.register(caller, name, found.key, offset=0, nbytes=4096)


def test_reads_copy_and_writes_reach_the_owner(memory: SharedMemoryRegions, owned: Object) -> None:
    memory.register(HERE, "in", f"/{owned.key}", offset=1024, nbytes=1024)
    owned.put(b"abcdef", 1024 + 10)
    copy = memory.read(HERE, BufferRef("in", 11, 4))
    owned.put(b"xxxxxx", 1024 + 10)
    assert bytes(copy) == b"bcde", "it is a copy"
    memory.write(HERE, BufferRef("in", 100, 8), memoryview(b"labels"))
    assert owned.get(8, 1024 + 100) == b"labels\0\0"


def test_a_key_that_names_no_shared_memory_is_refused(memory: SharedMemoryRegions) -> None:
    for key in ("", "/", "edl", "psm_x", "../etc/passwd", "edl-/../../etc/passwd", "edl-\0",
                "edl-none", "edl-\ud800", "//edl-x"):  # fmt: skip
        with pytest.raises(RequestRefused):
            memory.register(HERE, "r", key, offset=0, nbytes=8)


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_other_files_are_refused(memory: SharedMemoryRegions, owned: Object, kind: str) -> None:
    odd = FOLDER / f"{owned.key}-odd"
    if kind == "folder":
        odd.mkdir()
    else:
        odd.symlink_to(owned.path) if kind == "link" else os.mkfifo(odd)
    try:
        with pytest.raises(RequestRefused):
            memory.register(HERE, "r", odd.name, offset=0, nbytes=8)
    finally:
        odd.rmdir() if kind == "folder" else odd.unlink()


def test_named_memory_is_for_who_may_read_it_here(
    owned: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestRefused, match="start it with --allow-system-shm"):
        register(SharedMemoryRegions(), owned)
    memory, ours = SharedMemoryRegions(enabled=True), os.geteuid()
    for host in ("192.0.2.1", "2001:db8::1", "", "here", "127.0.0.1"):
        with pytest.raises(RequestRefused, match="not known as that of a user of this host"):
            register(memory, owned, caller=CallerIdentity("anyone", host, 1))
    monkeypatch.setattr(CallerIdentity, "listed_uid", lambda _: ours + 1)
    with pytest.raises(RequestRefused, match=f"belongs to user {ours}; the caller is user"):
        register(memory, owned)
    monkeypatch.setattr(CallerIdentity, "listed_uid", lambda _: 0)
    register(memory, owned)


def test_regions_belong_to_their_client(memory: SharedMemoryRegions, owned: Object) -> None:
    register(memory, owned)
    with pytest.raises(RequestRefused, match="unregister it first"):
        register(memory, owned)
    with pytest.raises(RequestRefused, match="no region 'r' of this caller"):
        memory.read(OTHER, BufferRef("r", 0, 8))
    memory.unregister(OTHER, "r")
    memory.unregister(OTHER)
    assert memory.status(OTHER) == {}
    assert list(memory.status(HERE)) == ["r"]
    with pytest.raises(RequestRefused):
        memory.status(OTHER, "r")
    for _ in range(2):
        memory.unregister(HERE, "r")
    with pytest.raises(RequestRefused, match="no region"):
        memory.read(HERE, BufferRef("r", 0, 8))
    register(memory, owned)


def test_limits_of_regions_and_bytes(memory: SharedMemoryRegions, owned: Object) -> None:
    for name in "abc":
        register(memory, owned, name)
    with pytest.raises(RateLimited, match="3 regions are registered already"):
        register(memory, owned, "d")
    register(memory, owned, caller=OTHER)
    with pytest.raises(RateLimited, match="no room"):
        register(memory, owned, caller=CallerIdentity("third", "127.0.0.1", 1))
    memory.unregister(HERE)
    register(memory, owned, "d")
    owned.resize(2 << 20)
    with pytest.raises(RateLimited, match="of 1048576 that one caller may register"):
        memory.register(HERE, "large", owned.key, offset=0, nbytes=(1 << 20) - 4095)


def test_a_region_beyond_its_object_is_refused(memory: SharedMemoryRegions, owned: Object) -> None:
    for offset, nbytes in ((0, 0), (0, 4097), (4096, 1), (1 << 63, 1 << 63)):
        says = "are not all within" if nbytes else "at least 1 byte"
        with pytest.raises(RequestRefused, match=says):
            memory.register(HERE, "r", owned.key, offset=offset, nbytes=nbytes)


def test_a_place_beyond_its_region_is_refused(memory: SharedMemoryRegions, owned: Object) -> None:
    owned.resize(1 << 20)
    register(memory, owned)
    for offset, nbytes in ((4090, 7), (1 << 63, 8), (0, 4097), (4097, 0)):
        with pytest.raises(RequestRefused):
            memory.read(HERE, BufferRef("r", offset, nbytes))
        with pytest.raises(RequestRefused):
            memory.write(HERE, BufferRef("r", offset, nbytes), memoryview(b""))
    with pytest.raises(RequestRefused, match="9 bytes does not fit into the 8"):
        memory.write(HERE, BufferRef("r", 0, 8), memoryview(bytes(9)))


def test_a_truncated_region_is_refused(
    memory: SharedMemoryRegions, owned: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that happens while it is copied."""
    register(memory, owned)
    read = os.preadv

    def cut_then_read(fd: int, buffers: list[memoryview], at: int) -> int:
        owned.resize(100)
        return read(fd, buffers, at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", cut_then_read)
        with pytest.raises(RequestRefused, match="has become smaller"):
            memory.read(HERE, BufferRef("r", 0, 4096))
    with pytest.raises(RequestRefused, match="has become smaller: the request needs 108 bytes"):
        memory.read(HERE, BufferRef("r", 100, 8))
    with pytest.raises(RequestRefused, match="has become smaller"):
        memory.write(HERE, BufferRef("r", 100, 8), memoryview(b"labels"))
    assert owned.path.stat().st_size == 100, "nothing was written behind its end"


def test_an_unlinked_region_is_dropped_when_it_is_idle(owned: Object, connected: None) -> None:
    now = 0.0
    memory = SharedMemoryRegions(enabled=True, clock=lambda: now)
    register(memory, owned, "gone")
    with shared(4096) as kept:
        register(memory, kept, "kept")
        owned.path.unlink()
        now = 59.0
        memory.read(HERE, BufferRef("gone", 0, 8))
        now = 118.0
        memory.sweep()
        assert set(memory.status(HERE)) == {"gone", "kept"}
        now = 120.0
        memory.sweep()
        assert set(memory.status(HERE)) == {"kept"}, "its name is there for anybody to find"


def test_a_region_in_use_outlives_its_registration(
    memory: SharedMemoryRegions, owned: Object
) -> None:
    register(memory, owned)
    used = memory.status(HERE)["r"]
    memory.unregister(HERE)
    owned.put(b"still here")
    assert bytes(used.read(BufferRef("r", 0, 5))) == b"still"


def test_no_descriptor_stays_open(memory: SharedMemoryRegions, owned: Object) -> None:
    before = open_files().keys()
    register(memory, owned)
    for _ in range(5):
        memory.read(HERE, BufferRef("r", 0, 8))
        memory.write(HERE, BufferRef("r", 0, 8), memoryview(b"x"))
        with pytest.raises(EdlError):
            memory.write(HERE, BufferRef("r", AT, 8, generation=9), memoryview(b"x"))
    memory.unregister(HERE)
    for name in ("edl-none", owned.key):
        with pytest.raises(EdlError):
            memory.register(HERE, "r", name, offset=0, nbytes=1 << 20)
    assert open_files().keys() <= before


def test_a_full_disk_is_retryable(
    memory: SharedMemoryRegions, owned: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(memory, owned)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RetryableError, match="cannot be written: No space left"):
        memory.write(HERE, BufferRef("r", 0, 8), memoryview(b"x"))


@pytest.fixture
def place(memory: SharedMemoryRegions, owned: Object) -> BufferRef:
    """A place of generation 7 in the region "r"."""
    register(memory, owned)
    owned.mark(7, AT)
    return BufferRef("r", AT, 6, generation=7)


def test_a_generation_that_changes_during_a_copy_is_refused(
    memory: SharedMemoryRegions, owned: Object, place: BufferRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv

    def read_then_reuse(fd: int, buffers: list[memoryview], at: int) -> int:
        count = read(fd, buffers, at)
        assert owned.take_back(8, AT)
        return count

    monkeypatch.setattr(os, "preadv", read_then_reuse)
    with pytest.raises(RetryableError, match="its generation is 8"):
        memory.read(HERE, place)


def test_a_place_is_locked_while_it_is_written(
    memory: SharedMemoryRegions, owned: Object, place: BufferRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []
    write = os.pwrite

    def take_then_write(fd: int, data: memoryview, at: int) -> int:
        taken.append(owned.take_back(8, AT))  # here, checked already, the teacher was stopped
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", take_then_write)
    # Only the teacher's own writing is looked at, not that of the owner's mark.
    monkeypatch.setattr(Object, "mark", lambda *_: pytest.fail("the lock was not held"))
    memory.write(HERE, place, memoryview(b"labels"))
    assert taken == [False]
    monkeypatch.undo()
    with owned.taking_back(AT) as got:
        assert got
        with pytest.raises(RetryableError, match="is being reused"):
            memory.write(HERE, place, memoryview(b"others"))
    assert owned.get(6, AT) == b"labels"


def test_peers_as_grpc_names_them_and_forms_of_one_address() -> None:
    assert CallCredentials((), {}, "ipv4:127.0.0.1:5000").caller_identity("ann") == CallerIdentity(
        "ann", "127.0.0.1", 5000
    )
    for peer in ("ipv6:%5B::1%5D:5000", "ipv6:[::1]:5000"):
        assert CallCredentials((), {}, peer).caller_identity("ann") == CallerIdentity(
            "ann", "::1", 5000
        )
    assert CallCredentials((), {}, "").caller_identity("ann") == CallerIdentity("ann", "", 0)
    assert (
        CallerIdentity("ann", "::ffff:127.0.0.1", 1).owner
        == CallerIdentity("ann", "127.0.0.1", 2).owner
    )
    assert (
        CallerIdentity("ann", "127.0.0.1", 1).owner != CallerIdentity("bob", "127.0.0.1", 1).owner
    )


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_the_user_of_a_connection_is_known(family: socket.AddressFamily, host: str) -> None:
    ours = os.geteuid()
    with socket.create_server((host, 0), family=family) as server:
        where = server.getsockname()[:2]
        with socket.create_connection(where) as connection, server.accept()[0]:
            caller = CallerIdentity("ann", host, connection.getsockname()[1])
            assert caller.listed_uid() == ours
            with socket.socket(family) as unconnected:
                unconnected.bind((host, 0))
                with pytest.raises(RequestRefused, match="not known as that of a user"):
                    CallerIdentity("ann", host, unconnected.getsockname()[1]).listed_uid()
            connection.shutdown(socket.SHUT_WR)  # nobody's, as the system lists it from now on
            with pytest.raises(RequestRefused, match="not known as that of a user"):
                caller.listed_uid()


def test_the_user_is_that_of_the_established_connection(tmp_path: Path) -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:1388 00000000:0000 0A 00000000:00000000 00:00000000 00000000   1  0 7\n"
        "   1: 0100007F:0050 0100007F:1388 01 00000000:00000000 00:00000000 00000000   2  0 8\n"
        "   2: 0100007F:1388 0100007F:0050 01 00000000:00000000 00:00000000 00000000   3  0 9\n"
    )
    (tmp_path / "tcp").write_text(table)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(callers, "_TABLES", (tmp_path / "none", tmp_path / "tcp"))
        assert CallerIdentity("ann", "127.0.0.1", 5000).listed_uid() == 3
        assert CallerIdentity("ann", "::ffff:127.0.0.1", 80).listed_uid() == 2
        # Another user may have the same address and port, if it has another peer.
        other = "   3: 0100007F:1388 0200007F:0051 01 00000000:00000000 00:00000000 00000000   4\n"
        (tmp_path / "tcp").write_text(table + other)
        with pytest.raises(RequestRefused, match="not known as that of a user"):
            CallerIdentity("ann", "127.0.0.1", 5000).listed_uid()
