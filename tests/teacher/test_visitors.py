"""Who calls: the same in whichever form an address comes, and the user behind it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from edl.errors import RequestRefused
from edl.teacher.shared_memory import visitors
from edl.teacher.shared_memory.visitors import Visitor


@pytest.mark.parametrize(
    ("peer", "host", "port"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1", 5000),
        ("ipv6:%5B::1%5D:5000", "::1", 5000),
        ("ipv6:[::1]:5000", "::1", 5000),
        ("", "", 0),
    ],
)
def test_how_grpc_names_a_caller(peer: str, host: str, port: int) -> None:
    assert Visitor.of_peer("ann", peer) == Visitor("ann", host, port)


def test_a_caller_is_the_same_in_whichever_form_its_address_comes() -> None:
    assert Visitor("ann", "::ffff:127.0.0.1", 1).owner == Visitor("ann", "127.0.0.1", 2).owner
    assert Visitor("ann", "127.0.0.1", 1).owner != Visitor("bob", "127.0.0.1", 1).owner
    assert Visitor("ann", "::ffff:127.0.0.1", 1).is_here()
    assert Visitor("ann", "::1", 1).is_here()


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_the_user_of_a_connection_is_known(
    family: socket.AddressFamily, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = os.geteuid()
    with socket.create_server((host, 0), family=family) as server:
        where = server.getsockname()[:2]
        with socket.create_connection(where) as caller, server.accept()[0]:
            monkeypatch.setattr(os, "geteuid", lambda: -1)  # what it must not fall back to
            visitor = Visitor("ann", host, caller.getsockname()[1])
            assert visitor.uid() == ours
            with socket.socket(family) as unconnected:
                unconnected.bind((host, 0))
                with pytest.raises(RequestRefused, match="no user of this host"):
                    Visitor("ann", host, unconnected.getsockname()[1]).uid()
            caller.shutdown(socket.SHUT_WR)  # nobody's, as the system lists it from now on
            with pytest.raises(RequestRefused, match="no user of this host"):
                visitor.uid()


def test_it_is_that_of_the_callers_end_of_a_connection_that_stands(tmp_path: Path) -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:1388 00000000:0000 0A 00000000:00000000 00:00000000 00000000   1  0 7\n"
        "   1: 0100007F:0050 0100007F:1388 01 00000000:00000000 00:00000000 00000000   2  0 8\n"
        "   2: 0100007F:1388 0100007F:0050 01 00000000:00000000 00:00000000 00000000   3  0 9\n"
    )
    (tmp_path / "tcp").write_text(table)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(visitors, "_TABLES", (tmp_path / "none", tmp_path / "tcp"))
        assert Visitor("ann", "127.0.0.1", 5000).uid() == 3
        assert Visitor("ann", "::ffff:127.0.0.1", 80).uid() == 2


def test_where_the_system_does_not_say_it_is_our_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "_TABLES", ())
    assert Visitor("ann", "127.0.0.1", 1).uid() == os.geteuid()
