"""Requests of one connection: taken as they come, two at a time, and answered in their order."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from edl.proto import stream_answers, tensors
from edl.proto.arena import Array
from edl.teacher.predictor_session import Answer
from edl.teacher.wanted import Wanted
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.door.callers import Make, Settle, X, enter, frame, heard, inside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file")


def ids_heard(caller: socket.socket, count: int) -> list[str]:
    answers = [tensors.decode_response(stream_answers.read(heard(caller))) for _ in range(count)]
    return [answer.request_id for answer in answers]


def test_requests_that_come_at_once_are_answered_in_order(make: Make, settle: Settle) -> None:
    bench = make(slots=8)
    settle(bench)
    ids = [str(number) for number in range(20)]
    with enter(bench, b"".join(frame(bench.request(3, request_id=one)) for one in ids)) as caller:
        assert ids_heard(caller, 20) == ids
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 20


def test_a_request_that_comes_byte_by_byte_is_answered(make: Make, settle: Settle) -> None:
    bench = make()
    settle(bench)
    with enter(bench) as caller:
        said = frame(bench.request(1, request_id="a"))
        for at in range(len(said)):
            caller.sendall(said[at : at + 1])
        assert ids_heard(caller, 1) == ["a"]


def test_two_are_in_work_and_no_more_are_taken(make: Make, settle: Settle) -> None:
    bench = make(slots=8)
    settle(bench)
    within, go = threading.Semaphore(0), threading.Event()

    def wait_within() -> None:
        within.release()
        go.wait(WAIT_S)

    bench.labeller.before = wait_within
    with enter(bench) as caller:
        for number in range(5):
            caller.sendall(frame(bench.request(request_id=str(number))))
        for _ in range(2):
            assert within.acquire(timeout=WAIT_S)
        assert not within.acquire(timeout=0.2)
        go.set()
        assert ids_heard(caller, 5) == list("01234")


def test_the_answer_behind_one_that_nobody_reads_yet_goes_out(make: Make, settle: Settle) -> None:
    """Two of 128 KB: the system would let out half of the second."""
    bench = make(slots=8)
    settle(bench)
    rows, least = 8192, 2 * 8192 * 4 * 4
    with enter(bench, 2 * frame(bench.request(rows, request_id="a"))) as caller:

        def come() -> int:
            waiting = bytearray(4)
            fcntl.ioctl(caller.fileno(), termios.FIONREAD, waiting)
            return int.from_bytes(waiting, sys.byteorder)

        wait_for(lambda: come() > least)
        assert ids_heard(caller, 2) == ["a", "a"]


class _FirstWaits:
    """Labels at once, but for the requests of one row."""

    def __init__(self, bench: Bench) -> None:
        self.require_loaded = bench.labeller.require_loaded
        self.waiting: list[Future[Answer]] = []

    def submit(
        self, inputs: Mapping[str, Array], wanted: Sequence[Wanted], deadline_s: float | None
    ) -> Future[Answer]:
        labels = Future[Answer]()
        if len(inputs["x"]) == 1:
            self.waiting.append(labels)
        else:
            labels.set_result(self.answer(len(inputs["x"])))
        return labels

    def answer(self, rows: int) -> Answer:
        return Answer({"double": np.zeros((rows, 4), np.float32)}, 0.0)


def test_what_is_ready_at_once_waits_for_what_was_asked_before(make: Make, settle: Settle) -> None:
    bench = make()
    settle(bench)
    labeller = _FirstWaits(bench)
    bench.server._servicer._labeller = labeller  # type: ignore[assignment]
    with enter(bench) as caller:
        caller.sendall(frame(bench.request(1, request_id="first")))
        caller.sendall(frame(bench.request(2, request_id="second")))
        answered = "edl_teacher_requests_total"
        wait_for(lambda: bench.count(answered, outcome="answered") == 1)
        caller.settimeout(0.1)
        with pytest.raises(TimeoutError):
            caller.recv(1)
        caller.settimeout(WAIT_S)
        labeller.waiting[0].set_result(labeller.answer(1))
        assert ids_heard(caller, 2) == ["first", "second"]


def test_who_goes_while_its_request_is_in_work_is_not_worked_for(
    make: Make, settle: Settle
) -> None:
    bench = make()
    settle(bench)
    labeller = _FirstWaits(bench)
    bench.server._servicer._labeller = labeller  # type: ignore[assignment]
    caller = enter(bench, frame(bench.request(1)))
    wait_for(lambda: bool(labeller.waiting))
    caller.close()
    wait_for(labeller.waiting[0].cancelled)
    wait_for(lambda: inside(bench) == 0 and bench.traffic.in_flight == 0)
    assert bench.count("edl_teacher_requests_total", outcome="abandoned") == 1
    assert len(bench.server._methods.infer_calls) == 0


def test_what_was_sent_before_too_large_a_request_is_answered(make: Make, settle: Settle) -> None:
    bench = make()
    settle(bench)
    with enter(bench) as caller:
        too_large = frame(bytes((1 << 20) + 1))[:100]
        caller.sendall(frame(bench.request(request_id="a")) + too_large)
        assert ids_heard(caller, 1) == ["a"]
        assert b"larger than max" in heard(caller)
        assert heard(caller) == b""


def test_requests_of_one_kind_are_understood_once(
    make: Make, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    neighbour = settle(bench)
    decoded = []
    decode = tensors.decode_request

    def counted(*given: Any, **how: Any) -> tensors.InferRequest:
        decoded.append(given)
        return decode(*given, **how)

    monkeypatch.setattr(tensors, "decode_request", counted)
    for scale in range(1, 20):
        assert neighbour.infer(X * scale) == (X * 2 * scale).tobytes()
    few = len(decoded)
    assert few <= 6  # the numbers of its places have more digits, now and then
    assert neighbour.infer(X[:5]) == (X[:5] * 2).tobytes()
    assert len(decoded) == few + 1
