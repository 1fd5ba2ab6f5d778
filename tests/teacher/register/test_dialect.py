"""How a server at a bare host:port is asked is found by asking."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import get_args

import pytest

from edl.lifecycle import Stop
from edl.proto.security import ClientSecurity
from edl.teacher.register.dialect import with_scheme
from edl.tests.foreign_server import MODEL, Kind, start
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.register.test_register import config


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("ready", [True, False])
def test_whatever_answers_is_taken_ready_or_not(kind: Kind, ready: bool) -> None:
    server = start(kind)
    server.ready = ready
    try:
        bare = server.address.removeprefix("http://")
        found = with_scheme(config(endpoint=bare, model=MODEL), Stop(), pytest.fail)
        assert found is not None
        assert found.address == server.address
    finally:
        server.stop()


@pytest.mark.parametrize("endpoint", ["grpc://127.0.0.1:9", "http://127.0.0.1:9"])
def test_one_that_is_said_is_not_asked(endpoint: str) -> None:
    said = config(endpoint=endpoint)
    assert with_scheme(said, Stop(), pytest.fail) is said
    other = config(endpoint="127.0.0.1:9", protocol="paddle-serving")
    assert with_scheme(other, Stop(), pytest.fail) is other


def test_nobody_is_waited_for_until_the_wish_to_end(tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", "a-token")
    stop, told, found = Stop(), list[str](), list[object]()
    with socket.socket() as silent:  # it does not listen, and keeps the port from all others
        silent.bind(("127.0.0.1", 0))
        bare = f"127.0.0.1:{silent.getsockname()[1]}"
        nobody = config(endpoint=bare, client=ClientSecurity(None, token))
        thread = threading.Thread(
            target=lambda: found.append(with_scheme(nobody, stop, told.append))
        )
        thread.start()
        wait_for(lambda: bool(told))
        stop.request()
        thread.join(20.0)
    assert found == [None]
    assert f"grpc://{bare}" in told[0]
    assert f"http://{bare}" in told[0]
