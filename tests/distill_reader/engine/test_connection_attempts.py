"""Whether a teacher can be reached: its name, its address, and errors of this machine."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from edl.distill_reader.engine.connection_attempts import ConnectionAttempts
from edl.distill_reader.engine.inbox import Inbox
from edl.scheduler.reader_core.events import PathsTried, Peer
from edl.tests.waiting import DEADLINE_S

PORT = 8500
TEACHER = Peer("t1", f"teacher.example:{PORT}", "model")


class World:
    """Attempts to reach one teacher; what their threads post is carried out by `run`."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.tried = list[PathsTried]()
        self.paths = ConnectionAttempts(self.inbox, self.tried.append)

    def run(self) -> None:
        """Carry out what the next thread to end posts."""
        events = self.inbox.next(DEADLINE_S)
        assert events
        for event in events:
            event()

    def is_refused(self) -> bool:
        self.paths.attempt(TEACHER, 0.0)
        self.run()
        return bool(self.tried[-1].refusals[TEACHER])


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.inbox.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What names lead to; any other is not known."""
    known: dict[str, Any] = {}

    def look_up(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", known[host])]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


def test_a_teacher_is_reached_where_its_name_led_once_names_are_not_known(
    world: World, listener: socket.socket, names: dict[str, Any]
) -> None:
    names["teacher.example"] = listener.getsockname()
    world.paths.resolve(TEACHER.address)
    world.run()
    names.clear()
    assert not world.is_refused()


def test_a_name_is_looked_up_again_where_nobody_is_reached_any_more(
    world: World, listener: socket.socket, names: dict[str, Any]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:
        names["teacher.example"] = before.getsockname()
    world.paths.resolve(TEACHER.address)
    world.run()
    names["teacher.example"] = listener.getsockname()
    assert world.is_refused()
    world.run()  # it has been looked up
    assert not world.is_refused()


def test_a_name_that_was_never_known_is_one_that_cannot_be_reached(
    world: World, names: dict[str, Any]
) -> None:
    assert world.is_refused()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EADDRNOTAVAIL])
def test_what_this_machine_lacks_says_nothing_of_a_teacher(
    world: World, code: int, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, "no more")

    names["teacher.example"] = ("127.0.0.1", PORT)
    monkeypatch.setattr(socket, "socket", fail)
    assert not world.is_refused()


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_an_address_that_this_machine_cannot_try_leaves_the_verdict_to_the_others(
    world: World, listens: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an IPv6 address without IPv6 here."""

    class NoIpv6(socket.socket):
        def connect(self, address: Any) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(code, os.strerror(code))
            super().connect(address)

    with socket.create_server(("127.0.0.1", 0)) as server:
        (host, port), stream = server.getsockname(), socket.SOCK_STREAM
        found = [
            (socket.AF_INET6, stream, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, stream, 6, "", (host, port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(socket, "socket", NoIpv6)
        if not listens:
            server.close()
        assert world.is_refused() is not listens


def test_without_threads_nothing_is_known_of_a_teacher(
    world: World, listener: socket.socket, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names["teacher.example"] = listener.getsockname()
    with monkeypatch.context() as patch:
        no_threads = mock.Mock(side_effect=RuntimeError("can't start new thread"))
        patch.setattr(threading.Thread, "start", no_threads)
        world.paths.resolve(TEACHER.address)
        assert not world.is_refused()
    world.paths.resolve(TEACHER.address)
    world.run()
    names.clear()
    assert not world.is_refused(), "its name was not resolved later"
