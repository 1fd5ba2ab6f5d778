"""Callers with a wrong credential, or with one for something else, at both planes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edl.coordinator.calling.discovery import SECRET_METADATA
from edl.coordinator.service.call_guard import ManagerLimits
from edl.proto.security.client_connections import open_channel
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.tests.coordinator.calls import SERVICE as CONTROL
from edl.tests.coordinator.calls import ask, end_of
from edl.tests.hostile import planes
from edl.tests.hostile.inputs import Input, report
from edl.tests.hostile.planes import Code, ControlPlane, good_student, served_throughout, subscribed
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import Bench
from edl.tests.waiting import DEADLINE_S, wait_until


@pytest.fixture
def tokens(tmp_path: Path) -> ServerSecurity:
    return ServerSecurity(None, write_secret(tmp_path / "tokens", "mine-mine\nyours-yours\n"))


@pytest.fixture
def mine(tmp_path: Path) -> ClientSecurity:
    return ClientSecurity(None, write_secret(tmp_path / "mine", "mine-mine"))


def test_many_wrong_tokens_delay_nobody(
    tokens: ServerSecurity, mine: ClientSecurity, tmp_path: Path
) -> None:
    wrong = ClientSecurity(None, write_secret(tmp_path / "wrong", "guessed-" * 4))
    with (
        closing(ControlPlane(tokens)) as control,
        closing(Bench(mine, security=tokens)) as data,
        served_throughout(good_student(control.address, mine)),
        served_throughout(lambda: data.infer()),
    ):
        for address, service, call in (
            (control.address, CONTROL, Input("Subscribe", report().SerializeToString())),
            (data.address, planes.DATA, Input("ModelInfer", data.request())),
        ):
            with open_channel(address, wrong) as channel:
                ended = {code for code, _ in planes.ends_of(channel, service, [call] * 200)}
            assert ended == {Code.UNAUTHENTICATED}
        assert control.refused == {"unauthenticated": 200}
        assert data.refused("unauthenticated") == 200


def test_another_students_id_is_refused_and_its_owner_stays(
    tokens: ServerSecurity, mine: ClientSecurity, tmp_path: Path
) -> None:
    yours = ClientSecurity(None, write_secret(tmp_path / "yours", "yours-yours"))
    with (
        closing(ControlPlane(tokens)) as plane,
        subscribed(plane.address, mine) as (owner, _),
    ):
        assert planes.teacher_of(owner) == "t1"
        secret = str(dict(owner.initial_metadata())[SECRET_METADATA])
        for theft in ({}, {"incarnation": 2}, {"secret": "guessed"}):
            with subscribed(plane.address, yours, **theft) as (thief, _):
                assert end_of(thief)[0] == "PERMISSION_DENIED"
        # The same start needs the secret of its stream, even with the owner's token.
        with subscribed(plane.address, mine) as (without, _):
            assert end_of(without)[0] == "PERMISSION_DENIED"
        assert owner.is_active()
        wait_until(lambda: plane.refused["forbidden"] == 4)
        # After a change of tokens the secret alone proves that it is the same student.
        with subscribed(plane.address, yours, secret) as (again, _):
            assert planes.teacher_of(again) == "t1"


def answered(address: str) -> None:
    assert ask(address, "Status") == ("OK", "")


def test_calls_that_say_nothing_keep_nobody_out() -> None:
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(DEADLINE_S)
        yield from ()

    methods = ["Subscribe", "Status", "Drain", "Upgrade", "Deploy", "Watch"] * 20
    with (
        closing(ControlPlane(limits=ManagerLimits(first_report_s=DEADLINE_S))) as plane,
        open_channel(plane.address) as opened,
    ):
        channel: Any = opened
        held = [channel.stream_stream(f"/{CONTROL}/{one}")(nothing()) for one in methods]
        subscribe = good_student(plane.address)
        for _ in range(20):
            subscribe()
            answered(plane.address)
        assert not any(call.done() for call in held)
        over.set()
        assert {planes.end(call) for call in held} == {Code.INVALID_ARGUMENT}
        assert plane.refused == {"malformed": len(methods)}
