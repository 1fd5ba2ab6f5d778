"""Trainings as processes: however they end, nothing stays behind, and killed ones go on."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.distill_reader.store.database import Database
from edl.distill_reader.store.looking import verify
from edl.supervise import Command, Process, python_command, start
from edl.tests.distill_reader.memory_program import COUNT
from edl.tests.distill_reader.trainer_program import EXIT_CODES, SIGNALS, SOURCES
from edl.tests.ground.programs import python, wait_gone
from edl.tests.leaks import remove_paddles_segments
from edl.tests.scripted_teacher import ScriptedTeacher

pytestmark = pytest.mark.system

START_S = 90.0
#: Far longer than an end takes, and far shorter than anything it could wait for.
BOUND_S = 30.0
PROGRAMS = "edl.tests.distill_reader"


@pytest.fixture(scope="module")
def teacher() -> Iterator[str]:
    teacher = ScriptedTeacher()
    teacher.parameters = {"content_id": "model-1"}
    yield teacher.address
    teacher.stop()


def program(name: str, *arguments: object) -> Command:
    return python_command("trainer", f"{PROGRAMS}.{name}_program", *arguments)


# --- one reader, and what a framework forks for its source

#: What is printed on the way out; nothing else may be.
PRINTED = {"raises": "RuntimeError", "source raises": "Broken", "interrupted": "KeyboardInterrupt"}


def case(ending: str, source: str) -> Any:
    """Those of PyTorch in full at night only, as they are like Paddle's."""
    at_night = source == "torch" and ending not in ("breaks", "source raises", "killed")
    return pytest.param(ending, source, marks=[pytest.mark.nightly] if at_night else [])


@pytest.mark.parametrize(
    ("ending", "source"), [case(ending, source) for ending in EXIT_CODES for source in SOURCES]
)
def test_ending(ending: str, source: str, teacher: str) -> None:
    trainer = start(program("trainer", ending, teacher, source))
    try:
        told = trainer.expect(r"descendants (.+)", START_S).group(1)
        descendants = [int(pid) for pid in told.split()]
        assert len(descendants) >= (1 if source == "plain" else 3), "an engine, workers"
        if ending in SIGNALS:
            trainer.send_signal(SIGNALS[ending])
        assert trainer.wait(BOUND_S) == EXIT_CODES[ending], trainer.tail(50)
        wait_gone(descendants, timeout_s=BOUND_S)
        if ending == "killed":
            remove_paddles_segments(descendants)
        said = trainer.tail(80)
        assert any(PRINTED.get(ending, "") in line for line in said), said
        if ending not in PRINTED and ending != "killed":  # of which workers may complain
            assert not any("Traceback" in line for line in said), said
        assert not any("Exception ignored" in line for line in said), said
    finally:
        trainer.stop()


# --- readers in each stage


def by(number: signal.Signals) -> Callable[[Process], None]:
    return lambda trainer: trainer.send_signal(number)


def again_and_again(trainer: Process) -> None:
    """Ctrl-C of a user who does not wait for the end."""
    while trainer.alive:
        trainer.send_signal(signal.SIGINT)
        trainer.wait(0.05)


def by_itself(_: Process) -> None: ...


#: How to cause each ending, and its exit codes.
ENDINGS: dict[str, tuple[Callable[[Process], None], tuple[int, ...]]] = {
    "killed": (by(signal.SIGKILL), (-signal.SIGKILL,)),
    "interrupted": (by(signal.SIGINT), (-signal.SIGINT,)),
    "interrupted again and again": (again_and_again, (-signal.SIGINT, 1)),
    "terminated": (by(signal.SIGTERM), (-signal.SIGTERM,)),
    "hung up": (by(signal.SIGHUP), (-signal.SIGHUP,)),
    "exits": (by_itself, (3,)),
    "exits at once": (by_itself, (4,)),
    "raises": (by_itself, (1,)),
    "falls off": (by_itself, (0,)),
}
EACH_TIME = ("killed", "interrupted again and again", "exits")


@pytest.mark.parametrize(
    "ending",
    [pytest.param(one, marks=[] if one in EACH_TIME else [pytest.mark.nightly]) for one in ENDINGS],
)
def test_ending_in_every_stage_at_once(ending: str, teacher: str, tmp_path: Path) -> None:
    trainer = start(program("stages", ending, teacher, tmp_path))
    how, codes = ENDINGS[ending]
    try:
        trainer.expect("^ready$", START_S)
        told = [line.split(maxsplit=1) for line in trainer.tail(50) if line[:1].isdigit()]
        stages = {int(pid): stage for pid, stage in told}
        assert len(stages) == 7
        how(trainer)
        assert trainer.wait(BOUND_S) in codes, trainer.tail(50)
        wait_gone(list(stages), timeout_s=BOUND_S)
    finally:
        trainer.stop()
    assert json.loads((tmp_path / "run.json").read_text())[-1]["name"] == "the end"
    assert not (tmp_path / "labels.edl-wal").exists(), "the store was closed"
    with Database(str(tmp_path / "labels.edl")) as database:
        assert verify(database, lambda rows: None) > 0


# --- odd programs

#: What each program begins with: a reader, and where it says how things went.
BEGIN = """
    import os, resource, sys
    import numpy as np
    from edl.distill_reader import DistilReader
    from edl.errors import EdlError
    from edl.tests.distill_reader.readers import Batches, check_epoch

    source, note = Batches(30), sys.argv[2]

    def say(*words):
        with open(note + ".part", "w") as file:
            print(*words, file=file)
        os.replace(note + ".part", note)

    def read():
        return DistilReader(source, service="s", teachers=[sys.argv[1]])
"""


def said_by(code: str, teacher: str, folder: Path) -> tuple[str, int]:
    """What a program says of how things went, and its exit code."""
    trainer = start(python(BEGIN + code, teacher, folder / "note"))
    try:
        code_ = trainer.wait(START_S)
        assert code_ is not None, "it hangs"
        assert (folder / "note").exists(), "\n".join(trainer.tail(100))
        return (folder / "note").read_text().strip(), code_
    finally:
        trainer.stop()


def test_a_daemon_without_standard_streams(teacher: str, tmp_path: Path) -> None:
    code = """
    for fd in (0, 1, 2):
        os.close(fd)
    with read() as reader:
        check_epoch(source, list(reader))
        say("restarts", reader.stats.engine_restarts)
    """
    assert said_by(code, teacher, tmp_path) == ("restarts 0", 0)


def test_a_copy_that_ends_in_order_ends_nothing_of_the_trainer(
    teacher: str, tmp_path: Path
) -> None:
    code = """
    with read() as reader:
        iterator = iter(reader)
        batches = [next(iterator)]
        if not (pid := os.fork()):
            sys.exit(7)  # and with it goes whatever is to be done at the end of an interpreter
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        check_epoch(source, [*batches, *iterator])
        say("copy", code, "restarts", reader.stats.engine_restarts)
    """
    assert said_by(code, teacher, tmp_path) == ("copy 7 restarts 0", 0)


#: Each of them small enough to be met at another step of a reader's beginning, or later.
LIMITS = [
    *(("NOFILE", count) for count in (10, 13, 16, 20, 32)),
    ("FSIZE", 1 << 20),
]


def test_what_the_system_refuses_is_said(teacher: str, tmp_path: Path) -> None:
    code = """
    import gc, time

    def held():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    said = []
    for what, most in %r:
        name = getattr(resource, "RLIMIT_" + what)
        before = resource.getrlimit(name)
        descriptors = held()
        resource.setrlimit(name, (most, before[1]))
        try:
            with read() as reader:
                check_epoch(source, list(reader))
            said.append("read")
        except EdlError as error:
            said.append(type(error).__name__)
        finally:
            resource.setrlimit(name, before)
        until = time.monotonic() + 10  # threads that end close what they had a little later
        while held() > descriptors:
            assert time.monotonic() < until, (what, most)
            time.sleep(0.01)
    say(*said)
    """
    warm = "\n    with read() as reader:\n        list(reader)\n"
    said, code_ = said_by(warm + code % (LIMITS,), teacher, tmp_path)
    assert code_ == 0
    assert set(said.split()) <= {"read", "ProcessFailed", "EngineLost"}
    assert said.split()[0] == said.split()[-1] == "ProcessFailed"


# --- the system gives no more memory


def ran(process: Process) -> tuple[int | None, list[str], list[int]]:
    """Wait for a training: its exit code, what it said, the batches it had."""
    try:
        engine = int(process.expect(r"engine (\d+)", START_S).group(1))
        code = process.wait(START_S)
        wait_gone([engine], BOUND_S)
    finally:
        process.stop()
    said = process.tail(2 * COUNT)
    return code, said, [int(line.split()[1]) for line in said if line.startswith("had ")]


def training(limit_mib: int, who: str, teacher: str) -> tuple[int | None, list[str], list[int]]:
    return ran(start(program("memory", limit_mib, who, teacher)))


@pytest.mark.parametrize("who", ["trainer", "both"])
def test_a_ring_that_may_not_grow_is_an_error_in_the_loop_that_says_what_to_do(
    who: str, teacher: str
) -> None:
    code, said, had = training(6, who, teacher)
    assert code == 1, said
    assert had == list(range(len(had))), "what was pulled before comes first"
    assert len(had) >= 3
    assert said[-1].startswith("edl.errors.MemoryRefused: the system gives the reader no more than")
    assert "ulimit -f" in said[-1]


def test_an_engine_whose_memory_ends_is_followed_by_another_and_says_why(teacher: str) -> None:
    code, said, had = training(40, "engine", teacher)
    assert code == 0, said
    assert had == list(range(COUNT))
    assert said[-1] == "restarts 1"
    (warning,) = [line for line in said if "the reader's engine ended" in line]
    assert "MemoryRefused: the system gives the reader no more than" in warning


def test_a_ring_that_may_not_even_begin(teacher: str) -> None:
    process = start(program("memory", 1, "both", teacher))
    assert process.wait(START_S) == 1
    last = process.tail()[-1]
    assert last.startswith("edl.errors.ProcessFailed: the system does not let the reader start")


# --- a full /dev/shm


def without_shared_files(*argv: str) -> list[str]:
    """A command that sees a /dev/shm of its own, in which there is no room at all."""
    inner = "mount -t tmpfs -o size=4k none /dev/shm && echo full > /dev/shm/full"
    inner += ' && ! sh -c "echo more > /dev/shm/more" 2>/dev/null && exec "$@"'
    own = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    return ["unshare", *own, "sh", "-c", inner, "sh", *argv]


@pytest.fixture
def full_shared_memory() -> None:
    """Skips where the system lets nobody have mounts of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1)")
    tried = subprocess.run(without_shared_files("true"), capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no mounts of its own: {tried.stderr.strip()}")


@pytest.mark.usefixtures("full_shared_memory")
def test_a_full_dev_shm_is_no_obstacle(teacher: str) -> None:
    """Memory files have no names and need no room there."""
    command = program("memory", 1 << 20, "engine", teacher)
    argv = without_shared_files(*command.argv)
    code, said, had = ran(start(Command("trainer", tuple(argv), env=command.env)))
    assert code == 0, said
    assert had == list(range(COUNT))
    assert said[-1] == "restarts 0"


# --- killed trainings


def trained(checkpoint: Path, teacher: str, kills: list[int]) -> Any:
    """What a training saw that is killed after so many steps of each of its lives."""
    for steps in [*kills, None]:
        trainer = start(program("resumed", checkpoint, teacher, 2, steps or 0))
        try:
            if steps is None:
                trainer.expect("trained", START_S)
                assert trainer.wait(BOUND_S) == 0
                continue
            trainer.expect(f"step {steps}$", START_S)
            trainer.send_signal(signal.SIGSTOP)  # so that it forks no more workers
            children = psutil.Process(trainer.pid).children(recursive=True)
            descendants = [child.pid for child in children]
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(BOUND_S)
            wait_gone(descendants)
            remove_paddles_segments(descendants)
        finally:
            trainer.stop()
    return json.loads(checkpoint.read_text())["seen"]


def test_a_training_that_is_killed_sees_what_one_sees_that_is_not(
    tmp_path: Path, teacher: str, rng: random.Random
) -> None:
    whole = trained(tmp_path / "whole", teacher, [])
    for epoch in whole:
        assert sorted(i for ids, _ in epoch for i in ids) == list(range(50))
    kills = [rng.randrange(1, 8), rng.randrange(1, 12)]
    assert trained(tmp_path / "killed", teacher, kills) == whole, kills


#: A test run that starts a trainer, and is killed before it can stop it.
RUN = """
    import sys
    from edl.supervise import python_command, start
    trainer = start(python_command("trainer", *sys.argv[1:]))
    trainer.expect("^trains$", 60)
    print("trainer", trainer.pid, flush=True)
    trainer.wait()
"""


def test_a_trainer_and_its_engine_end_with_the_run_that_started_them(
    teacher: str, tmp_path: Path
) -> None:
    run = start(python(RUN, f"{PROGRAMS}.traced_program", teacher, tmp_path / "trace.json"))
    try:
        trainer = psutil.Process(int(run.expect(r"^trainer (\d+)", START_S)[1]))
        family = [trainer.pid, *(child.pid for child in trainer.children(recursive=True))]
        assert len(family) >= 2, "an engine"
        run.kill()
        wait_gone(family)
    finally:
        run.stop()
