"""Which places of a reader's memory a teacher reads: runs of rows, while they are theirs."""

from __future__ import annotations

import fcntl
import os
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from edl.errors import RequestRefused, RetryableError
from edl.proto import inference_pb2 as pb
from edl.proto.arena import Arena
from edl.proto.clients import Request
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.same_host import SameHostClient
from edl.proto.datatypes import to_bytes
from edl.proto.lent_arena import LentArena
from edl.proto.places import Place, key_of
from edl.proto.stacked import Stacked
from edl.teacher.shared_memory import segment, visitors
from edl.teacher.shared_memory.objects import open_object
from edl.teacher.shared_memory.reading import Reading
from edl.teacher.shared_memory.regions import SharedMemory
from edl.teacher.shared_memory.segment import Segment
from edl.teacher.shared_memory.visitors import Visitor
from edl.tests.teacher.bench import WAIT_S, Bench, refusal
from edl.tests.teacher.in_place.asking import X, doubled, lying, received
from edl.tests.teacher.segments import placed_request


@pytest.mark.parametrize("rows", [slice(0, 100), slice(100, 300), slice(1, 299)])
def test_a_run_of_rows_is_read_where_it_lies(
    bench: Bench, arena: LentArena, client: SameHostClient, rows: slice
) -> None:
    np.testing.assert_array_equal(doubled(client, lying(arena)[rows]), X[rows] * 2)
    assert received(bench) < 300


def test_pieces_of_several_batches_are_sent(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    one, other = lying(arena), lying(arena, X + 1)
    both = Stacked((one[290:], other[:10]))
    answer = client.infer(Request({"x": both}), WAIT_S).outputs["double"]
    np.testing.assert_array_equal(answer, np.concatenate([X[290:], X[:10] + 1]) * 2)
    assert received(bench) > both.nbytes


def test_a_run_of_rows_of_an_array_that_is_gone_is_not_answered(
    bench: Bench, arena: LentArena
) -> None:
    record = arena.put([X])
    found = arena.lent(to_bytes(arena.get(record.arrays[0])[200:]))
    assert found is not None
    client = OipGrpcClient(bench.address, "resnet")
    client.register_memory("r", arena.key, arena.size_bytes, WAIT_S)

    def replace() -> None:
        arena.free(record.offset)
        arena.put([X + 1000])

    place = Place("r", found.offset, X[200:].nbytes, *found[1:])
    try:
        wanted = {"x": X[200:]}
        answer = client.infer(Request(wanted), WAIT_S, {"x": place})
        np.testing.assert_array_equal(answer.outputs["double"], X[200:] * 2)
        bench.labeller.before = replace
        with pytest.raises(RetryableError, match="is not this request's any more"):
            client.infer(Request(wanted), WAIT_S, {"x": place})
    finally:
        client.close()


def test_a_batch_that_is_replaced_while_it_is_labelled_is_not_answered(
    bench: Bench, arena: LentArena
) -> None:
    record = arena.put([X])
    found = arena.lent(to_bytes(arena.get(record.arrays[0])))
    assert found is not None
    client = OipGrpcClient(bench.address, "resnet")
    client.register_memory("r", arena.key, arena.size_bytes, WAIT_S)

    def replace() -> None:
        arena.free(record.offset)
        arena.put([X + 1000])

    bench.labeller.before = replace
    place = Place("r", found[0], X.nbytes, found[1])
    try:
        with pytest.raises(RetryableError, match="is not this request's any more"):
            client.infer(Request({"x": X}), WAIT_S, {"x": place})
    finally:
        client.close()


def test_only_memory_that_is_lent_is_opened(arena: LentArena, tmp_path: Path) -> None:
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
    lent = arena.lent(to_bytes(arena.get(ref)))
    assert lent is not None
    assert bytes(reading.read(Place("r", lent[0], X.nbytes, lent[1]))) == X.tobytes()


def test_no_output_is_written_into_lent_memory(bench: Bench, arena: LentArena) -> None:
    before = X + 7
    (ref,) = arena.put([before]).arrays
    lent = arena.lent(to_bytes(arena.get(ref)))
    assert lent is not None
    named = Place("r", lent[0], X.nbytes, lent[1])
    client = OipGrpcClient(bench.address, "resnet")
    client.register_memory("r", arena.key, arena.size_bytes, WAIT_S)
    try:
        for written in (named, Place("r", ref.offset, X.nbytes)):
            request = placed_request("resnet", X, "double", named, written)
            assert refusal(partial(bench.call, "ModelInfer", request, pb.ModelInferResponse)) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "region 'r' is lent memory, which is only read: name no place in it for an output,"
                " which then comes in the answer",
            )
    finally:
        client.close()
    np.testing.assert_array_equal(arena.get(ref), before)


def test_what_was_cut_short_before_it_was_sealed_is_not_read_in_place() -> None:
    """Or a look at it would end the process."""
    fd = os.memfd_create("edl-lent", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        assert segment._mapped(fd, 4096) is not None
        assert segment._mapped(fd, 8192) is None
    finally:
        os.close(fd)
