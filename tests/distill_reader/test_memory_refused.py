"""The system gives no more memory: an error that says what to do, no hang, nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from edl.supervise import Command, Process, python_command, start
from edl.tests.distill_reader.memory_program import COUNT
from edl.tests.ground.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher

TRAINING_S = 60.0
BOUND_S = 5.0


@pytest.fixture(scope="module")
def teacher() -> Iterator[str]:
    teacher = ScriptedTeacher()
    yield teacher.address
    teacher.stop()


def ran(process: Process) -> tuple[int | None, list[str], list[int]]:
    """Wait for a training: its exit code, what it said, the batches it had."""
    try:
        engine = int(process.expect(r"engine (\d+)", TRAINING_S).group(1))
        code = process.wait(TRAINING_S)
        wait_gone([engine], BOUND_S)
    finally:
        process.stop()
    said = process.tail(2 * COUNT)
    return code, said, [int(line.split()[1]) for line in said if line.startswith("had ")]


def training(limit_mib: int, who: str, teacher: str) -> tuple[int | None, list[str], list[int]]:
    program = "edl.tests.distill_reader.memory_program"
    return ran(start(python_command("trainer", program, limit_mib, who, teacher)))


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
    program = "edl.tests.distill_reader.memory_program"
    process = start(python_command("trainer", program, 1, "both", teacher))
    assert process.wait(TRAINING_S) == 1
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
    program = "edl.tests.distill_reader.memory_program"
    command = python_command("trainer", program, 1 << 20, "engine", teacher)
    argv = without_shared_files(*command.argv)
    code, said, had = ran(start(Command("trainer", tuple(argv), env=command.env)))
    assert code == 0, said
    assert had == list(range(COUNT))
    assert said[-1] == "restarts 0"
