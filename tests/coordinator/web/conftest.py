"""A page on a scripted mesh, and ways to ask it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from edl.coordinator.web.server import WebServer
from edl.proto.security.access_control import AccessControl
from edl.proto.security.credentials import ServerSecurity
from edl.tests.waiting import DEADLINE_S

from .scripted_mesh import ScriptedMesh

ADMIN = "admin-token-of-the-tests"
VIEWER = "viewer-token-of-the-tests"
# To read the certificates of this machine for each request would take most of the time.
get, post = partial(httpx.get, verify=False), partial(httpx.post, verify=False)


@pytest.fixture
def script() -> ScriptedMesh:
    return ScriptedMesh(teachers=6, students=2)


def make_gate(folder: Path) -> AccessControl:
    path = folder / "tokens"
    path.write_text(f"admin:ann {ADMIN}\nviewer:vic {VIEWER}\nstudent:sam student-token-here\n")
    path.chmod(0o600)
    return AccessControl(ServerSecurity(tokens_file=path))


@pytest.fixture
def gate(tmp_path: Path) -> AccessControl:
    return make_gate(tmp_path)


@pytest.fixture
def serve(script: ScriptedMesh) -> Iterator[Callable[..., str]]:
    servers: list[WebServer] = []

    def start(listen: str = "0", **options: Any) -> str:
        server = WebServer(script, listen, **options)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def messages(url: str, token: str = "") -> Generator[dict[str, Any], None, None]:
    """What the feed says, until it is closed."""
    headers = bearer(token) if token else {}
    with httpx.stream(
        "GET", f"{url}api/feed", headers=headers, timeout=DEADLINE_S, verify=False
    ) as answer:
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code} {answer.read()!r}")
        for line in answer.iter_lines():
            if line.startswith("data:"):
                yield json.loads(line[5:])
