"""One body for every way to ask a server of the Open Inference Protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import get_args

import numpy as np
import pytest

from edl import errors
from edl.proto.arena import Array
from edl.proto.clients import Client, Request, open_client
from edl.proto.clients.fitting import misfit
from edl.proto.specs import TensorSpec
from edl.tests.foreign_server import MODEL, OUTPUT, ForeignServer, Kind, start
from edl.tests.scripted_teacher import CLASSES, logits_of
from edl.tests.waiting import wait_until

X = np.arange(24, dtype=np.float32).reshape(4, 6)
WAIT_S = 10.0


@pytest.fixture(params=get_args(Kind))
def server(request: pytest.FixtureRequest) -> Iterator[ForeignServer]:
    server = start(request.param)
    yield server
    server.stop()


@pytest.fixture
def client(server: ForeignServer) -> Iterator[Client]:
    client = open_client("oip", server.address, MODEL)
    yield client
    client.close()


def test_a_probe_finds_what_the_model_takes_and_gives(client: Client) -> None:
    found = client.probe(WAIT_S)
    assert found.inputs == (TensorSpec("x", "FP32", (-1, 6)),)
    assert found.outputs == (TensorSpec(OUTPUT, "FP32", (-1, CLASSES)),)


@pytest.mark.parametrize(("said", "most_rows"), [(None, None), (8, 8), (0, None)])
def test_a_server_may_describe_nothing_or_how_many_rows_its_model_takes(
    server: ForeignServer, client: Client, said: int | None, most_rows: int | None
) -> None:
    server.most_rows, server.describes = said, said is not None
    found = client.probe(WAIT_S)
    assert found.most_rows == most_rows
    assert bool(found.inputs) is bool(found.outputs) is (said is not None)


def test_a_model_that_is_not_ready_may_be_later(server: ForeignServer, client: Client) -> None:
    server.ready = False
    with pytest.raises(errors.RetryableError, match="'m' is not ready"):
        client.probe(WAIT_S)
    server.ready = True
    assert client.probe(WAIT_S)


def test_a_model_that_is_not_there_is_refused(server: ForeignServer) -> None:
    with (
        closing(open_client("oip", server.address, "other/one")) as other,
        pytest.raises(errors.RequestRefused, match=r"other/one|other%2Fone"),
    ):
        other.probe(WAIT_S)


def test_labels_come_back_bit_for_bit(client: Client) -> None:
    for _ in range(3):
        asked = Request(
            {"x": X}, (OUTPUT,), "7", {"teacher_id": "t"}, {OUTPUT: {"form": "float16"}}
        )
        answer = client.infer(asked, WAIT_S)
        assert list(answer.outputs) == [OUTPUT]
        np.testing.assert_array_equal(answer.outputs[OUTPUT], logits_of(X))
        assert answer.outputs[OUTPUT].dtype == np.float32
        assert dict(answer.parameters) == {}


def test_many_may_ask_at_once(server: ForeignServer, client: Client) -> None:
    together = threading.Barrier(4, timeout=WAIT_S)

    def wait(x: Array) -> Array:
        together.wait()
        return logits_of(x)

    server.behaviour = wait
    scaled = [X * np.float32(scale) for scale in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda x: client.infer(Request({"x": x}), WAIT_S), scaled)
        for answer, x in zip(answers, scaled, strict=True):
            np.testing.assert_array_equal(answer.outputs[OUTPUT], logits_of(x))


def test_late_answer_exceeds_the_deadline(server: ForeignServer, client: Client) -> None:
    ended = threading.Event()
    server.behaviour = lambda x: (ended.wait(WAIT_S), logits_of(x))[1]
    try:
        with pytest.raises(errors.DeadlineExceeded):
            client.infer(Request({"x": X}), 0.3)
    finally:
        ended.set()
    np.testing.assert_array_equal(
        client.infer(Request({"x": X}), WAIT_S).outputs[OUTPUT], logits_of(X)
    )


def test_closing_ends_what_is_in_flight(server: ForeignServer, client: Client) -> None:
    ended, caught = threading.Event(), list[errors.EdlError]()
    server.behaviour = lambda x: (ended.wait(WAIT_S), logits_of(x))[1]

    def ask() -> None:
        try:
            client.infer(Request({"x": X}), WAIT_S)
        except errors.EdlError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        wait_until(lambda: bool(server.requests))
        client.close()
        thread.join(WAIT_S)
        assert [type(error) for error in caught] == [errors.TeacherLost]
    finally:
        ended.set()
    for call in (lambda: client.probe(1.0), lambda: client.infer(Request({"x": X}), 1.0)):
        with pytest.raises(errors.TeacherLost, match="closed"):
            call()
    client.close()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "grpc://127.0.0.1:9", "http://127.0.0.1:9"])
def test_where_nobody_listens(address: str) -> None:
    with closing(open_client("", address, MODEL)) as client, pytest.raises(errors.TeacherLost):
        client.probe(1.0)


@pytest.mark.parametrize(
    ("protocol", "address"),
    [
        ("thrift", "127.0.0.1:9"),
        ("oip", "ftp://127.0.0.1:9"),
        ("oip", "grpc://127.0.0.1:9/path"),
        ("oip", ""),
        ("oip", "http://"),
        ("oip", "http://127.0.0.1:x"),
        ("oip", "http://user:word@127.0.0.1:9"),
        ("paddle-serving", "http://127.0.0.1:9"),
        ("paddle-serving", "127.0.0.1"),
        ("oip", "grpc://127.0.0.1"),
        ("oip", "[::1]"),
        ("oip", ":9"),
    ],
)
def test_what_is_no_address_or_protocol_is_told(protocol: str, address: str) -> None:
    with pytest.raises(
        errors.UsageError, match=r"no client speaks|is no address|has more than|names no port"
    ):
        open_client(protocol, address, MODEL)


def test_the_wrong_scheme_is_told(server: ForeignServer) -> None:
    scheme, _, bare = server.address.rpartition("://")
    wrong, error = ("grpc", errors.TeacherLost) if scheme else ("http", errors.BadAnswer)
    with (
        closing(open_client("oip", f"{wrong}://{bare}", MODEL)) as client,
        pytest.raises(error, match="write http://" if scheme else "write grpc://"),
    ):
        client.probe(WAIT_S)


DECLARED = (TensorSpec("x", "FP32", (-1, 16)), TensorSpec("mask", "BOOL", (-1,)))


def batch(shape: tuple[int, ...] = (8, 16), dtype: str = "float32") -> dict[str, Array]:
    return {"x": np.zeros(shape, dtype), "mask": np.zeros(8, np.bool_)}


def test_a_batch_as_declared_fits() -> None:
    assert misfit(DECLARED, batch()) == ""
    assert misfit((), batch()) == ""
    for shape in ((8, 4, 4), (16,)):
        assert misfit(DECLARED, batch(shape)) == "", "another number of dimensions is not judged"
    unknown = (TensorSpec("x", "TENSOR", (-1, 16)),)
    assert misfit(unknown, batch((8, 9))) == "", "an unknown datatype is not judged"


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (batch((8, 9)), "input 'x' is declared as [-1, 16], the batch has [8, 9]"),
        (batch(dtype="float64"), "input 'x' is declared as float32, the batch has float64"),
        ({"y": np.zeros(1)}, "the model takes an input 'x', the batch has ['y']"),
        ({"x": np.zeros((8, 16), np.float32)}, "takes an input 'mask', the batch has ['x']"),
    ],
)
def test_what_differs_is_said(inputs: dict[str, Array], words: str) -> None:
    assert words in misfit(DECLARED, inputs)
