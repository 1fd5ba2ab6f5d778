"""An elastic training beside the mesh, and a node with another seed that tries to join it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ...runtime.errors import ProcessFailed
from ...runtime.supervise import Process, python_command, start, stop_all
from .run_trace import ElasticTrainingResult

JOB_FILE = Path(__file__).with_name("elastic_training_job.py")
JOB = "chaos-training"
#: A node imports Paddle twice before its first step.
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
_POLL_S = 0.1


class ElasticTraining:
    """A node that trains from `start` to `stop`. Does nothing if Paddle is not installed.

    Args:
        url: Redis URL.
        folder: folder for logs, checkpoints and the log of trained ids.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._node: Process | None = None
        self._second: Process | None = None
        self._result: ElasticTrainingResult | None = None

    @property
    def result(self) -> ElasticTrainingResult | None:
        """Outcome of the training; None: it was not started, or not stopped yet."""
        return self._result

    def start(self, check: Callable[[], None]) -> None:
        """Start a node; once it trains, start one with another seed and wait for its exit.

        Args:
            check: called while waiting; an exception from it ends the wait.

        Raises:
            ProcessFailed: the first node does not train, or the second one does not exit.
        """
        if importlib.util.find_spec("paddle") is None:
            return
        self._node = self._start_node("node-1")
        self._wait(lambda: self._last_step() > 0, self._node, check)
        self._second = second = self._start_node("node-2", "--seed", 7)
        self._wait(lambda: not second.alive, self._node, check)

    def stop(self) -> None:
        """Stop the node, which writes a checkpoint. Idempotent. Raises ProcessFailed."""
        node, second = self._node, self._second
        if node is None or self._result is not None:
            return
        steps = self._last_step() if node.alive else 0
        alive = node.alive
        with contextlib.suppress(ProcessFailed):  # `_trouble` reports a node that does not end
            stop_all([node], STOP_TIMEOUT_S)
        stop_all([one for one in (second,) if one is not None], 0.0)
        self._result = ElasticTrainingResult(
            steps,
            self._trouble(node, alive),
            0 if second is None else second.returncode or 0,
            "it was not started" if second is None else " ".join(second.tail(1)),
        )

    def _trouble(self, node: Process, alive: bool) -> str:
        if not alive:
            return f"exited by itself: {' | '.join(node.tail(2))}"
        if node.returncode != -signal.SIGTERM:
            return f"exited with {node.returncode} after SIGTERM: {' | '.join(node.tail(2))}"
        return ""

    def _start_node(self, name: str, *options: object) -> Process:
        command = python_command(
            name,
            "edl",
            *("student", "train", JOB_FILE, "--redis", self._url, "--job", JOB),
            *("--nodes", "1:2", "--epochs", 1000),
            *("--checkpoint", self._folder / "checkpoints", "--id-log", self._id_log, *options),
            log=self._folder / f"{name}.log",
        )
        return start(command)

    def _wait(
        self, condition: Callable[[], bool], node: Process, check: Callable[[], None]
    ) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            check()
            if not node.alive or time.monotonic() > deadline:
                raise ProcessFailed(
                    f"the elastic training does not start: {' | '.join(node.tail(2))}"
                )
            time.sleep(_POLL_S)

    @property
    def _id_log(self) -> Path:
        return self._folder / "ids"

    def _last_step(self) -> int:
        """Return the last step that rank 0 has trained; 0: none."""
        try:
            text = (self._id_log / "rank-0.jsonl").read_text()
            return int(json.loads(text[: text.rindex("\n")].splitlines()[-1])["step"])
        except (OSError, ValueError, IndexError):
            return 0
