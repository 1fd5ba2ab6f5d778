"""Students that are somebody else, say nothing, or say when it is: none harms an honest one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.coordinator.calling.discovery import SECRET_METADATA
from edl.coordinator.limits import Limits
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ClientSecurity, ServerSecurity, open_channel
from edl.tests.ground.programs import wait_for
from edl.tests.hostile.good_client import served_throughout
from edl.tests.hostile.inputs import report
from edl.tests.hostile.planes import CONTROL, TIMEOUT_S, Code, ControlPlane, GoodStudent
from edl.tests.proto.security.authority import write_secret


@pytest.fixture
def tokens(tmp_path: Path) -> ServerSecurity:
    return ServerSecurity(None, write_secret(tmp_path / "tokens", "mine-mine\nyours-yours\n"))


@pytest.fixture
def mine(tmp_path: Path) -> ClientSecurity:
    return ClientSecurity(None, write_secret(tmp_path / "mine", "mine-mine"))


@pytest.fixture
def yours(tmp_path: Path) -> ClientSecurity:
    return ClientSecurity(None, write_secret(tmp_path / "yours", "yours-yours"))


@contextmanager
def serving(security: ServerSecurity | None = None, **limits: Any) -> Iterator[ControlPlane]:
    plane = ControlPlane(security, limits=Limits(**limits))
    try:
        yield plane
    finally:
        plane.close()


@contextmanager
def subscribed(
    address: str, security: ClientSecurity | None, secret: str = "", **fields: Any
) -> Iterator[Any]:
    """A stream that has sent its first report and stays open."""
    over = threading.Event()
    first = report(**{"service": "calm", "student_id": "job/0", "teachers": [], **fields})

    def reports() -> Iterator[bytes]:
        yield first.SerializeToString()
        over.wait(TIMEOUT_S)

    with open_channel(address, security) as channel:
        any_channel: Any = channel
        metadata = ((SECRET_METADATA, secret),) if secret else ()
        call = any_channel.stream_stream(f"/{CONTROL}/Subscribe")(
            reports(), timeout=TIMEOUT_S, metadata=metadata
        )
        try:
            yield call
        finally:
            over.set()
            call.cancel()


def assignment(call: Any) -> pb.Assignment:
    """The next one with a teacher in it."""
    for data in call:
        if (found := pb.Assignment.FromString(data)).teachers:
            return found
    raise AssertionError("the stream ended without an assignment")


def end(call: Any) -> grpc.StatusCode:
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    code: grpc.StatusCode = call.code()
    return code


def secret_of(call: Any) -> str:
    return str(dict(call.initial_metadata())[SECRET_METADATA])


def test_another_students_id_is_refused_and_its_owner_stays(
    tokens: ServerSecurity, mine: ClientSecurity, yours: ClientSecurity
) -> None:
    with serving(tokens) as plane, subscribed(plane.address, mine) as owner:
        assert assignment(owner).teachers[0].teacher_id == "t1"
        for theft in ({}, {"incarnation": 2}, {"secret": "guessed"}):
            with subscribed(plane.address, yours, **theft) as thief:
                assert end(thief) is Code.PERMISSION_DENIED
        assert owner.is_active()
        wait_for(lambda: plane.refused["forbidden"] == 3)


def test_the_same_start_needs_the_secret_of_its_stream(
    tokens: ServerSecurity, mine: ClientSecurity, yours: ClientSecurity
) -> None:
    with serving(tokens) as plane, subscribed(plane.address, mine) as owner:
        assignment(owner)
        secret = secret_of(owner)
        with subscribed(plane.address, mine) as without:
            assert end(without) is Code.PERMISSION_DENIED
        assert owner.is_active()
        # After an exchange of tokens the secret alone tells that it is still the same student.
        with subscribed(plane.address, yours, secret) as again:
            assert assignment(again).teachers[0].teacher_id == "t1"


def test_a_new_start_of_the_same_principal_supersedes(
    tokens: ServerSecurity, mine: ClientSecurity
) -> None:
    with serving(tokens) as plane, subscribed(plane.address, mine) as ghost:
        assignment(ghost)
        with subscribed(plane.address, mine, incarnation=2) as fresh:
            assert assignment(fresh).teachers[0].teacher_id == "t1"
            assert end(ghost) is Code.ALREADY_EXISTS


@pytest.mark.parametrize("method", ["Subscribe", "Status", "Drain", "Upgrade", "Deploy", "Watch"])
def test_calls_that_say_nothing_keep_nobody_out(method: str) -> None:
    calls = 200
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(TIMEOUT_S)
        yield from ()

    with serving(first_report_s=2.0) as plane, open_channel(plane.address) as channel:
        any_channel: Any = channel
        good = GoodStudent(plane.address)
        ask = any_channel.unary_unary(f"/{CONTROL}/Status")
        with served_throughout(good), served_throughout(lambda: ask(b"", timeout=TIMEOUT_S)):
            held = [
                any_channel.stream_stream(f"/{CONTROL}/{method}")(nothing()) for _ in range(calls)
            ]
            ended = {end(call) for call in held}
        over.set()
        good.close()
        assert ended <= {Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED}
        assert sum(plane.refused.values()) == calls


def test_a_term_of_the_far_future_locks_nobody_out() -> None:
    with serving() as plane:
        with subscribed(
            plane.address, None, student_id="liar/0", term=(1 << 62) - 1, counter=7
        ) as liar:
            assignment(liar)
            with subscribed(plane.address, None) as honest:
                told = assignment(honest)
        with subscribed(
            plane.address, None, incarnation=2, term=told.term, counter=told.counter
        ) as honest:
            assert assignment(honest).term < 1 << 60
