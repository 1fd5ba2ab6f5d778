"""Requests that are understood by one before: what is looked at each time nevertheless."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edl.errors import RequestRefused, RetryableError
from edl.proto import stream_answers, tensors
from edl.proto.datatypes import to_bytes
from edl.proto.places import Place
from edl.proto.security import ClientSecurity, ServerSecurity
from edl.teacher.model import TensorSpec
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.door.callers import Make, Neighbour, Settle, X, frame, heard, knock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file")


def asked(neighbour: Neighbour) -> tuple[bytes, Place, int]:
    """A request for a new batch; where that lies, and its record."""
    record = neighbour.arena.put([X])
    found = neighbour.arena.lent(to_bytes(neighbour.arena.get(record.arrays[0])))
    assert found is not None
    place = Place(neighbour.region, found.offset, X.nbytes, found.generation)
    data = tensors.encode_request(model_name="resnet", inputs={"x": X}, places={"x": place})
    return data, place, record.offset


def answer(bench: Bench, ticket: bytes, data: bytes) -> tensors.InferResponse:
    with knock(bench, ticket + frame(data)) as caller:
        assert caller.recv(4) == b"edl1"
        return tensors.decode_response(stream_answers.read(heard(caller)))


def ticket_of(bench: Bench, number: int) -> bytes:
    tickets = [one for mine in bench.server._methods.door._shown.values() for one in mine]
    return tickets[number].encode()


def known(bench: Bench) -> int:
    return len(bench.server._servicer._familiar._known)


def test_a_place_that_was_taken_back_is_refused(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    ticket = ticket_of(bench, 0)
    for _ in range(3):
        data, _, record = asked(neighbour)
        assert answer(bench, ticket, data).outputs["double"].tobytes() == (X * 2).tobytes()
    assert known(bench) >= 1
    neighbour.arena.free(record)
    with pytest.raises(RetryableError, match="not this request's any more"):
        answer(bench, ticket, data)


def test_a_place_beyond_the_region_is_refused(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    data, place, _ = asked(neighbour)
    answer(bench, ticket_of(bench, 0), data)
    beyond = replace(place, offset=(1 << 20) - 8)
    far = tensors.encode_request(model_name="resnet", inputs={"x": X}, places={"x": beyond})
    with pytest.raises(RequestRefused, match="not all within"):
        answer(bench, ticket_of(bench, 0), far)


def test_nobody_reads_by_what_another_has_asked(make: Make, settle: Settle, tmp_path: Path) -> None:
    known_tokens = write_secret(tmp_path / "tokens", "student:a s3cret\nstudent:b an0ther\n")
    bench = make(security=ServerSecurity(tokens_file=known_tokens))
    first, _ = (
        settle(bench, ClientSecurity(token_file=write_secret(tmp_path / token, token)))
        for token in ("s3cret", "an0ther")
    )
    data, *_ = asked(first)
    answer(bench, ticket_of(bench, 0), data)
    assert known(bench) == 1
    with pytest.raises(RequestRefused, match="no region"):
        answer(bench, ticket_of(bench, 1), data)


def test_another_model_understands_anew(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    data, *_ = asked(neighbour)
    answer(bench, ticket_of(bench, 0), data)
    spec = bench.labeller.backend.spec
    bench.labeller.backend.spec = replace(spec, inputs=(TensorSpec("x", "FP32", (-1, 5)),))
    with pytest.raises(RequestRefused, match=r"expected \[-1, 5\]"):
        answer(bench, ticket_of(bench, 0), data)


def test_kinds_make_room_for_each_other(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    for number in range(70):
        _, place, _ = asked(neighbour)
        data = tensors.encode_request(
            model_name="resnet",
            inputs={"x": X},
            places={"x": place},
            parameters={"odd": number},
        )
        assert answer(bench, ticket_of(bench, 0), data).outputs
    assert known(bench) == 64
