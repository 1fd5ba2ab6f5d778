"""Programs that start others: killed at any moment they leave nothing, and Ctrl-C ends them."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psutil
import pytest

from edl.benchmarks.paced.teachers import CHEAP, paced
from edl.coordinator import Subscription
from edl.coordinator.calling.client import deploy
from edl.mesh.local import LocalMesh
from edl.proto import coordinator_pb2 as pb
from edl.runtime.interrupts import EXIT_INTERRUPTED
from edl.teacher.backends.selection import content_of
from edl.tests.runtime.programs import runs, shell_exit_code
from edl.tests.system.coordinator_process import edl_output
from edl.tests.system.teacher_process import unique
from edl.tests.system.test_students import JOB_FILE
from edl.tests.teacher import same_network
from edl.tests.waiting import DEADLINE_S, wait_until

NIGHTLY = os.environ.get("EDL_TEST_TIER") == "nightly"
#: Random moments at which each program is killed.
MOMENTS = 50 if NIGHTLY else 1

EXAMPLE = Path(__file__).parents[2] / "examples" / "mesh.yaml"
JOB = "kind: job\nname: killed\ncommand: sleep 1000\nmax_nodes: 2\n"
#: Trains a teacher for one epoch and caches it as that of `edl demo --quick`, which takes longer.
TRAIN_TEACHER = """
from dataclasses import replace
from edl.mesh.demo.digits import load_digits
from edl.mesh.demo.models import cache_key, obtain_teacher
from edl.mesh.demo.settings import DemoSettings
from edl.mesh.output import cache_folder

settings, folder = DemoSettings.quick(), cache_folder("demo")
digits, brief = load_digits(settings.size), replace(settings, teacher_epochs=1)
obtain_teacher(digits, brief, folder, fresh=False, on_step=lambda *_: None)
(folder / cache_key(digits, brief)).rename(folder / cache_key(digits, settings))
"""
BEGUN = "Ctrl-C is handled"
#: `python -m edl`, which says when it is no longer the interpreter that handles Ctrl-C.
EDL = f"""
from edl.cli import main
from edl.runtime.interrupts import exit_on_interrupt

exit_on_interrupt("edl")
print("{BEGUN}")
main()
"""
IGNORE_SIGINT = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")

Words = tuple[object, ...]


def descendants() -> set[int]:
    """All processes below this one, which is the parent of orphans."""
    return {one.pid for one in psutil.Process().children(recursive=True) if runs(one.pid)}


def describe(pid: int) -> str:
    try:
        return f"{pid}: {' '.join(psutil.Process(pid).cmdline())}"
    except psutil.NoSuchProcess:
        return f"{pid}, which has ended"


class Program:
    """One run of `edl ...` as the foreground job of a terminal; use as a context manager.

    Args:
        words: its arguments.
        log: file for its output.
        prefix: words of a program that executes it.
    """

    def __init__(self, words: Words, log: Path, prefix: tuple[str, ...] = ()) -> None:
        self._before, self._log = descendants(), log
        argv = (*prefix, sys.executable, "-P", "-u", "-c", EDL, *map(str, words))
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:  # the test has failed
            print(*self.output, sep="\n")
            self._process.kill()
            self._process.wait()

    @property
    def processes(self) -> set[int]:
        return descendants() - self._before

    @property
    def output(self) -> list[str]:
        return self._log.read_text().splitlines()

    def run_until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` holds, while the program runs."""

        def holds() -> bool:
            self.run_for(0.02)
            assert self._process.poll() is None, self.output
            return bool(condition())

        wait_until(holds)

    def run_until_started(self, sign: int | str, most_s: float = math.inf) -> None:
        """Wait until it has so many processes, or a line with `sign`; but at most `most_s`."""
        end_s = time.monotonic() + most_s

        def started() -> bool:
            if isinstance(sign, int):
                return len(self.processes) >= sign
            return any(sign in line for line in self.output)

        self.run_until(lambda: time.monotonic() >= end_s or started())

    def run_for(self, seconds: float) -> None:
        """Wait for `seconds`, or until it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """Kill it alone; all that it has started has to end by itself."""
        self._process.kill()
        self._process.wait()
        self._expect_gone()

    def press_ctrl_c(self) -> tuple[int, str]:
        """Signal its process group; return its exit code in a shell, and its last line."""
        os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(DEADLINE_S)
        self._expect_gone()
        return shell_exit_code(code), self.output[-1]

    def _expect_gone(self) -> None:
        def gone() -> bool:
            # Twice, as one may be forked amid the first look.
            return not any(self.processes for _ in range(2))

        try:
            wait_until(gone)
        except AssertionError:
            print(*self.output, sep="\n")
            left = [describe(pid) for pid in self.processes]
            raise AssertionError(f"it left {left}") from None


class Programs:
    """The programs: each method returns the words of one, and the sign that it has started all."""

    def __init__(self, mesh: LocalMesh, folder: Path, stack: ExitStack) -> None:
        self._url, self._folder, self._stack = mesh.url, folder, stack

    def up(self) -> tuple[Words, int]:
        """A coordinator with its Redis, two teachers with predictors, a student with its engine."""
        file = self._folder / "mesh.yaml"
        file.write_text(f"folder: {EXAMPLE.parent}\n{EXAMPLE.read_text()}")
        return ("up", file, "--keep"), 1 + 3 + 4 + 3

    def _service(self) -> str:
        """A service with a student: without one it has no teachers after some minutes."""
        service = unique("killed")
        student = Subscription(self._url, service, "student")
        student.start(lambda _: None)
        self._stack.callback(student.stop)
        student.report(pb.StudentReport(incarnation=1, want=2, needed=2, min=2))
        return service

    def local_agent(self) -> tuple[Words, int]:
        """Two teachers with their predictors."""
        service = self._service()
        words = ("--service", service, "--model", CHEAP, "--teachers", "min=2,max=2")
        options = " ".join(map(str, paced(0.01)))
        more = ("--redis", self._url, "--grace", 2, "--teacher-options", options)
        return ("agent", "--local", *words, *more), 1 + 4

    def machine_agent(self) -> tuple[Words, int]:
        """A teacher of a deployed service with its predictor."""
        service, model = self._service(), self._folder / "model"
        model.mkdir()
        same_network.write_onnx(model)
        url, content = f"file://{model}", content_of(str(model))
        request = pb.DeployRequest(service=service, model_url=url, content_id=content, min=1, max=1)
        deploy(self._url, request)
        withdraw = pb.DeployRequest(service=service, withdraw=True)
        self._stack.callback(deploy, self._url, withdraw)
        words = ("--machine", service, "--devices", "cpu", "--cache", self._folder / "cache")
        return ("agent", *words, "--redis", self._url, "--grace", 2), 1 + 2

    def jobs(self) -> tuple[Words, int]:
        """Two nodes, each under a guard."""
        file = self._folder / "job.yaml"
        file.write_text(JOB)
        edl_output("apply", "-f", file, url=self._url)
        words = ("--slots", 2, "--folder", self._folder / "jobs", "--redis", self._url)
        return ("agent", "jobs", *words), 1 + 4

    def node(self) -> tuple[Words, str]:
        """Two ranks, one after the other, that learn about the job; then one that trains."""
        words = (JOB_FILE, "--checkpoint", self._folder / "checkpoints", "--steps", 10**6)
        return ("student", "train", *words), f"/{10**6}  epoch"

    def demo(self) -> tuple[Words, int]:
        """A coordinator with its Redis, and two teachers with predictors.

        The reader's engine starts much later, after twice the time.
        """
        subprocess.run([sys.executable, "-P", "-c", TRAIN_TEACHER], check=True)
        words = ("--quick", "--students", 1, "--picture", self._folder / "demo.png")
        return ("demo", *words), 1 + 3 + 4


@pytest.fixture
def programs(
    shared_mesh: LocalMesh, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> Programs:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EDL_QUEUE", unique("killed"))
    return Programs(shared_mesh, tmp_path, stack)


every_program = pytest.mark.parametrize(
    "name", ["up", "local_agent", "machine_agent", "jobs", "node", "demo"]
)


@pytest.mark.timeout(2 * DEADLINE_S * (MOMENTS + 1))
@every_program
def test_nothing_outlives_a_killed_program(
    name: str, programs: Programs, tmp_path: Path, rng: random.Random
) -> None:
    """When all runs, and at random moments of its start and of 1.5 times as long after it."""
    words, sign = getattr(programs, name)()
    began_s = time.monotonic()
    with Program(words, tmp_path / "started.log") as program:
        program.run_until_started(sign)
        took_s = time.monotonic() - began_s
        print(f"{name}: {took_s:.2f} s, has started all")
        program.kill()
    for number in range(MOMENTS):
        with Program(words, tmp_path / f"{number}.log") as program:
            program.run_for(moment_s := rng.uniform(0.0, 2.5 * took_s))
            print(f"{name} {number}: {moment_s:.2f} s, {len(program.processes)} processes")
            program.kill()


@pytest.mark.timeout(8 * DEADLINE_S)
@every_program
def test_ctrl_c_ends_a_program_also_if_it_was_started_with_sigint_ignored(
    name: str, programs: Programs, tmp_path: Path, rng: random.Random
) -> None:
    """When all its processes run, and at a moment of its start; nightly each in both ways."""
    words, sign = getattr(programs, name)()
    ways = [(), IGNORE_SIGINT]
    rng.shuffle(ways)
    took_s = 0.0
    for prefix in ways if NIGHTLY else ways[:1]:
        began_s = time.monotonic()
        with Program(words, tmp_path / "ready.log", prefix) as program:
            program.run_until_started(sign)
            took_s = time.monotonic() - began_s
            assert program.press_ctrl_c() == (EXIT_INTERRUPTED, "edl: interrupted")
    for prefix in ways if NIGHTLY else ways[1:]:
        with Program(words, tmp_path / "starting.log", prefix) as program:
            program.run_until_started(BEGUN)
            program.run_for(moment_s := rng.uniform(0.0, took_s))
            print(f"{name} {prefix}: {moment_s:.2f} s of {took_s:.2f} s")
            assert program.press_ctrl_c() == (EXIT_INTERRUPTED, "edl: interrupted")
