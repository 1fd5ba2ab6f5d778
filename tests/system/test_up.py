"""`edl up examples/mesh.yaml` for real: up in seconds, healed, ended, and nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.interrupts import EXIT_INTERRUPTED
from edl.mesh.up.place import short
from edl.supervise import Process, python_command, start
from edl.tests.ground.programs import wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "mesh.yaml"
#: Of the whole mesh, on a laptop with two cores.
UP_S = 20.0
WAIT_S = 60.0
STUDENT = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("it runs")
signal.sigwait([signal.SIGTERM])
print("saved")
"""
NAMES = ["coordinator", "spirals-1", "spirals-2", "spirals-student"]


class Edl:
    """`edl` with a cache of its own, and what it wrote there of the mesh."""

    def __init__(self, cache: Path, undo: ExitStack) -> None:
        self.cache = cache
        self._undo = undo
        self._strangers = frozenset(processes())

    def start(self, *words: object) -> Process:
        env = {"XDG_CACHE_HOME": str(self.cache)}
        process = start(python_command("edl", "edl", *words, env=env))
        self._undo.callback(process.stop, 20.0)
        return process

    def run(self, *words: object) -> tuple[int, str]:
        process = self.start(*words)
        code = process.wait(WAIT_S)
        assert code is not None, process.tail()
        return code, "\n".join(process.tail(100))

    @property
    def state(self) -> dict[str, Any]:
        """What `edl up` has written down; empty: nothing."""
        found = list(self.cache.glob("edl-dist/up/*/state.json"))
        return json.loads(found[0].read_text()) if found else {}

    def up(self) -> dict[str, int]:
        """Wait until all is there; the number of each process by its name."""
        wait_for(lambda: self.state.get("phase") == "up", WAIT_S)
        return {one["name"]: one["process"]["pid"] for one in self.state["entries"]}

    def left(self) -> list[int]:
        """Processes that run, and did not before."""
        return [pid for pid in processes() if pid not in self._strangers]

    def files(self) -> list[str]:
        return [path.name for path in self.cache.rglob("*") if path.is_file()]


@pytest.fixture
def edl(tmp_path: Path) -> Iterator[Edl]:
    with ExitStack() as undo:
        edl = Edl(tmp_path / "cache", undo)
        yield edl
        if edl.state:  # something has failed above
            edl.run("down", "--all", "--within", 0)


def processes() -> list[int]:
    """All that this process has started, and what that has started: Redis, engines, guards."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def listens(url: str) -> bool:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(5.0)
        return probe.connect_ex((host, int(port))) == 0


def test_in_the_background_until_it_is_ended(edl: Edl) -> None:
    name, begun = short(EXAMPLE), time.monotonic()
    code, told = edl.run("up", EXAMPLE, "--detach", "--keep")
    assert (code, time.monotonic() - begun < UP_S) == (0, True), told
    assert f"'edl down {name}' ends it" in told
    state = edl.state
    assert [one["name"] for one in state["entries"]] == NAMES
    addresses = [state["url"], *(one["address"] for one in state["entries"] if one["address"])]
    assert [listens(address) for address in addresses] == [True] * 4
    code, told = edl.run("up", EXAMPLE)
    assert code == 2
    assert f"is up already (pid {state['keeper']['pid']}, 4 of 4 processes" in told
    assert edl.run("down") == (0, f"{name} has ended")
    assert (edl.left(), edl.files()) == ([], [])
    assert not any(listens(address) for address in addresses)


def test_what_dies_comes_again_and_nothing_is_left_when_edl_up_is_killed(edl: Edl) -> None:
    mesh = edl.start("up", EXAMPLE, "spirals-student", "--keep")
    pids = edl.up()
    mesh.expect(r"^spirals-student \| epoch \d+: loss", WAIT_S)
    os.kill(pids["spirals-1"], signal.SIGKILL)
    mesh.expect(r"^spirals-1 was ended by SIGKILL and starts again at once", WAIT_S)
    mesh.expect(r"^spirals-1 is ready again \(start 2\)", WAIT_S)
    wait_for(lambda: {one["phase"] for one in edl.state["entries"]} == {"running"}, WAIT_S)
    state = edl.state
    assert state["keeper"]["pid"] == mesh.pid
    mesh.kill()
    wait_for(lambda: edl.left() == [], WAIT_S)
    assert not listens(state["url"])
    assert edl.state == state, "nobody was there to take it back"
    assert edl.run("down", EXAMPLE) == (0, f"{EXAMPLE} was not up")
    assert edl.files() == []


def test_ctrl_c_ends_all_in_order_and_leaves_the_logs(edl: Edl, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text("students: {s: {command: python student.py}}")
    (tmp_path / "student.py").write_text(STUDENT)
    mesh = edl.start("up", file, "--follow", "--logs", edl.cache / "logs")
    mesh.expect(r"^s           \| it runs", WAIT_S)
    mesh.send_signal(signal.SIGINT)
    assert mesh.wait(WAIT_S) == EXIT_INTERRUPTED
    told = [line for line in mesh.tail(100) if re.search(r"left$|saved$", line)]
    assert told == ["s           | saved", "s has left", "coordinator has left"]
    assert edl.left() == []
    assert sorted(edl.files()) == ["coordinator.log", "s.log"]
    assert (edl.cache / "logs" / "s.log").read_text() == "it runs\nsaved\n"
