"""What the coordinator's tests share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edl.tests.coordinator.scripted_manager import Served, served


@pytest.fixture
def mesh() -> Iterator[Served]:
    with served() as mesh:
        yield mesh


@contextmanager
def held_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A port that nobody is given meanwhile, and that a server may be told to listen on."""
    found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(address)  # it does not listen: servers, which set the same, may
        yield holder.getsockname()[1]
