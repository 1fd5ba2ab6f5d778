"""Batches that a teacher on this host reads in the reader's own memory."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from edl.errors import DeadlineExceeded, EdlError, RateLimited, RequestRefused, RetryableError
from edl.proto import inference_pb2 as pb
from edl.proto.arena import GROWTH_BYTES, Arena, Array
from edl.proto.clients import Request, open_client, same_host
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.same_host import SameHostClient
from edl.proto.datatypes import to_bytes
from edl.proto.lent_arena import LentArena
from edl.proto.places import Place, key_of
from edl.proto.stacked import Stacked
from edl.teacher.shared_memory import visitors
from edl.teacher.shared_memory.objects import open_object
from edl.teacher.shared_memory.reading import Reading
from edl.teacher.shared_memory.regions import SharedMemory
from edl.teacher.shared_memory.segment import Segment
from edl.teacher.shared_memory.visitors import Visitor
from edl.tests.leaks import SHARED_MEMORY, without_neighbours
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.teacher.bench import WAIT_S, Bench, refusal
from edl.tests.teacher.fakes import array
from edl.tests.teacher.segments import placed_request, shared

X = array(300, 4)


@pytest.fixture
def arena() -> Iterator[LentArena]:
    with closing(LentArena.create(1 << 20)) as arena:
        yield arena


@pytest.fixture
def client(bench: Bench, arena: LentArena) -> Iterator[SameHostClient]:
    made = open_client("", bench.address, "resnet", arena=arena)
    assert isinstance(made, SameHostClient)
    made.probe(WAIT_S)
    yield made
    made.close()


@pytest.fixture
def grow(arena: LentArena) -> Callable[[], object]:
    """Makes the arena larger, which is a new region for the server."""
    return lambda: put(arena, np.zeros(max(GROWTH_BYTES, arena.size_bytes), np.uint8))


def put(arena: LentArena, x: Array = X) -> Array:
    return arena.get(arena.put([x]).arrays[0])


def sent_bytes(bench: Bench) -> float:
    """Of the requests that the server has received."""
    return bench.count("edl_teacher_received_bytes_total")


def doubled(client: SameHostClient, x: Array) -> Array:
    return client.infer(Request({"x": x}), WAIT_S).outputs["double"]


def regions(bench: Bench) -> list[int]:
    """The sizes of the regions that are registered."""
    request = pb.SystemSharedMemoryStatusRequest()
    answer = bench.call("SystemSharedMemoryStatus", request, pb.SystemSharedMemoryStatusResponse)
    return [region.byte_size for region in answer.regions.values()]


def test_labels_are_those_of_a_batch_that_is_sent(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    before = frozenset(os.listdir(SHARED_MEMORY))
    assert client.in_place
    in_place = doubled(client, put(arena))
    assert sent_bytes(bench) < 200
    assert without_neighbours(frozenset(os.listdir(SHARED_MEMORY)) - before) == frozenset()
    sent = doubled(client, X)
    assert sent_bytes(bench) > X.nbytes
    np.testing.assert_array_equal(in_place, X * 2)
    np.testing.assert_array_equal(in_place, sent)


def test_a_run_of_rows_is_read_in_place_and_pieces_of_several_batches_are_sent(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    for rows in (slice(0, 100), slice(100, 300), slice(1, 299)):
        np.testing.assert_array_equal(doubled(client, put(arena)[rows]), X[rows] * 2)
    assert sent_bytes(bench) < 900
    both = Stacked((put(arena)[290:], put(arena, X + 1)[:10]))
    answer = client.infer(Request({"x": both}), WAIT_S).outputs["double"]
    np.testing.assert_array_equal(answer, np.concatenate([X[290:], X[:10] + 1]) * 2)
    assert sent_bytes(bench) > both.nbytes


def test_memory_that_grows_is_registered_again_and_two_regions_stay_until_the_close(
    bench: Bench, arena: LentArena, client: SameHostClient, grow: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for _ in range(4):
        grow()
        np.testing.assert_array_equal(doubled(client, put(arena)), X * 2)
    assert sent_bytes(bench) < 1000, "none was sent"
    assert len(regions(bench)) == 2
    assert max(regions(bench)) == arena.size_bytes
    monkeypatch.setattr(same_host, "_GOODBYE_S", WAIT_S)  # on a busy machine, too
    client.close()
    assert regions(bench) == []


def test_a_dropped_region_is_registered_again(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    batch = put(arena)
    doubled(client, batch)
    bench.method("SystemSharedMemoryUnregister")(b"", timeout=WAIT_S)
    np.testing.assert_array_equal(doubled(client, batch), X * 2)
    sent = sent_bytes(bench)
    assert sent > X.nbytes, "it was sent once"
    np.testing.assert_array_equal(doubled(client, batch), X * 2)
    assert sent_bytes(bench) - sent < 200


def test_a_registration_that_gets_no_answer_takes_no_longer_than_the_request_has(
    bench: Bench, arena: LentArena, client: SameHostClient, grow: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    waits_s: list[float] = []

    def hang(self: object, region: str, key: str, nbytes: int, timeout_s: float) -> None:
        waits_s.append(timeout_s)
        raise DeadlineExceeded("no answer")

    # Nothing but that takes any of the client's time.
    monkeypatch.setattr(same_host, "time", SimpleNamespace(monotonic=lambda: sum(waits_s)))
    monkeypatch.setattr(OipGrpcClient, "register_memory", hang)
    grow()
    with pytest.raises(DeadlineExceeded):
        client.infer(Request({"x": put(arena)}), 2.0)
    assert waits_s == [2.0]
    assert sent_bytes(bench) < 200, "nothing is sent that nobody would wait for"


def test_a_teacher_that_reads_other_memory_gets_the_bytes(
    bench: Bench, arena: LentArena, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(LentArena.create(1 << 20)) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(LentArena, "key", other.key)
        client = open_client("", bench.address, "resnet", arena=arena)
        assert isinstance(client, SameHostClient)
        with closing(client):
            client.probe(WAIT_S)
            assert client.in_place
            np.testing.assert_array_equal(doubled(client, put(arena)), X * 2)
            assert not client.in_place
            sent = sent_bytes(bench)
            doubled(client, put(arena))
            assert sent_bytes(bench) - sent < X.nbytes + 200, "it was sent at once"
    (record,) = [r for r in caplog.records if "batches travel from now on" in r.message]
    assert record.levelno == logging.WARNING


def test_a_teacher_without_shared_memory_gets_the_bytes(arena: LentArena) -> None:
    teacher = ScriptedTeacher()
    client = open_client("", teacher.address, "m", arena=arena)
    assert isinstance(client, SameHostClient)
    try:
        client.probe(WAIT_S)
        assert not client.in_place
        sent = client.infer(Request({"x": put(arena)}), WAIT_S)
        plain = client.infer(Request({"x": X}), WAIT_S)
        np.testing.assert_array_equal(sent.outputs["logits"], plain.outputs["logits"])
    finally:
        client.close()
        teacher.stop()


@pytest.mark.parametrize("error", [RetryableError("restarted"), RateLimited("full")])
def test_an_error_of_the_model_is_not_retried(
    bench: Bench, arena: LentArena, client: SameHostClient, error: EdlError
) -> None:
    doubled(client, put(arena))
    before = len(bench.labeller.deadlines_s)
    bench.fail(error)
    with pytest.raises(type(error), match=str(error)):
        doubled(client, put(arena))
    assert len(bench.labeller.deadlines_s) == before + 1
    assert client.in_place


def test_a_refused_batch_stays_in_place(arena: LentArena, client: SameHostClient) -> None:
    for _ in range(2):
        for wrong in (array(3, 5), np.zeros((3, 4), "c8"), np.zeros((3, 4), "S3")):
            with pytest.raises(RequestRefused):
                doubled(client, put(arena, wrong))
        with pytest.raises(RequestRefused):
            doubled(client, np.zeros((3, 4), "O"))
        assert client.in_place
        doubled(client, put(arena))  # from here on it is known to work


# --- places in lent memory


@pytest.mark.parametrize("first", [0, 200])
def test_a_batch_that_is_replaced_while_it_is_labelled_is_not_answered(
    bench: Bench, arena: LentArena, first: int
) -> None:
    """Nor is one that is a run of rows."""
    record = arena.put([X])
    found = arena.lent(to_bytes(arena.get(record.arrays[0])[first:]))
    assert found is not None
    place = Place("r", found.offset, X[first:].nbytes, *found[1:])
    request = Request({"x": X[first:]})

    def replace() -> None:
        arena.free(record.offset)
        arena.put([X + 1000])

    with closing(OipGrpcClient(bench.address, "resnet")) as client:
        client.register_memory("r", arena.key, arena.size_bytes, WAIT_S)
        answer = client.infer(request, WAIT_S, {"x": place})
        np.testing.assert_array_equal(answer.outputs["double"], X[first:] * 2)
        bench.labeller.before = replace
        with pytest.raises(RetryableError, match="is not this request's any more"):
            client.infer(request, WAIT_S, {"x": place})


def test_the_places_of_a_late_request_are_left_alone(bench: Bench) -> None:
    """As of a teacher that was stopped: its places belong to another batch by then."""
    x = array(3, 4)
    with shared(4096) as owned:
        region = pb.SystemSharedMemoryRegisterRequest(name="r", key=owned.key, byte_size=4096)
        bench.call("SystemSharedMemoryRegister", region, pb.SystemSharedMemoryRegisterResponse)
        read, written = (Place("r", at, x.nbytes, generation=7) for at in (64, 1024))
        request = placed_request("resnet", x, "double", read, written)
        owned.put(x.tobytes(), 64)
        for at in (64, 1024):
            assert owned.take_back(7, at)
        answer = bench.call("ModelInfer", request, pb.ModelInferResponse)
        assert answer.raw_output_contents == [b""]
        assert owned.get(x.nbytes, 1024) == (x * 2).tobytes()
        bench.labeller.before = lambda: owned.mark(8, 1024)
        owned.put(b"another batch", 1024)
        code, words = refusal(bench.call, "ModelInfer", request, pb.ModelInferResponse)
        assert code is grpc.StatusCode.ABORTED
        assert "its generation is 8, 7 was named" in words
        assert owned.get(13, 1024) == b"another batch"


def test_no_output_is_written_into_lent_memory(bench: Bench, arena: LentArena) -> None:
    (ref,) = arena.put([X]).arrays
    found = arena.lent(to_bytes(arena.get(ref)))
    assert found is not None
    named = Place("r", found[0], X.nbytes, found[1])
    with closing(OipGrpcClient(bench.address, "resnet")) as client:
        client.register_memory("r", arena.key, arena.size_bytes, WAIT_S)
        for written in (named, Place("r", ref.offset, X.nbytes)):
            request = placed_request("resnet", X, "double", named, written)
            code, words = refusal(bench.call, "ModelInfer", request, pb.ModelInferResponse)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "region 'r' is lent memory, which is only read" in words
    np.testing.assert_array_equal(arena.get(ref), X)


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_place_in_lent_memory_needs_a_generation(
    arena: LentArena, slash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "_TABLES", ())  # a caller without a connection
    (ref,) = arena.put([X]).arrays
    memory, visitor = SharedMemory(), Visitor("alice", "127.0.0.1", 0)
    memory.register(visitor, "r", slash + arena.key, offset=0, nbytes=arena.size_bytes)
    reading = Reading(memory, visitor)
    with pytest.raises(RequestRefused, match="named with its shared_memory_generation"):
        reading.read(Place("r", ref.offset, X.nbytes))
    found = arena.lent(to_bytes(arena.get(ref)))
    assert found is not None
    assert bytes(reading.read(Place("r", found[0], X.nbytes, found[1]))) == X.tobytes()


def test_only_lent_memory_is_opened(arena: LentArena, tmp_path: Path) -> None:
    os.close(open_object(arena.key))
    ours = Arena.create()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    reading, writing = os.pipe()
    try:
        for fd in (ours.fd, file, reading, writing):
            with pytest.raises(RequestRefused, match="is no memory that is lent"):
                open_object(key_of(os.getpid(), fd))
        for pid, fd in ((os.getpid(), 999_999), (4_194_305, 1)):
            with pytest.raises(RequestRefused, match="cannot be opened"):
                open_object(key_of(pid, fd))
        with pytest.raises(RequestRefused, match="belongs to user"):
            Segment(arena.key, 0, 8, os.geteuid() + 1)
    finally:
        ours.close()
        for fd in (file, reading, writing):
            os.close(fd)


def test_memory_that_was_truncated_before_it_was_sealed_is_not_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or reading it would end the process."""
    fd = os.memfd_create("edl-lent", os.MFD_ALLOW_SEALING)
    fstat = os.fstat

    def truncate(looked_at: int) -> os.stat_result:
        found = fstat(looked_at)
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        monkeypatch.undo()
        return found

    try:
        os.ftruncate(fd, 8192)
        monkeypatch.setattr(os, "fstat", truncate)
        cut = Segment(key_of(os.getpid(), fd), 0, 8192, os.geteuid())
        whole = Segment(key_of(os.getpid(), fd), 0, 4096, os.geteuid())
        place = Place("r", 64, 8, 0, 0)
        assert cut.read_in_place(place) is None
        assert whole.read_in_place(place) is not None
    finally:
        os.close(fd)
