"""Processes of a chaos run, the proxies between them, and an elastic training beside them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...coordinator.embedded import free_port, server_command
from ...runtime.errors import ProcessFailed
from ...runtime.supervise import Command, Process, python_command, start, stop_all
from ..local import COORDINATOR_READY, TEACHER_READY, TeacherSpec
from .fault_plan import PROBABILITIES, ChaosSettings
from .proxy import BACKEND_HOST, ChaosProxy, StreamFilter
from .response_corruptor import ResponseCorruptor
from .run_trace import ElasticTrainingResult
from .student import MAX_ROWS, StudentConfig
from .synthetic_samples import MODEL, PROBABILITIES_MODEL, REFUSES, SERVICE

REDIS_READY = "Ready to accept connections"
START_TIMEOUT_S = 60.0
POLL_S = 0.1
STOP_TIMEOUT_S = 15.0
TRAINING_FILE = Path(__file__).with_name("elastic_training_job.py")
TRAINING_JOB = "chaos-training"
#: This is long, because a node imports Paddle twice before its first step.
TRAINING_START_TIMEOUT_S = 90.0
TRAINING_STOP_TIMEOUT_S = 30.0


def wait_for(
    condition: Callable[[], bool],
    processes: Collection[Process],
    timeout_s: float,
    problem: str,
    check: Callable[[], None],
) -> None:
    """Wait for a condition that these processes have to fulfil, and call `check` meanwhile.

    Raises:
        ProcessFailed: a process ended, or `timeout_s` passed. The message contains `problem`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        check()
        for one in processes:
            if not one.alive or time.monotonic() > deadline:
                raise ProcessFailed(f"{one.name}: {problem}: {last_lines(one)}")
        time.sleep(POLL_S)


def last_lines(process: Process) -> str:
    """Return the last two lines of a process's output, for messages."""
    return " | ".join(process.tail(2))


@dataclass(eq=False)
class RestartableProcess:
    """A process of the run that can be started again under the same name.

    Attributes:
        command: command of the process.
        ready_pattern: regular expression of the line that the process prints once it is ready.
    """

    command: Command
    ready_pattern: str
    _process: Process | None = None
    _ready: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start the process. Raises ProcessFailed."""
        ready = self._ready = threading.Event()

        def on_line(line: str) -> None:
            if re.search(self.ready_pattern, line):
                ready.set()

        self._process = start(self.command, echo=on_line)

    @property
    def process(self) -> Process:
        """The latest process, after the first start."""
        assert self._process is not None
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def is_ready(self) -> bool:
        """Whether the process is alive and has become ready."""
        return self.alive and self._ready.is_set()

    def wait_ready(self, check: Callable[[], None] | None = None) -> None:
        """Wait until the process is ready, and call `check` meanwhile. Raises ProcessFailed."""
        self.process.expect(self.ready_pattern, START_TIMEOUT_S, check)


@dataclass(eq=False)
class ProxiedTeacher(RestartableProcess):
    """A teacher behind proxies.

    Attributes:
        proxies: proxies between its servers (gRPC, own transport) and readers or managers.
        redis_proxy: proxy between the teacher and Redis.
        corruptor: corrupts its responses on the own transport.
    """

    proxies: tuple[ChaosProxy, ...] = field(kw_only=True)
    redis_proxy: ChaosProxy = field(kw_only=True)
    corruptor: ResponseCorruptor = field(kw_only=True)


class ChaosMesh:
    """All processes of a run, and the proxies between them. The caller has to call `close`.

    Args:
        settings: numbers of processes and their speeds.
        folder: folder for logs and for the files of students.
        began: `time.monotonic()` at time 0 of the students' records.

    Attributes:
        manager_proxy: proxy between students and the manager.
        teachers: teachers by name, including guests and misconfigured ones.
        processes: Redis ("redis"), the service manager ("manager") and the teachers by name.
        students: processes of students by name.
        student_configs: configurations of students by name.
        url: Redis URL without a proxy.
    """

    def __init__(self, settings: ChaosSettings, folder: Path, began: float) -> None:
        self._settings = settings
        self._folder = folder
        self._proxies: list[ChaosProxy] = []
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        self._redis_address = f"127.0.0.1:{port}"
        redis = replace(server_command(port), log=folder / "redis.log")
        self.manager_proxy = self._new_proxy("manager")
        names = (
            *settings.teacher_names,
            *settings.guest_names,
            *settings.misconfigured_names,
        )
        self.teachers = {name: self._new_teacher(name, number) for number, name in enumerate(names)}
        self.processes: dict[str, RestartableProcess] = {
            "redis": RestartableProcess(redis, REDIS_READY),
            "manager": RestartableProcess(self._manager_command(), COORDINATOR_READY),
            **self.teachers,
        }
        self.student_configs = {
            name: self._student_config(name, number, began)
            for number, name in enumerate(settings.student_names)
        }
        self.students: dict[str, Process] = {}

    def start(self, names: Sequence[str], check: Callable[[], None]) -> None:
        """Start some of `processes` together, and wait until they are ready.

        Args:
            names: names of the processes.
            check: called while waiting; an exception from it ends the wait.

        Raises:
            ProcessFailed: a process did not become ready.
        """
        for name in names:
            self.processes[name].start()
        for name in names:
            self.processes[name].wait_ready(check)

    def start_students(self) -> None:
        """Start all students. Raises ProcessFailed."""
        for name, config in self.student_configs.items():
            command = python_command(
                name,
                "edl.mesh.chaos.student",
                config.to_json(),
                log=self._folder / f"{name}.log",
            )
            self.students[name] = start(command)

    def stop_students(self) -> dict[str, str]:
        """Stop all students with SIGTERM; return why some did not exit cleanly, by their names."""
        troubles = {
            name: f"exited by itself: {last_lines(process)}"
            for name, process in self.students.items()
            if not process.alive
        }
        with contextlib.suppress(ProcessFailed):  # reported by `close`
            stop_all([one for one in self.students.values() if one.alive], STOP_TIMEOUT_S)
        for name, process in self.students.items():
            if name not in troubles and process.returncode != 0:
                troubles[name] = f"did not exit cleanly within {STOP_TIMEOUT_S:.0f} s of SIGTERM"
        return troubles

    def close(self) -> None:
        """Stop all processes and close the proxies. Idempotent. Raises ProcessFailed."""
        teachers = [one.process for one in self.teachers.values() if one.alive]
        try:
            stop_all([*self.students.values(), *teachers], self._settings.grace_s)
            for name in ("manager", "redis"):
                if self.processes[name].alive:
                    self.processes[name].process.stop()
        finally:
            for proxy in self._proxies:
                proxy.close()

    def _new_proxy(
        self,
        name: str,
        target: str | None = None,
        response_filter: Callable[[], StreamFilter] | None = None,
    ) -> ChaosProxy:
        proxy = ChaosProxy(name, target, response_filter=response_filter)
        self._proxies.append(proxy)
        return proxy

    def _manager_command(self) -> Command:
        return python_command(
            "manager",
            "edl",
            *("coordinator", "serve", "--redis", self.url, "--ttl", self._settings.ttl_s),
            *("--listen", f"{BACKEND_HOST}:{self.manager_proxy.port}"),
            *("--advertise", "127.0.0.1"),
            log=self._folder / "manager.log",
        )

    def _new_teacher(self, name: str, number: int) -> ProxiedTeacher:
        corruptor = ResponseCorruptor(self._settings.seed + number)
        grpc = self._new_proxy(name)
        transport = self._new_proxy(f"{name}-transport", response_filter=corruptor.new_filter)
        redis_proxy = self._new_proxy(f"{name}-redis", self._redis_address)
        spec = TeacherSpec(
            SERVICE,
            PROBABILITIES_MODEL if name == PROBABILITIES else MODEL,
            micro_batch=MAX_ROWS,
            ttl_s=self._settings.ttl_s,
            grace_s=self._settings.grace_s,
            options=(
                *("--backend", f"paced,rate={self._settings.teacher_rate}"),
                *("--listen", f"{BACKEND_HOST}:{grpc.port}", "--advertise", "127.0.0.1"),
                *("--transport-port", str(transport.port), "--http", "off"),
            ),
        )
        command = spec.command(
            name,
            f"redis://{redis_proxy.address}",
            log=self._folder / f"{name}.log",
            env={REFUSES: "1"} if name in self._settings.refusing_names else {},
        )
        return ProxiedTeacher(
            command,
            TEACHER_READY,
            proxies=(grpc, transport),
            redis_proxy=redis_proxy,
            corruptor=corruptor,
        )

    def _student_config(self, name: str, number: int, began: float) -> StudentConfig:
        config = StudentConfig(
            name,
            self.url,
            began,
            str(self._folder),
            step_s=1 / self._settings.student_rate,
            # Every other student lets teachers read its batches from shared memory, which bypasses
            # the proxies; the others send everything through sockets.
            shared_memory=number % 2 == 0,
        )
        # To find a lying teacher, a reader needs two honest teachers.
        return replace(config, teachers=3, compared=1.0) if self._settings.deceive else config


class ElasticTraining:
    """An elastic training beside the mesh, and a node with another seed that tries to join it.

    It trains from `start` to `stop`, or does nothing if Paddle is not installed.

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
        """Start a node. When it trains, start a second node, with another seed, and await its exit.

        Args:
            check: called while waiting; an exception from it ends the wait.

        Raises:
            ProcessFailed: the first node does not train, or the second node does not exit.
        """
        if importlib.util.find_spec("paddle") is None:
            return
        timeout_s = TRAINING_START_TIMEOUT_S
        node = self._start_node("node-1")
        problem = "the elastic training does not start"
        wait_for(lambda: self._last_step() > 0, [node], timeout_s, problem, check)
        second = self._start_node("node-2", "--seed", 7)
        problem = "the training ended, or the node with another seed did not"
        wait_for(lambda: not second.alive, [node], timeout_s, problem, check)

    def stop(self) -> None:
        """Stop the node, which writes a checkpoint. Idempotent. Raises ProcessFailed."""
        if not self._nodes or self.result is not None:
            return
        node, *others = self._nodes
        alive, steps = node.alive, self._last_step()
        with contextlib.suppress(ProcessFailed):  # `trouble` reports a node that does not end
            stop_all([node], TRAINING_STOP_TIMEOUT_S)
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
            *("student", "train", TRAINING_FILE, "--redis", self._url),
            *("--job", TRAINING_JOB, "--nodes", "1:2", "--epochs", 1000),
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
