"""Trainings as processes: however they end, nothing stays behind, and killed ones go on."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.distill_reader.store.database import Database
from edl.distill_reader.store.exporting import verify
from edl.runtime.supervise import Command, python_command, start
from edl.tests.distill_reader.memory_program import COUNT
from edl.tests.distill_reader.trainer_program import EXIT_CODES, SIGNALS, SOURCES
from edl.tests.leaks import remove_paddle_segments
from edl.tests.runtime.programs import python, wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

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


#: Ctrl-C of a user who does not wait for the end.
AGAIN = "interrupted again and again"


def case(ending: str, source: str) -> Any:
    """Frameworks run with each ending at night only, as their workers end alike."""
    at_night = source != "plain" and ending not in ("breaks", "source raises", "killed")
    return pytest.param(ending, source, marks=[pytest.mark.nightly] if at_night else [])


@pytest.mark.parametrize(
    ("ending", "source"),
    [(AGAIN, "plain"), *(case(ending, source) for ending in EXIT_CODES for source in SOURCES)],
)
def test_ending(ending: str, source: str, teacher: str, tmp_path: Path) -> None:
    folder = [tmp_path] if source == "plain" else []
    trainer = start(program("trainer", ending, teacher, source, *folder))
    try:
        told = trainer.expect(r"descendants (.+)", DEADLINE_S).group(1)
        descendants = [int(pid) for pid in told.split()]
        assert len(descendants) >= (5 if folder else 3), "engines, workers"
        if ending in SIGNALS:
            trainer.send_signal(SIGNALS[ending])
        while ending == AGAIN and trainer.alive:
            trainer.send_signal(signal.SIGINT)
            trainer.wait(0.05)
        code = trainer.wait(BOUND_S)
        wait_gone(descendants, timeout_s=BOUND_S)
        if ending == "killed":
            remove_paddle_segments(descendants)
        if ending == AGAIN:
            assert code in (-signal.SIGINT, 1)
        else:
            assert code == EXIT_CODES[ending], trainer.tail(50)
            check_output(ending, trainer.tail(80))
    finally:
        trainer.stop()
    if folder:
        check_files(*folder)


def check_output(ending: str, said: list[str]) -> None:
    assert any(PRINTED.get(ending, "") in line for line in said), said
    if ending not in PRINTED and ending != "killed":  # of which workers may complain
        assert not any("Traceback" in line for line in said), said
    assert not any("Exception ignored" in line for line in said), said


def check_files(folder: Path) -> None:
    """The trace and the store of the reader with all options are complete."""
    assert json.loads((folder / "run.json").read_text())[-1]["name"] == "the end"
    assert not (folder / "labels.edl-wal").exists(), "the store was closed"
    with Database(str(folder / "labels.edl")) as database:
        assert verify(database, lambda rows: None) > 0


# --- odd programs

#: What each program begins with: a reader, and where it says how things went.
BEGIN = """
    import os, resource, sys
    import numpy as np
    from edl.distill_reader import DistilReader
    from edl.runtime.errors import EdlError, UsageError
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
        code_ = trainer.wait(DEADLINE_S)
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


def test_forked_copies_are_refused_and_end_nothing(teacher: str, tmp_path: Path) -> None:
    code = """
    def check_refused(use):
        try:
            use()
        except UsageError as error:
            assert "another process" in str(error)
        else:
            os._exit(1)

    with read() as reader:
        iterator = iter(reader)
        batches = [next(iterator)]
        if not (pid := os.fork()):
            check_refused(lambda: iter(reader))
            check_refused(lambda: next(iterator))
            reader.close()
            sys.exit(7)  # runs what is registered for the end of an interpreter
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        check_epoch(source, [*batches, *iterator])
        say("copy", code, "restarts", reader.stats.engine_restarts)
    """
    assert said_by(code, teacher, tmp_path) == ("copy 7 restarts 0", 0)


#: Each of them small enough to be met at another step of a reader's beginning, or later.
LIMITS = [*(("NOFILE", count) for count in (10, 13, 16, 20, 32)), ("FSIZE", 1 << 20)]


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
        until = time.monotonic() + 180  # threads that end close what they had a little later
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


def training(limit_mib: int, who: str, teacher: str) -> tuple[int | None, list[str], list[int]]:
    """The exit code of a training, its output, and the numbers of the batches that it had."""
    process = start(program("memory", limit_mib, who, teacher))
    try:
        engine = int(process.expect(r"engine (\d+)", DEADLINE_S).group(1))
        code = process.wait(DEADLINE_S)
        wait_gone([engine], BOUND_S)
    finally:
        process.stop()
    said = process.tail(2 * COUNT)
    return code, said, [int(line.split()[1]) for line in said if line.startswith("had ")]


def test_a_ring_that_may_not_grow_is_an_error_of_the_loop(teacher: str) -> None:
    code, said, had = training(6, "trainer", teacher)
    assert code == 1, said
    assert had == list(range(len(had))), "what was pulled before comes first"
    assert len(had) >= 3
    assert said[-1].startswith(
        "edl.runtime.errors.MemoryRefused: the system gives the reader no more than"
    )
    assert "ulimit -f" in said[-1]


def test_an_engine_whose_memory_ends_is_followed_by_another_and_says_why(teacher: str) -> None:
    code, said, had = training(40, "engine", teacher)
    assert code == 0, said
    assert had == list(range(COUNT))
    assert said[-1] == "restarts 1"
    (warning,) = [line for line in said if "the reader's engine ended" in line]
    assert "MemoryRefused: the system gives the reader no more than" in warning


# --- killed trainings


def trained(checkpoint: Path, teacher: str, kills: list[int]) -> Any:
    """What a training saw that is killed after so many steps of each of its lives."""
    for steps in [*kills, None]:
        trainer = start(program("resumed", checkpoint, teacher, 2, steps or 0))
        try:
            if steps is None:
                trainer.expect("trained", DEADLINE_S)
                assert trainer.wait(BOUND_S) == 0
                continue
            trainer.expect(f"step {steps}$", DEADLINE_S)
            trainer.send_signal(signal.SIGSTOP)  # so that it forks no more workers
            children = psutil.Process(trainer.pid).children(recursive=True)
            descendants = [child.pid for child in children]
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(BOUND_S)
            wait_gone(descendants)
            remove_paddle_segments(descendants)
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
