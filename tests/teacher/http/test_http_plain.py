"""Plain requests for labels: however their bytes come, and whatever comes before and behind."""

from __future__ import annotations

import gc
import json
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.security import ServerSecurity
from edl.teacher.http import heads, inference
from edl.teacher.http.bodies import Body
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import Authority
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.bench_http import INFER, rows
from edl.tests.teacher.http.talk import Talk, batch, head

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def numbers(count: int = 40_000) -> Array:
    return np.random.default_rng(count).standard_normal((count, 4), dtype=np.float32)


@pytest.fixture
def seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """The batches that reach the model of `bench`."""
    arrays: list[Array] = []
    run: Any = bench.labeller.backend.run

    def record(inputs: Any) -> Any:
        arrays.append(inputs["x"])
        return run(inputs)

    monkeypatch.setattr(bench.labeller.backend, "run", record)
    return arrays


@pytest.mark.parametrize("piece", [1 << 30, 100_003, 1000, 7])
def test_a_batch_may_come_in_pieces(bench: Bench, piece: int) -> None:
    x = numbers(40_000 if piece > 1000 else 40)
    request = batch(x)
    with Talk(bench) as talk:
        for _ in range(2):
            pieces = [request[at : at + piece] for at in range(0, len(request), piece)]
            np.testing.assert_array_equal(talk.ask(*pieces).labels(), 2 * x)


def test_a_batch_stays_where_it_was_received(bench: Bench, seen: list[Array]) -> None:
    with Talk(bench) as talk:
        talk.ask(batch(numbers()))
    (x,) = seen
    assert not x.flags.owndata
    assert not x.flags.writeable
    assert x.__array_interface__["data"][0] % 64 == 0


def test_its_memory_goes_with_its_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the next run of the garbage collector: a batch is too large for that."""
    taken: list[weakref.ref[Any]] = []
    keep = Body.keep

    def known(body: Body, aligned_at: int) -> None:
        keep(body, aligned_at)
        assert body._memory is not None
        taken.append(weakref.ref(body._memory.obj))

    monkeypatch.setattr(Body, "keep", known)
    gc.disable()
    try:
        with Talk(bench) as talk:
            for request in (batch(numbers()), head(9) + b"no JSON!!", batch(numbers(9))):
                talk.ask(request)
            wait_for(lambda: [memory() is None for memory in taken] == [True] * 3)
    finally:
        gc.enable()


def test_requests_may_come_at_once_and_are_answered_in_their_order(bench: Bench) -> None:
    one, other = numbers(3), numbers(5)
    said = json.dumps(rows(2)).encode()
    with Talk(bench) as talk:
        talk.say(batch(one) + GET + batch(other) + head(len(said)) + said + batch(one) + GET)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 6:
            answers += talk.socket.recv(1 << 16)
    at = [answers.index((2 * x).tobytes()) for x in (one, other)]
    assert at == sorted(at)
    assert answers.rindex((2 * one).tobytes()) > at[1]


def test_much_that_comes_ahead_is_left_to_the_socket(bench: Bench) -> None:
    x = numbers(100)
    with Talk(bench) as talk:
        talk.say(batch(x) * 200)  # 320 KB
        got = b""
        while got.count((2 * x).tobytes()) < 200:
            got += talk.socket.recv(1 << 16)


@pytest.mark.parametrize(
    "unusual",
    [
        head(0, **{"Transfer-Encoding": "chunked"}).replace(b"Content-Length: 0\r\n", b""),
        head(10, Expect="100-continue"),
        head(10, "/v2/models/res%6eet/infer"),
        head(10, INFER + "?a=b"),
        head(10, **{"Content-Encoding": "gzip"}),
        head(10).replace(b"HTTP/1.1", b"HTTP/1.0"),
        head(10, Upgrade="websocket"),
        head("ten"),
        head(-1),
        head(10, **{"content-length": 11}),
        head(10).replace(b"Host: localhost\r\n", b""),
        head(10, "/v2/models/resnet/nothing"),
        head(10).replace(b"POST", b"PUT"),
        b"POST /v2/models/ \x00\r\n\r\n",
    ],
)
def test_what_is_unusual_goes_the_usual_way(unusual: bytes) -> None:
    assert heads.head_of(unusual) is None
    assert heads.head_of(head(10)) is not None


def test_pieces_and_expectations_between_plain_requests(bench: Bench) -> None:
    x, said = numbers(3), json.dumps(rows(3)).encode()
    chunked = head(0, **{"Transfer-Encoding": "chunked"}).replace(b"Content-Length: 0\r\n", b"")
    pieces = b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said)
    with Talk(bench) as talk:
        for _ in range(2):
            np.testing.assert_array_equal(talk.ask(batch(x)).labels(), 2 * x)
            assert talk.ask(chunked, pieces).status == 200
            talk.say(head(len(said), Expect="100-continue"))
            assert talk.socket.recv(64).startswith(b"HTTP/1.1 100")
            assert talk.ask(said).status == 200


def test_a_plain_request_goes_past_starlette(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unwanted(*_: Any, **__: Any) -> None:
        raise AssertionError("a body was read piece by piece")

    monkeypatch.setattr(inference, "read_body", unwanted)
    with Talk(bench) as talk:
        assert talk.ask(batch(numbers(3))).status == 200


def test_a_caller_that_wants_no_more_is_let_go(bench: Bench) -> None:
    with Talk(bench) as talk:
        reply = talk.ask(batch(numbers(3), Connection="close"))
        assert reply.headers["connection"] == "close"
        assert "date" in reply.headers
        assert talk.is_over()


def test_over_tls(make: Callable[..., Bench], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    bench = make(security=ServerSecurity(authority.issue("server")))
    files = authority.issue("student", "student:resnet")
    context = ssl.create_default_context(cafile=str(files.ca))
    assert files.certificate is not None
    context.load_cert_chain(files.certificate, files.key)
    x = numbers()
    with Talk(bench, context) as talk:
        for _ in range(2):
            np.testing.assert_array_equal(talk.ask(batch(x)).labels(), 2 * x)
