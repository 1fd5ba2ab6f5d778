"""Batches that a teacher on this host reads in the reader's own memory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edl.proto.arena import GROWTH_BYTES, Arena, Array
from edl.proto.clients import LabelRequest
from edl.proto.datatypes import StackedArray
from edl.proto.shared_buffer import BufferLocation, BufferRef, SharedBuffer, key_of
from edl.runtime.errors import EdlError, RateLimited, RequestRefused, RetryableError
from edl.teacher.servers.reader_memory import ReaderMemory
from edl.tests.leaks import SHARED_MEMORY, exclude_foreign_segments
from edl.tests.proto.strategies import as_parameters
from edl.tests.teacher.bench import WAIT_S, Bench, Make, refusal
from edl.tests.teacher.fakes import array
from edl.tests.teacher.segments import shared
from edl.tests.teacher.servers.frames_client import FramesClient
from edl.tests.waiting import wait_until

X = array(300, 4)


class Sharing:
    """A teacher, and a client that lends memory to it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.arena = SharedBuffer.create(1 << 20)
        self.client = FramesClient(bench.address, arena=self.arena)

    def put(self, x: Array = X) -> Array:
        return self.arena.get(self.arena.put([x]).arrays[0])

    def grow(self) -> None:
        """Make the memory larger, which the server has to open anew."""
        self.put(np.zeros(max(GROWTH_BYTES, self.arena.size_bytes), np.uint8))

    def double(self, x: Array | StackedArray, timeout_s: float = WAIT_S) -> Array:
        return self.client.infer(LabelRequest({"x": x}), timeout_s).outputs["double"]

    @property
    def sent_bytes(self) -> float:
        """Of the requests that the server has received."""
        return self.bench.count("edl_teacher_received_bytes_total")

    def close(self) -> None:
        self.client.close()
        self.arena.close()


@pytest.fixture
def host(bench: Bench) -> Iterator[Sharing]:
    with closing(Sharing(bench)) as host:
        yield host


def test_labels_are_those_of_a_batch_that_is_sent(host: Sharing) -> None:
    before = frozenset(os.listdir(SHARED_MEMORY))
    for rows in (slice(None), slice(0, 100), slice(100, 300), slice(1, 299)):
        np.testing.assert_array_equal(host.double(host.put()[rows]), X[rows] * 2)
    assert host.sent_bytes < 1100, "none was sent"
    assert exclude_foreign_segments(frozenset(os.listdir(SHARED_MEMORY)) - before) == frozenset()
    np.testing.assert_array_equal(host.double(X), X * 2)
    pieces = StackedArray((host.put()[290:], host.put(X + 1)[:10]))
    np.testing.assert_array_equal(host.double(pieces), np.concatenate([X[290:], X[:10] + 1]) * 2)
    assert host.sent_bytes > X.nbytes + pieces.nbytes


def test_memory_that_grows_is_opened_anew_and_let_go_with_its_connection(host: Sharing) -> None:
    for _ in range(3):
        host.grow()
        np.testing.assert_array_equal(host.double(host.put()), X * 2)
    assert host.sent_bytes < 1000, "none was sent"
    wait_until(lambda: mappings_for_reading(host.arena) == 1)
    host.client.close()
    wait_until(lambda: mappings_for_reading(host.arena) == 0)


def mappings_for_reading(arena: SharedBuffer) -> int:
    """How often this process has mapped the arena as a teacher does."""
    inode = str(os.fstat(arena.fd).st_ino)
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return sum(line[1] == "r--s" and line[4] == inode for line in lines)


def test_unopenable_memory_is_told_apart(host: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the same batch is sent with its bytes, and all that follow."""
    monkeypatch.setattr(SharedBuffer, "key", key_of(os.getpid(), 999_999))
    heard = host.client.heard(LabelRequest({"x": host.put()}))
    assert isinstance(heard.outcome, RequestRefused)
    assert heard.without_memory
    np.testing.assert_array_equal(host.double(host.put()), X * 2)
    assert host.sent_bytes > X.nbytes


def test_a_teacher_that_reads_other_memory_is_found_out(bench: Bench) -> None:
    with closing(SharedBuffer.create(1 << 20)) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedBuffer, "key", other.key)
        with closing(Sharing(bench)) as host:
            heard = host.client.heard(LabelRequest({"x": host.put()}))
            assert isinstance(heard.outcome, RetryableError)
            assert heard.without_memory
            np.testing.assert_array_equal(host.double(host.put()), X * 2)


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (X, RetryableError("restarted")),
        (X, RateLimited("full")),
        (array(3, 5), RequestRefused("of the shape")),
        (np.zeros((3, 4), "i4"), RequestRefused("of the dtype")),
    ],
)
def test_other_errors_say_nothing_of_the_memory(host: Sharing, x: Array, error: EdlError) -> None:
    host.double(host.put())
    host.bench.fail(error)
    heard = host.client.heard(LabelRequest({"x": host.put(x)}))
    assert type(heard.outcome) is type(error)
    assert not heard.without_memory


@pytest.mark.parametrize("first", [0, 200])
def test_a_batch_replaced_meanwhile_is_not_answered(host: Sharing, first: int) -> None:
    """Nor is one that is a run of rows."""
    record = host.arena.put([X])
    lying = host.arena.get(record.arrays[0])[first:]
    np.testing.assert_array_equal(host.double(lying), X[first:] * 2)

    def reuse() -> None:
        host.arena.free(record.offset)
        host.arena.put([X + 1000])

    host.bench.labeller.before = reuse
    with pytest.raises(RetryableError, match="belongs to another request now"):
        host.double(lying)


def test_the_places_of_a_late_request_are_left_alone(make: Make) -> None:
    """As of a teacher that was stopped: its places belong to another batch by then."""
    x, bench = array(3, 4), make(allow_system_shm=True)
    with shared(4096) as owned:
        bench.call("SystemSharedMemoryRegister", name="r", key=owned.key, byte_size=4096)
        read, written = (BufferRef("r", at, x.nbytes, generation=7) for at in (64, 1024))
        given = {"name": "x", "datatype": "FP32", "shape": x.shape}
        request: dict[str, Any] = {
            "model_name": "resnet",
            "inputs": [{**given, "parameters": as_parameters(read.parameters())}],
            "outputs": [{"name": "double", "parameters": as_parameters(written.parameters())}],
        }
        owned.put(x.tobytes(), 64)
        for at in (64, 1024):
            assert owned.take_back(7, at)
        answer = bench.call("ModelInfer", **request)
        assert answer.raw_output_contents == [b""]
        assert owned.get(x.nbytes, 1024) == (x * 2).tobytes()
        bench.labeller.before = lambda: owned.mark(8, 1024)
        owned.put(b"another batch", 1024)
        code, words = refusal(bench.call, "ModelInfer", **request)
        assert code is grpc.StatusCode.ABORTED
        assert "its generation is 8, the request names 7" in words
        assert owned.get(13, 1024) == b"another batch"


def memory_of(fd: int, nbytes: int = 4096) -> ReaderMemory:
    return ReaderMemory(key_of(os.getpid(), fd), nbytes, os.geteuid())


def test_only_lent_memory_is_opened(tmp_path: Path, ending: ExitStack) -> None:
    with closing(SharedBuffer.create(1 << 20)) as arena:
        memory_of(arena.fd)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    opened = [ending.enter_context(closing(Arena.create())).fd]
    for fd in (file, *os.pipe()):
        ending.callback(os.close, fd)
        opened.append(fd)
    for fd in opened:
        with pytest.raises(RequestRefused, match="is not the memory of a reader"):
            memory_of(fd)
    for pid, fd in ((os.getpid(), 999_999), (4_194_305, 1)):
        with pytest.raises(RequestRefused, match="cannot be read: No such"):
            ReaderMemory(key_of(pid, fd), 4096, os.geteuid())
    with pytest.raises(RequestRefused, match="'edl-x' is not the key of"):
        ReaderMemory("edl-x", 4096, os.geteuid())


def test_lent_memory_is_for_its_user_by_the_unix_socket() -> None:
    ours = os.geteuid()
    with closing(SharedBuffer.create(1 << 20)) as arena:
        key, nbytes = arena.key, arena.size_bytes
        for uid in (ours, 0):
            ReaderMemory(key, nbytes, uid)
        with pytest.raises(RequestRefused, match="only over the Unix socket"):
            ReaderMemory(key, nbytes, None)
        with pytest.raises(RequestRefused, match=f"belongs to user {ours}; the caller is user"):
            ReaderMemory(key, nbytes, ours + 1)


def test_a_place_beyond_the_lent_memory_is_refused() -> None:
    with closing(SharedBuffer.create(1 << 20)) as arena:
        record = arena.put([X])
        offset = record.arrays[0].offset
        place = BufferLocation(offset, arena.generation(offset), offset - 8)
        nbytes = arena.size_bytes
        memory = memory_of(arena.fd, nbytes)
        assert bytes(memory.read(place, X.nbytes)) == X.tobytes()
        for odd, size in (
            (place, nbytes - offset + 1),
            (place._replace(offset=nbytes), 1),
            (place._replace(offset=1 << 63), 8),
            (place._replace(generation_offset=offset - 7), 8),
            (place._replace(generation_offset=nbytes), 8),
        ):
            with pytest.raises(RequestRefused, match="is not within the memory"):
                memory.read(odd, size)
        with pytest.raises(RetryableError, match="belongs to another request now"):
            memory.read(place._replace(generation=7), 8)


def test_memory_that_was_truncated_before_it_was_sealed_is_not_mapped(
    monkeypatch: pytest.MonkeyPatch, ending: ExitStack
) -> None:
    """Or reading it would end the process."""
    fd = os.memfd_create("edl-lent", os.MFD_ALLOW_SEALING)
    ending.callback(os.close, fd)
    fstat = os.fstat

    def truncate(looked_at: int) -> os.stat_result:
        found = fstat(looked_at)
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        monkeypatch.undo()
        return found

    os.ftruncate(fd, 8192)
    with pytest.raises(RequestRefused, match="may shrink"):
        memory_of(fd, 8192)
    monkeypatch.setattr(os, "fstat", truncate)
    with pytest.raises(RequestRefused, match="too small"):
        memory_of(fd, 8192)
    memory_of(fd, 4096)
