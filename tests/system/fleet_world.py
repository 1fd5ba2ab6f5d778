"""A fleet's queue and its runners as real processes, for tests of elastic jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from typer.testing import CliRunner

from edl.commands import app
from edl.coordinator.queue import QueueBoard, QueuedJob, open_queue
from edl.supervise import Process, python_command, start
from edl.tests.ground.programs import WAIT_S, wait_for
from edl.tests.system.redis_servers import redis_server

TTL_S = 3.0
#: What trainings train.
STUDENT = Path(__file__).with_name("student_job.py")


@dataclass
class World:
    """A queue, and the runners that a test starts."""

    url: str
    board: QueueBoard
    folder: Path
    runners: list[Process] = field(default_factory=list)

    def fleet(self, slots: int = 2, *options: object) -> Process:
        """Start a runner; it may have to wait for the queue."""
        given = ("--slots", slots, "--freeze", 0, "--ttl", TTL_S, "--folder", self.folder / "fleet")
        runner = start(
            python_command(
                "fleet", "edl", "fleet", "jobs", *given, "--coordinator", self.url, *options
            )
        )
        self.runners.append(runner)
        return runner

    def edl(self, *words: object) -> str:
        """What `edl job ...` prints."""
        argv = ["job", *map(str, words), "--coordinator", self.url]
        result = CliRunner().invoke(app, argv, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def status(self) -> str:
        """What `edl status` prints."""
        argv = ["status", "--coordinator", self.url]
        result = CliRunner().invoke(app, argv, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def file(self, name: str, command: str, **keys: object) -> Path:
        lines = [f"name: {name}", f"command: >-\n  {command}"]
        path = self.folder / f"{name}.yaml"
        path.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in keys.items())]))
        return path

    def training(self, name: str, options: str, *lines: str) -> Path:
        path = self.folder / f"{name}.yaml"
        train = f"train: {STUDENT} {options}"
        path.write_text("\n".join([f"name: {name}", train, *lines]))
        return path

    def job(self, name: str) -> QueuedJob:
        return next(job for job in self.board.jobs() if job.name == name)

    def reaches(self, name: str, state: str, running: int, within_s: float = WAIT_S) -> None:
        def there() -> bool:
            progress = self.job(name).progress
            return (progress.state, progress.running) == (state, running)

        wait_for(there, within_s)

    def printed(self, name: str) -> list[str]:
        return [line for piece in self.board.lines(name) for line in piece.body["lines"]]

    @contextmanager
    def reserved(self, slots: int) -> Iterator[re.Match[str]]:
        """Slots that a process of `edl job reserve` keeps; gives what it said of them."""
        words = ("job", "reserve", slots, "--name", "web", "--coordinator", self.url)
        service = start(python_command("reserve", "edl", *words))
        try:
            yield service.expect(r"(slot \d.*) free after ([\d.]+) s", 20)
        finally:
            assert service.stop(grace_s=10.0) == 0
            assert "given back" in service.tail()[-1]

    def pids(self, runner: Process) -> list[int]:
        return [child.pid for child in psutil.Process(runner.pid).children(recursive=True)]


@contextmanager
def new_world(folder: Path) -> Iterator[World]:
    """A queue in a Redis of its own; in the end no runner is left."""
    with redis_server() as (_, port):
        url = f"redis://127.0.0.1:{port}"
        world = World(url, open_queue(url), folder)
        try:
            yield world
        finally:
            for runner in world.runners:
                runner.stop(grace_s=20.0)
            world.board.close()
