"""An elastic training beside the mesh, and a node with another seed that wants to take part."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ...errors import ProcessFailed
from ...supervise import Process, python_command, start, stop_all
from .trace import TrainingSeen

JOB_FILE = Path(__file__).with_name("training_job.py")
JOB = "chaos-training"
#: Paddle is imported twice before a node's first step.
START_S = 90.0
END_S = 30.0
_LOOK_S = 0.1


class Training:
    """A node that trains from `open` to `end`. Without Paddle nothing is started.

    Args:
        url: of Redis.
        folder: for logs, checkpoints and the ids that were trained.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._node: Process | None = None
        self._other: Process | None = None
        self._seen: TrainingSeen | None = None

    @property
    def seen(self) -> TrainingSeen | None:
        """What came of it; None: it has not ended, or was not started."""
        return self._seen

    def open(self, check: Callable[[], None]) -> None:
        """Start a node; once it trains, one with another seed, and wait until that has ended.

        Args:
            check: called while waiting; what it raises ends the wait.

        Raises:
            ProcessFailed: the first node does not train, or the other one does not end.
        """
        if importlib.util.find_spec("paddle") is None:
            return
        self._node = self._start("node-1")
        self._wait(lambda: self._step() > 0, self._node, check)
        self._other = other = self._start("node-2", "--seed", 7)
        self._wait(lambda: not other.alive, self._node, check)

    def end(self) -> None:
        """End the node, which writes a checkpoint; again without effect. Raises ProcessFailed."""
        node, other = self._node, self._other
        if node is None or self._seen is not None:
            return
        trained = self._step() if node.alive else 0
        alive = node.alive
        with contextlib.suppress(ProcessFailed):  # its exit code says so
            stop_all([node], END_S)
        stop_all([one for one in (other,) if one is not None], 0.0)
        self._seen = TrainingSeen(
            trained,
            self._trouble(node, alive),
            0 if other is None else other.returncode or 0,
            "it was not started" if other is None else " ".join(other.tail(1)),
        )

    def _trouble(self, node: Process, alive: bool) -> str:
        if not alive:
            return f"ended by itself: {' | '.join(node.tail(2))}"
        if node.returncode != -signal.SIGTERM:
            return f"ended with {node.returncode} after SIGTERM: {' | '.join(node.tail(2))}"
        return ""

    def _start(self, name: str, *options: object) -> Process:
        command = python_command(
            name,
            "edl",
            *("student", "train", JOB_FILE, "--coordinator", self._url, "--job", JOB),
            *("--nodes", "1:2", "--epochs", 1000),
            *("--checkpoint", self._folder / "checkpoints", "--id-log", self._ids, *options),
            log=self._folder / f"{name}.log",
        )
        return start(command)

    def _wait(
        self, condition: Callable[[], bool], node: Process, check: Callable[[], None]
    ) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            check()
            if not node.alive or time.monotonic() > deadline:
                raise ProcessFailed(f"the elastic training is stuck: {' | '.join(node.tail(2))}")
            time.sleep(_LOOK_S)

    @property
    def _ids(self) -> Path:
        return self._folder / "ids"

    def _step(self) -> int:
        """The last step that rank 0 has trained; 0: none."""
        try:
            text = (self._ids / "rank-0.jsonl").read_text()
            return int(json.loads(text[: text.rindex("\n")].splitlines()[-1])["step"])
        except (OSError, ValueError, IndexError):
            return 0
