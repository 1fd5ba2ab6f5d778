"""Nodes of a training as real processes: `edl student train`, and what they leave on the disk."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edl.supervise import Command, Process, start
from edl.tests.waiting import wait_until

JOB_FILE = Path(__file__).with_name("student_job.py")
NAME = "student_job"
#: A start takes seconds of each core, and other tests may run.
START_S = 250.0
END_S = 250.0


@dataclass
class Nodes:
    """The nodes of one job; its folder has checkpoints, id logs and calls of `on_scale`."""

    folder: Path
    options: tuple[object, ...] = ()
    job_file: Path = JOB_FILE
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    def start(self, *options: object) -> Process:
        argv = [sys.executable, "-P", "-m", "edl", "student", "train", self.job_file]
        argv += ["--checkpoint", self.folder / "checkpoints", "--id-log", self.ids]
        environment = {"EDL_TEST_SCALED": str(self.folder / "scaled"), **self.environment}
        if (pace := self.folder / "pace").exists():
            environment["EDL_TEST_PACE"] = str(pace)
        name, words = f"node-{len(self.processes)}", map(str, (*argv, *self.options, *options))
        log = self.folder / f"{name}.log"
        process = start(Command(name, tuple(words), env=environment, log=log))
        self.processes.append(process)
        return process

    def pace(self, step_s: float) -> None:
        """Set the seconds of each step; call it before the first start, too."""
        new = self.folder / "pace.new"
        new.write_text(str(step_s))
        new.replace(self.folder / "pace")  # a rank reads either the old or the new one

    @property
    def ids(self) -> Path:
        return self.folder / "ids"

    def last(self) -> tuple[int, int]:
        """Generation and step of the newest line of rank 0's id log; (0, 0): there is none."""
        try:
            text = (self.ids / "rank-0.jsonl").read_text()
            line = json.loads(text[: text.rindex("\n") + 1].splitlines()[-1])
        except (OSError, ValueError, IndexError):
            return 0, 0
        return int(line["generation"]), int(line["step"])

    def reach(self, generation: int, more: int = 1) -> None:
        """Wait until a generation, this one or a later, has made `more` steps."""
        wait_until(lambda: self.last()[0] >= generation, START_S)
        begun = self.last()[1]
        wait_until(lambda: self.last()[1] >= begun + more - 1, START_S)

    def rank(self, number: int, process: Process) -> int:
        """The process id of a rank, as its node said it last."""
        found = re.findall(rf"rank {number} is process (\d+)", "\n".join(process.tail(1000)))
        return int(found[-1])

    def restored(self) -> dict[int, int]:
        """Generation -> step of its checkpoint, as the nodes said it."""
        pattern = r"generation (\d+): \d+ ranks? on [^,].*?, from (?:the checkpoint of )?step (\d+)"
        text = "\n".join(line for process in self.processes for line in process.tail(1000))
        return {int(number): int(step) for number, step in re.findall(pattern, text)}

    def scaled(self) -> list[str]:
        """What `on_scale` was called with, by all ranks, in time."""
        file = self.folder / "scaled"
        return file.read_text().splitlines() if file.exists() else []

    def end(self, *, code: int = 0) -> None:
        """Wait until all have ended, with this exit code."""
        deadline = time.monotonic() + END_S
        for process in self.processes:
            found = process.wait(max(0.1, deadline - time.monotonic()))
            assert found == code, f"{process!r}: " + "\n".join(process.tail(60))

    def close(self) -> None:
        for process in self.processes:
            process.stop(grace_s=0.0)
