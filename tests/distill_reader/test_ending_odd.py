"""Trainers in odd surroundings: daemons, copies of themselves, processes that may have little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.supervise import start
from edl.tests.ground.programs import python
from edl.tests.scripted_teacher import ScriptedTeacher

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
WAIT_S = 60.0


@pytest.fixture(scope="module")
def teacher() -> Iterator[str]:
    teacher = ScriptedTeacher()
    yield teacher.address
    teacher.stop()


def said_by(code: str, teacher: str, folder: Path) -> tuple[str, int]:
    """What a program says of how things went, and its exit code."""
    trainer = start(python(BEGIN + code, teacher, folder / "note"))
    try:
        code_ = trainer.wait(WAIT_S)
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
