"""`edl chaos` as a user runs it: a minute of it, Ctrl-C on its way, its refusals."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl.supervise import Process, python_command, start

#: Start, settling and end, on a slow machine.
BESIDES_S = 200.0
INTERRUPTED = 130


@contextmanager
def chaos(*options: object) -> Iterator[Process]:
    process = start(python_command("chaos", "edl", "chaos", *options))
    try:
        yield process
    finally:
        process.kill()
        process.wait(BESIDES_S)


@pytest.mark.timeout(60 * 60 + 600)
@pytest.mark.parametrize("minutes", [1, pytest.param(60, marks=pytest.mark.nightly)])
def test_whatever_breaks_the_stream_is_the_one_without(
    tmp_path: Path, rng: random.Random, minutes: int
) -> None:
    seed = rng.randrange(1 << 32)
    file, logs = tmp_path / "chaos.json", tmp_path / "logs"
    with chaos("--minutes", minutes, "--seed", seed, "--json", file, "--logs", logs) as process:
        code = process.wait(60 * minutes + BESIDES_S)
    assert code == 0, "\n".join(process.tail(200))
    told = json.loads(file.read_text())
    assert told["seed"] == seed
    assert told["held"]
    assert len(told["invariants"]) == 8
    done = [fault for fault in told["faults"] if not fault["skipped"] and fault["effects"] != 0]
    assert len(done) >= 10 * minutes
    assert len({fault["kind"] for fault in done}) >= 8
    assert all(student["samples"] > 1000 for student in told["students"].values())


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_lies_are_found_out_and_honest_teachers_are_not(tmp_path: Path, rng: random.Random) -> None:
    file, seed = tmp_path / "chaos.json", rng.randrange(1 << 32)
    with chaos("--minutes", 5, "--seed", seed, "--deceive", "--json", file) as process:
        code = process.wait(60 * 5 + BESIDES_S)
    assert code == 0, "\n".join(process.tail(200))
    told = json.loads(file.read_text())
    assert any(fault["kind"] == "answer-other" and fault["effects"] for fault in told["faults"])


@pytest.mark.timeout(300)
def test_ctrl_c_ends_it_and_says_what_was_checked_so_far(tmp_path: Path) -> None:
    with chaos("--seed", 5, "--logs", tmp_path / "logs") as process:
        process.expect(r"s  (teacher|student|guest|manager|redis)", BESIDES_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(BESIDES_S) == INTERRUPTED
        said = process.tail(200)
    assert said[0] == "seed 5"
    assert any(line.startswith("ran ") and line.endswith("skipped") for line in said)
    assert any("of 300, interrupted" in line for line in said)
    held = [line for line in said if line.startswith("held")]
    for name in ("each id once, in order", "label = f(id)", "nothing is left behind"):
        assert any(name in line for line in held), said
    assert not any("whole again" in line for line in said), "it had no time to be"
    assert f"logs: {tmp_path / 'logs'}" in said
    assert said[-1] == "edl: interrupted"
    assert not any("Traceback" in line for line in said)


@pytest.mark.timeout(300)
def test_ctrl_c_while_the_mesh_starts_is_one_line() -> None:
    with chaos("--seed", 5) as process:
        process.expect("seed 5", BESIDES_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(BESIDES_S) == INTERRUPTED
        assert process.tail() == ["seed 5", "edl: interrupted"]


def test_what_cannot_work_is_one_line_and_2(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    for options, line in (
        (("--minutes", 0.01), "edl: a run of 0.6 s is too short for chaos"),
        (("--seed", 5, "--logs", tmp_path), f"edl: {tmp_path} is not empty"),
    ):
        with chaos(*options) as process:
            assert process.wait(BESIDES_S) == 2
            assert process.tail()[-1].startswith(line)
