"""An elastic training beside the mesh, and a node with another seed that tries to join it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
from collections.abc import Callable
from pathlib import Path

from ...runtime.errors import ProcessFailed
from ...runtime.supervise import Process, python_command, start, stop_all
from .processes import last_lines, wait_for
from .run_trace import ElasticTrainingResult

JOB_FILE = Path(__file__).with_name("elastic_training_job.py")
JOB = "chaos-training"
#: A node imports Paddle twice before its first step.
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0


class ElasticTraining:
    """A node that trains from `start` to `stop`. Does nothing if Paddle is not installed.

    Args:
        url: Redis URL.
        folder: folder for logs, checkpoints and the log of trained ids.

    Attributes:
        result: outcome of the training; None: it was not started, or not stopped yet.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._id_log = folder / "ids"
        self._nodes: list[Process] = []
        self.result: ElasticTrainingResult | None = None

    def start(self, check: Callable[[], None]) -> None:
        """Start a node; once it trains, start one with another seed and wait for its exit.

        Args:
            check: called while waiting; an exception from it ends the wait.

        Raises:
            ProcessFailed: the first node does not train, or the second one does not exit.
        """
        if importlib.util.find_spec("paddle") is None:
            return
        problem = "the elastic training does not start"
        node = self._start_node("node-1")
        wait_for(lambda: self._last_step() > 0, [node], START_TIMEOUT_S, problem, check)
        second = self._start_node("node-2", "--seed", 7)
        wait_for(lambda: not second.alive, [node], START_TIMEOUT_S, problem, check)

    def stop(self) -> None:
        """Stop the node, which writes a checkpoint. Idempotent. Raises ProcessFailed."""
        if not self._nodes or self.result is not None:
            return
        node, *others = self._nodes
        alive, steps = node.alive, self._last_step()
        with contextlib.suppress(ProcessFailed):  # `trouble` reports a node that does not end
            stop_all([node], STOP_TIMEOUT_S)
        stop_all(others, 0.0)
        trouble = ""
        if not alive:
            trouble = f"exited by itself: {last_lines(node)}"
        elif node.returncode != -signal.SIGTERM:
            trouble = f"exited with {node.returncode} after SIGTERM: {last_lines(node)}"
        for second in others:
            code, output = second.returncode or 0, " ".join(second.tail(1))
            self.result = ElasticTrainingResult(steps if alive else 0, trouble, code, output)

    def _start_node(self, name: str, *options: object) -> Process:
        command = python_command(
            name,
            "edl",
            *("student", "train", JOB_FILE, "--redis", self._url, "--job", JOB),
            *("--nodes", "1:2", "--epochs", 1000),
            *("--checkpoint", self._folder / "checkpoints", "--id-log", self._id_log, *options),
            log=self._folder / f"{name}.log",
        )
        self._nodes.append(start(command))
        return self._nodes[-1]

    def _last_step(self) -> int:
        """Return the last step that rank 0 has trained; 0: none."""
        try:
            text = (self._id_log / "rank-0.jsonl").read_text()
            return int(json.loads(text[: text.rindex("\n")].splitlines()[-1])["step"])
        except (OSError, ValueError, IndexError):
            return 0
