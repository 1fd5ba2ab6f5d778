"""Paddle Serving for tests: its environment, a model that it can read, a server of nobody's."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edl.coordinator.embedded import free_port
from edl.supervise import Command, start
from edl.teacher.paddle_serving.configuration import write
from edl.teacher.paddle_serving.environment import make, recipe
from edl.teacher.paddle_serving.model import open_model
from edl.tests.interop.environments import FOLDER
from edl.tests.waiting import wait_until

_EXPORT_S = 120.0
_START_S = 90.0
_EXPORT = Path(__file__).parent / "programs" / "paddle_export.py"
_SERVER = Path(__file__).parent / "programs" / "paddle_pipeline_server.py"


def serving_python() -> Path:
    """The interpreter of the environment, which is made if it is not there; ~1 min, 0.9 GB."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "paddle-serving.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make(FOLDER / "paddle-serving", recipe(), _say)


def export(folder: Path, *, former_format: bool = True, weights: float = 1.0) -> Path:
    """Export the tiny network of `paddle_export.py`; in the format of Paddle 2 or of Paddle 3.

    The format is chosen by the environment, and that before Paddle is imported. Its weights are
    multiplied by `weights`.
    """
    env = {"FLAGS_enable_pir_api": str(int(not former_format))}
    argv = (sys.executable, "-P", str(_EXPORT), str(folder), str(weights))
    process = start(Command("export", argv, env=env, guard=True))
    assert process.wait(_EXPORT_S) == 0, process.tail()
    return folder


@contextmanager
def pipeline_server(folder: Path, model: Path, name: str, answers: str) -> Iterator[str]:
    """A server as its operators start one, which nobody of ours keeps; its address.

    It listens on every interface, as upstream's code has it.

    Args:
        folder: for its files.
        model: a folder that `export` has filled.
        name: of the service.
        answers: "text", as it comes, or "tensors".
    """
    python, port = serving_python(), free_port()
    file = write(
        folder, open_model(str(model), python), port=port, calls=4, device="cpu", threads=1
    )
    config = {**json.loads(file.read_text()), "http_port": free_port()}
    file.write_text(json.dumps(config))
    argv = (str(python), "-I", str(_SERVER), str(file), name, answers)
    process = start(Command("pipeline-server", argv, cwd=folder, guard=True))
    try:
        wait_until(lambda: not process.alive or _listens(port), _START_S)
        assert process.alive, process.tail()
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _say(words: str) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"interop: {words}\n".encode())
