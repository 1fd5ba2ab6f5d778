"""The Redis that we start ourselves, its port, end and return."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing, suppress
from itertools import chain
from pathlib import Path

import pytest

from edl.coordinator import connect, embedded
from edl.coordinator.embedded import free_port, keep_embedded, server_command, start_embedded
from edl.runtime.errors import AddressInUse, RedisUnavailable, UsageError
from edl.tests.waiting import wait_until

from .conftest import held_port

pytestmark = pytest.mark.system


def test_a_port_in_use_is_named_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match="--redis-port"):
            keep_embedded(port)
        # A free port may be taken meanwhile, by another test too.
        ports = chain([port], iter(free_port, None))
        monkeypatch.setattr(embedded, "free_port", lambda *_: next(ports))
        process, url = start_embedded()
        process.stop()
    assert url.startswith("redis://127.0.0.1:")
    assert not url.endswith(f":{port}")


def test_a_kept_one_comes_back_on_its_port() -> None:
    keeper, url = keep_embedded()
    first = keeper.process
    assert first is not None

    def back() -> bool:
        with suppress(RedisUnavailable):
            return keeper.process is not first and registry.time_ms() > 0
        return False

    with closing(connect(url)) as registry, ExitStack() as undo:
        undo.callback(keeper.stop)
        first.kill()
        wait_until(back)


def test_a_server_on_path_is_used_or_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "redis-server"
    program.symlink_to(embedded.server_program())
    monkeypatch.setattr(embedded, "_wheel_program", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_command(1).argv[0] == str(program)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r"pip install .*\[embedded\]"):
        start_embedded()


def test_it_listens_where_it_is_told() -> None:
    for host, bind, protected in (
        ("127.0.0.1", "127.0.0.1", "yes"),
        ("0.0.0.0", "0.0.0.0", "no"),
        ("10.1.2.3", "10.1.2.3 127.0.0.1", "no"),
        ("[::1]", "::1 127.0.0.1", "no"),
    ):
        line = " ".join(server_command(7, host).argv)
        assert f"--bind {bind} --" in line
        assert f"--protected-mode {protected}" in line


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost"])
def test_a_free_port_is_found_for_every_kind_of_host(host: str) -> None:
    assert free_port(host) > 0
    with held_port(host) as port:
        assert free_port(host, port) == port, "the usual port, as it is free"
        if host == "127.0.0.1":
            with socket.create_server((host, port)):
                assert free_port(preferred=port) != port
