"""The server's process: awaited, started again, given up, ended with all that it has started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.errors import ProcessFailed, TeacherLost
from edl.lifecycle import Stop
from edl.supervise import Command
from edl.teacher.paddle_serving.process import ServerProcess
from edl.tests.ground.programs import runs, wait_for, wait_gone

#: Starts a child, says both ids in a file, and stays; or goes at once, if a file says so.
PROGRAM = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
if (folder / "broken").exists():
    raise SystemExit("the model is not to be had")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(folder / "new").write_text(f"{os.getpid()} {child.pid}")
(folder / "new").rename(folder / "pids")
time.sleep(600)
"""


class Server:
    """A `ServerProcess` of that program; it answers when its file is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failures: list[ProcessFailed] = []
        argv = (sys.executable, "-c", PROGRAM, str(folder))
        self.process = ServerProcess(
            Command("server", argv, guard=True), self.probe, self.failures.append
        )

    def probe(self, timeout_s: float) -> None:
        if not (self.folder / "pids").exists():
            raise TeacherLost("nobody answers")

    def pids(self) -> list[int]:
        file = self.folder / "pids"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def kill(self) -> None:
        """KILL to the program alone, and wait until nothing of its group is left."""
        pids = self.pids()
        (self.folder / "pids").unlink()
        os.kill(pids[0], signal.SIGKILL)
        wait_gone(pids)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.process.stop(0)


def test_it_is_awaited_and_ends_whole(server: Server) -> None:
    assert server.process.start(Stop())
    pids = server.pids()
    assert all(map(runs, pids))
    server.process.stop(0)
    wait_gone(pids)
    assert not server.failures


def test_one_that_dies_is_started_again(server: Server) -> None:
    assert server.process.start(Stop())
    server.kill()
    wait_for(lambda: len(server.pids()) == 2)
    assert not server.failures


def test_one_that_never_answered_is_given_up_at_once(server: Server, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(ProcessFailed, match="exit code 1; its last line: the model is not to be"):
        server.process.start(Stop())
    assert len(server.failures) == 1


def test_one_that_keeps_dying_is_given_up(server: Server, tmp_path: Path) -> None:
    assert server.process.start(Stop())
    (tmp_path / "broken").touch()
    server.kill()
    wait_for(lambda: bool(server.failures))
    assert "not to be had" in str(server.failures[0])


def test_a_wish_to_stop_ends_the_wait(server: Server, tmp_path: Path) -> None:
    stop = Stop()
    stop.request()
    assert not server.process.start(stop)
