"""Batches that a teacher on this host reads in the reader's own memory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from edl.errors import DeadlineExceeded, RateLimited, RequestRefused, RetryableError
from edl.proto import inference_pb2 as pb
from edl.proto.arena import GROWTH_BYTES, Arena, Array
from edl.proto.clients import Request, oip_grpc, open_client, same_host
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.same_host import SameHostClient
from edl.proto.doors import Invitation
from edl.proto.lent_arena import LentArena
from edl.proto.places import Place, key_of
from edl.proto.stacked import Stacked
from edl.teacher.shared_memory import visitors
from edl.teacher.shared_memory.objects import open_object
from edl.teacher.shared_memory.reading import Reading
from edl.teacher.shared_memory.regions import SharedMemory
from edl.teacher.shared_memory.segment import Segment
from edl.teacher.shared_memory.visitors import Visitor
from edl.tests.leaks import SHARED_MEMORY, exclude_foreign_segments
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.teacher.bench import WAIT_S, Bench, Make, refusal
from edl.tests.teacher.fakes import array
from edl.tests.teacher.front.local import Lender, LocalClient
from edl.tests.teacher.segments import placed_request, shared

X = array(300, 4)


class Sharing:
    """A teacher, and a client that lends memory to it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.arena = LentArena.create(1 << 20)
        client = open_client("", bench.address, "resnet", arena=self.arena)
        assert isinstance(client, SameHostClient)
        self.client = client
        client.probe(WAIT_S)

    def put(self, x: Array = X) -> Array:
        """A copy in the memory."""
        return self.arena.get(self.arena.put([x]).arrays[0])

    def grow(self) -> None:
        """Make the memory larger, which is a new region for the server."""
        self.put(np.zeros(max(GROWTH_BYTES, self.arena.size_bytes), np.uint8))

    def double(self, x: Array | Stacked, timeout_s: float = WAIT_S) -> Array:
        return self.client.infer(Request({"x": x}), timeout_s).outputs["double"]

    @property
    def sent_bytes(self) -> float:
        """Of the requests that the server has received."""
        return self.bench.count("edl_teacher_received_bytes_total")

    @property
    def regions(self) -> list[int]:
        """The sizes of the regions that are registered."""
        data = self.bench.method("SystemSharedMemoryStatus")(b"", timeout=WAIT_S)
        found = pb.SystemSharedMemoryStatusResponse.FromString(data).regions
        return [region.byte_size for region in found.values()]

    def close(self) -> None:
        self.client.close()
        self.arena.close()


@pytest.fixture
def host(bench: Bench) -> Iterator[Sharing]:
    with closing(Sharing(bench)) as host:
        yield host


def test_labels_are_those_of_a_batch_that_is_sent(host: Sharing) -> None:
    before = frozenset(os.listdir(SHARED_MEMORY))
    assert host.client.in_place
    in_place = host.double(host.put())
    assert host.sent_bytes < 200
    assert exclude_foreign_segments(frozenset(os.listdir(SHARED_MEMORY)) - before) == frozenset()
    sent = host.double(X)
    assert host.sent_bytes > X.nbytes
    np.testing.assert_array_equal(in_place, X * 2)
    np.testing.assert_array_equal(in_place, sent)


def test_a_run_of_rows_is_read_in_place_and_pieces_of_several_batches_are_sent(
    host: Sharing,
) -> None:
    for rows in (slice(0, 100), slice(100, 300), slice(1, 299)):
        np.testing.assert_array_equal(host.double(host.put()[rows]), X[rows] * 2)
    assert host.sent_bytes < 900
    both = Stacked((host.put()[290:], host.put(X + 1)[:10]))
    np.testing.assert_array_equal(host.double(both), np.concatenate([X[290:], X[:10] + 1]) * 2)
    assert host.sent_bytes > both.nbytes


def test_memory_that_grows_is_registered_again_and_two_regions_stay_until_the_close(
    host: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        host.grow()
        np.testing.assert_array_equal(host.double(host.put()), X * 2)
    assert host.sent_bytes < 1000, "none was sent"
    assert len(host.regions) == 2
    assert max(host.regions) == host.arena.size_bytes
    monkeypatch.setattr(same_host, "_GOODBYE_S", WAIT_S)  # on a busy machine, too
    host.client.close()
    assert host.regions == []


def test_batches_travel_while_the_unix_socket_cannot_be_reached(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that are on their way meanwhile are answered."""

    def refuse(_: Invitation) -> Any:
        raise ConnectionRefusedError("nobody is there")

    bench = make(slots=8)
    with closing(Sharing(bench)) as host, ThreadPoolExecutor(1) as pool:
        host.double(host.put())
        held = bench.hold()
        first = pool.submit(host.double, host.put())
        held.wait()
        bench.heal()
        with monkeypatch.context() as patch:
            patch.setattr(oip_grpc, "DoorLine", refuse)
            np.testing.assert_array_equal(host.double(host.put()), X * 2)
        held.release()
        np.testing.assert_array_equal(first.result(WAIT_S), X * 2)
        sent = host.sent_bytes
        assert sent > X.nbytes
        np.testing.assert_array_equal(host.double(host.put()), X * 2)
        assert host.sent_bytes < sent + 200


def test_a_prepared_request_is_made_once(host: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each batch is asked for in its own way whether it is current."""
    batch = host.put()
    host.double(batch)
    made: list[object] = []
    message = OipGrpcClient.message

    def recorded(*arguments: Any) -> bytes:
        made.append(arguments)
        return message(*arguments)

    monkeypatch.setattr(OipGrpcClient, "message", recorded)
    for number in range(3):
        request = Request({"x": batch}, request_id=f"j/0#{number}", is_current=lambda: True)
        assert host.client.near_message(request, WAIT_S, {}) is not None
    assert len(made) == 1


def test_a_dropped_region_is_registered_again(host: Sharing) -> None:
    batch = host.put()
    host.double(batch)
    host.bench.method("SystemSharedMemoryUnregister")(b"", timeout=WAIT_S)
    np.testing.assert_array_equal(host.double(batch), X * 2)
    sent = host.sent_bytes
    assert sent > X.nbytes, "it was sent once"
    np.testing.assert_array_equal(host.double(batch), X * 2)
    assert host.sent_bytes - sent < 200


def test_a_registration_that_gets_no_answer_takes_no_longer_than_the_request_has(
    host: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    def hang(self: object, region: str, key: str, nbytes: int, timeout_s: float) -> None:
        waits_s.append(timeout_s)
        raise DeadlineExceeded("no answer")

    # Nothing but that takes any of the client's time.
    monkeypatch.setattr(same_host, "time", SimpleNamespace(monotonic=lambda: sum(waits_s)))
    monkeypatch.setattr(OipGrpcClient, "register_memory", hang)
    host.grow()
    with pytest.raises(DeadlineExceeded):
        host.double(host.put(), 2.0)
    assert waits_s == [2.0]
    assert host.sent_bytes < 200, "nothing is sent that nobody would wait for"


def test_a_teacher_that_reads_other_memory_gets_the_bytes(bench: Bench) -> None:
    with closing(LentArena.create(1 << 20)) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(LentArena, "key", other.key)
        with closing(Sharing(bench)) as host:
            assert host.client.in_place
            np.testing.assert_array_equal(host.double(host.put()), X * 2)
            assert not host.client.in_place
            sent = host.sent_bytes
            host.double(host.put())
            assert host.sent_bytes - sent < X.nbytes + 200, "it was sent at once"


def test_a_teacher_without_shared_memory_gets_the_bytes() -> None:
    teacher = ScriptedTeacher()
    with closing(LentArena.create(1 << 20)) as arena:
        client = open_client("", teacher.address, "m", arena=arena)
        assert isinstance(client, SameHostClient)
        with closing(client):
            client.probe(WAIT_S)
            assert not client.in_place
            lent = arena.get(arena.put([X]).arrays[0])
            sent, plain = (client.infer(Request({"x": x}), WAIT_S).outputs for x in (lent, X))
            np.testing.assert_array_equal(sent["logits"], plain["logits"])
    teacher.stop()


def test_an_error_of_the_model_is_not_retried(host: Sharing) -> None:
    host.double(host.put())
    for error in (RetryableError("restarted"), RateLimited("full")):
        before = len(host.bench.labeller.deadlines_s)
        host.bench.fail(error)
        with pytest.raises(type(error), match=str(error)):
            host.double(host.put())
        assert len(host.bench.labeller.deadlines_s) == before + 1
        assert host.client.in_place


def test_a_refused_batch_stays_in_place(host: Sharing) -> None:
    for _ in range(2):
        for wrong in (array(3, 5), np.zeros((3, 4), "c8"), np.zeros((3, 4), "S3")):
            with pytest.raises(RequestRefused):
                host.double(host.put(wrong))
        with pytest.raises(RequestRefused):
            host.double(np.zeros((3, 4), "O"))
        assert host.client.in_place
        host.double(host.put())  # from here on it is known to work


# --- places in lent memory


@pytest.fixture
def lender(bench: Bench) -> Iterator[LocalClient]:
    with closing(LocalClient(bench.address)) as lender:
        yield lender


@pytest.mark.parametrize("first", [0, 200])
def test_a_batch_that_is_replaced_while_it_is_labelled_is_not_answered(
    bench: Bench, lender: LocalClient, first: int
) -> None:
    """Nor is one that is a run of rows."""
    lying, _, record = lender.put(X)
    request, places = Request({"x": X[first:]}), {"x": lender.place(lying[first:])}

    def reuse() -> None:
        lender.arena.free(record.offset)
        lender.arena.put([X + 1000])

    answer = lender.client.infer(request, WAIT_S, places)
    np.testing.assert_array_equal(answer.outputs["double"], X[first:] * 2)
    bench.labeller.before = reuse
    with pytest.raises(RetryableError, match="is not this request's any more"):
        lender.client.infer(request, WAIT_S, places)


def test_the_places_of_a_late_request_are_left_alone(make: Make) -> None:
    """As of a teacher that was stopped: its places belong to another batch by then."""
    x, bench = array(3, 4), make(allow_system_shm=True)
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


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_place_in_lent_memory_needs_a_generation(
    slash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "_TABLES", ())  # a caller without a connection
    memory, visitor = SharedMemory(), Visitor("alice", "127.0.0.1", 0, os.geteuid())
    with closing(Lender()) as lender:
        _, place, _ = lender.put(X)
        arena = lender.arena
        memory.register(
            visitor, lender.region, slash + arena.key, offset=0, nbytes=arena.size_bytes
        )
        reading = Reading(memory, visitor)
        with pytest.raises(RequestRefused, match="named with its shared_memory_generation"):
            reading.read(replace(place, generation=None))
        assert bytes(reading.read(place)) == X.tobytes()


def test_only_lent_memory_is_opened(lender: LocalClient, tmp_path: Path) -> None:
    os.close(open_object(lender.arena.key))
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
        cut = Segment(key_of(os.getpid(), fd), 0, 8192)
        whole = Segment(key_of(os.getpid(), fd), 0, 4096)
        place = Place("r", 64, 8, 0, 0)
        assert cut.read_in_place(place) is None
        assert whole.read_in_place(place) is not None
    finally:
        os.close(fd)
