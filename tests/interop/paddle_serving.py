"""Paddle Serving for tests: its environment, and a model that it can read."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from edl.supervise import Command, start
from edl.teacher.paddle_serving.environment import make, recipe
from edl.tests.interop.environments import FOLDER

_EXPORT_S = 120.0
_EXPORT = Path(__file__).parent / "programs" / "paddle_export.py"


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


def _say(words: str) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"interop: {words}\n".encode())
