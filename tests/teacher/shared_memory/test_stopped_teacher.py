"""A teacher's process that is stopped or killed while it has a request."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from edl.errors import DeadlineExceeded, TeacherLost
from edl.proto.clients import Request, open_client
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.lent_arena import LentArena
from edl.supervise import Process, python_command, start
from edl.tests.teacher.bench import WAIT_S
from edl.tests.teacher.fakes import array

pytestmark = pytest.mark.system

X = array(3, 4)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file that releases the model of `teacher` when it exists."""
    return tmp_path / "go"


@pytest.fixture
def teacher(go: Path) -> Iterator[Process]:
    command = ("edl.tests.teacher.held_teacher", str(go), "127.0.0.1:0")
    process = start(python_command("teacher", *command))
    yield process
    process.stop(grace_s=0.0)


@pytest.fixture
def address(teacher: Process) -> str:
    port = teacher.expect(r"^port (\d+)$", WAIT_S)[1]
    return f"127.0.0.1:{port}"


def test_a_stopped_teacher_is_late_and_serves_again(
    teacher: Process, address: str, go: Path
) -> None:
    go.touch()
    with closing(OipGrpcClient(address, "resnet")) as client:
        client.probe(WAIT_S)
        client.infer(Request({"x": X}), WAIT_S)
        os.kill(teacher.pid, signal.SIGSTOP)
        large = Request({"x": array(50_000, 4)})
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(client.infer, large, 0.3) for _ in range(3)]
            for one in waiting:
                with pytest.raises(DeadlineExceeded):
                    one.result(WAIT_S)
        os.kill(teacher.pid, signal.SIGCONT)
        answer = client.infer(Request({"x": X}), WAIT_S)
        assert answer.outputs["double"].tobytes() == (X * 2).tobytes()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_killed_teacher_is_lost_at_once(teacher: Process, address: str, in_place: bool) -> None:
    with closing(LentArena.create(1 << 20)) as arena, ThreadPoolExecutor(1) as thread:
        x = arena.get(arena.put([X]).arrays[0]) if in_place else X
        with closing(open_client("", address, "resnet", arena=arena)) as client:
            client.probe(WAIT_S)
            asked = thread.submit(client.infer, Request({"x": x}), 2 * WAIT_S)
            teacher.expect("^held$", WAIT_S)
            teacher.kill()
            with pytest.raises(TeacherLost) as caught:
                asked.result(WAIT_S)
    assert not isinstance(caught.value, DeadlineExceeded)
