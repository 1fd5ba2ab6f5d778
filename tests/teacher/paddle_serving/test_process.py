"""The server's process: awaited, started again, given up, ended with all that it has started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError, ProcessFailed, TeacherLost, UsageError
from edl.runtime.lifecycle import Stop
from edl.runtime.supervise import Command, restarter
from edl.teacher.paddle_serving.engine import ServingModel, ServingProcess, open_model
from edl.teacher.paddle_serving.environment import make, recipe
from edl.teacher.pool import GIVE_UP_AFTER_CRASHES
from edl.tests.runtime.programs import runs, wait_gone
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system

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
    """A `ServingProcess` of that program; it answers when its file is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stop = Stop()
        argv = (sys.executable, "-c", PROGRAM, str(folder))
        self.process = ServingProcess(Command("server", argv, guard=True), self.probe, self.stop)

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


def test_a_server_ends_with_its_children(server: Server) -> None:
    assert server.process.start()
    pids = server.pids()
    assert all(map(runs, pids))
    server.process.stop(0)
    wait_gone(pids)
    assert not server.stop.requested


def test_a_server_that_never_answers_is_given_up(server: Server, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(ProcessFailed, match="exit code 1; its last line: the model is not to be"):
        server.process.start()
    assert server.process.failure is not None


def test_a_server_is_started_again_and_given_up_where_it_keeps_dying(
    server: Server, tmp_path: Path
) -> None:
    assert server.process.start()
    server.kill()
    wait_until(lambda: len(server.pids()) == 2)
    assert not server.stop.requested
    (tmp_path / "broken").touch()
    server.kill()
    wait_until(lambda: server.stop.requested)
    assert "not to be had" in str(server.process.failure)


def test_a_server_that_dies_after_each_slow_start_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarter, "HEALTHY_S", 0.0)  # each start takes longer
    assert server.process.start()
    server.kill()
    wait_until(lambda: len(server.pids()) == 2)
    server.process.test_passed()
    for _ in range(GIVE_UP_AFTER_CRASHES - 1):
        server.kill()
        wait_until(lambda: len(server.pids()) == 2)
    assert not server.stop.requested
    server.kill()
    wait_until(lambda: server.stop.requested)


def test_a_stop_ends_the_start(server: Server) -> None:
    server.stop.request()
    assert not server.process.start()


def test_the_last_words_of_a_step_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no network'\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ProcessFailed, match="ended with exit code 3: no network"):
        make(tmp_path / "new", recipe(), print)


SAID = (
    '{"paddle": "3.3.1", "inputs": [["image", "uint8", [-1, 3, 8, 8]]], '
    '"outputs": [["y", "float32", [-1, 10]], ["z", "bfloat16", [-1]]]}'
)
FILES = ("net.pdmodel", "net.pdiparams")


def opened(folder: Path, files: Sequence[str], *lines: str) -> ServingModel:
    """A model of these files, described by an interpreter that prints these lines."""
    for name in files:
        (folder / name).write_text("")
    python = folder / "python"
    python.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines)]) + "\n")
    python.chmod(0o755)
    return open_model(str(folder), python)


def test_a_model_is_described(tmp_path: Path) -> None:
    model = opened(tmp_path, FILES, "a warning", SAID)
    assert [model.program, model.weights] == [tmp_path / name for name in FILES]
    assert model.paddle == "3.3.1"
    assert model.inputs == (TensorSpec("image", "UINT8", (-1, 3, 8, 8)),)
    assert model.outputs == (TensorSpec("y", "FP32", (-1, 10)), TensorSpec("z", "BF16", (-1,)))
    with pytest.raises(UsageError, match="make serving-env"):
        open_model(str(tmp_path), tmp_path / "nowhere" / "python")


@pytest.mark.parametrize(
    ("files", "said", "words"),
    [
        (("net.json", "net.pdiparams"), SAID, "FLAGS_enable_pir_api=0"),
        ((), SAID, "no model"),
        (FILES, "No module named paddle", "No module named paddle.*make serving-env"),
        (FILES, SAID.replace("uint8", "complex64"), "dtype complex64"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(
    tmp_path: Path, files: Sequence[str], said: str, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        opened(tmp_path, files, said)
