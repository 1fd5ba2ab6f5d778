"""`edl demo` as a user runs it: all of it in short, its refusals, and Ctrl-C on its way."""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edl.supervise import Process, python_command, start

#: Only a demo that hangs takes longer: alone the short one takes less than 15 s, on a machine that
#: does many other things it took 100.
ENDS_WITHIN_S = 300.0
INTERRUPTED = 130
TERMINATED = 143


@contextmanager
def demo(cache: Path, *options: str) -> Iterator[Process]:
    process = start(
        python_command(
            "demo", "edl", "demo", "--quick", *options, env={"XDG_CACHE_HOME": str(cache)}
        )
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(ENDS_WITHIN_S)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Where a whole short demo has left its results."""
    folder = tmp_path_factory.mktemp("demo")
    options = ("--json", str(folder / "d.json"), "--picture", str(folder / "p.png"))
    with demo(cache, *options) as process:
        assert process.wait(ENDS_WITHIN_S) == 0, process.tail()
        (folder / "output").write_text("\n".join(process.tail(200)))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    return json.loads((folder / "d.json").read_text())


def test_every_batch_arrives_once_in_order_with_the_right_labels(found: Any) -> None:
    edl = found["edl_dist"]
    assert edl["delivered"] == edl["yielded"] == 240
    assert (edl["duplicates"], edl["out_of_order"]) == (0, 0)
    assert re.fullmatch("[0-9a-f]{64}", edl["stream_sha256"])
    assert edl["stream_sha256"] == edl["reference_sha256"]


def test_a_teacher_died_with_work_in_hand_and_another_came(found: Any) -> None:
    edl = found["edl_dist"]
    assert (edl["teachers_killed"], edl["teachers_added"]) == (1, 1)
    assert edl["resends"] >= 1
    batch_of = {event["kind"]: event["batch"] for event in edl["events"]}
    assert 80 <= batch_of["kill"] <= batch_of["start"]
    assert 160 <= batch_of["start"] <= batch_of["join"] <= 240


def test_every_mode_trained_every_student(found: Any) -> None:
    assert list(found["modes"]) == ["n_training", "online", "edl_dist"]
    for mode in found["modes"].values():
        assert len(mode["accuracy"]) == 2
        assert all(0.5 < value < 1 for value in mode["accuracy"])
        assert mode["samples_per_s"] > 0
        assert mode["core_seconds_per_sample"]["student"] > 0
    # The labels are the same to the last bit, and so are the students.
    assert found["modes"]["edl_dist"]["accuracy"] == found["modes"]["online"]["accuracy"]
    assert found["modes"]["edl_dist"]["core_seconds_per_sample"]["teachers"] > 0


def test_the_buffer_was_watched(found: Any) -> None:
    edl = found["edl_dist"]
    assert len(edl["timeline"]) == 240 // 5
    assert max(moment["volume_bytes"] for moment in edl["timeline"]) > 0
    assert 0 < edl["lower_bytes"] < edl["upper_bytes"]


def test_it_leaves_a_picture_and_says_where(folder: Path) -> None:
    assert (folder / "p.png").read_bytes()[:4] == b"\x89PNG"
    output = (folder / "output").read_text()
    assert f"Picture: {folder / 'p.png'}" in output
    assert "killed (SIGKILL) with" in output
    assert "N-training" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("option", "path", "line"),
    [
        ("--picture", "/nowhere/p.png", "edl: cannot write /nowhere/p.png: there is no folder"),
        ("--json", "/", "edl: cannot write /: it is a folder"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_line_and_2(
    cache: Path, option: str, path: str, line: str
) -> None:
    with demo(cache, option, path) as process:
        assert process.wait(ENDS_WITHIN_S) == 2
        assert len(process.tail()) == 1
        assert process.tail()[0].startswith(line)


@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        (signal.SIGINT, INTERRUPTED, "Load Paddle"),
        (signal.SIGINT, INTERRUPTED, "Mesh: coordinator"),
        pytest.param(signal.SIGINT, INTERRUPTED, "killed", marks=pytest.mark.nightly),
        (signal.SIGTERM, TERMINATED, "Train: EDL-Dist"),
        (signal.SIGINT, INTERRUPTED, None),
    ],
)
def test_a_signal_ends_it_in_order(
    folder: Path,
    cache: Path,
    tmp_path: Path,
    rng: random.Random,
    number: signal.Signals,
    code: int,
    moment: str | None,
) -> None:
    """At named moments and at one by chance; that nothing is left is checked for every test."""
    picture = tmp_path / "p.png"
    with demo(cache, "--picture", str(picture)) as process:
        if moment is None:
            process.wait(rng.uniform(0.8, 9.0))
        else:
            process.expect(moment, ENDS_WITHIN_S)
        process.send_signal(number)
        assert process.wait(ENDS_WITHIN_S) == code, process.tail()
        assert not any("Traceback" in line for line in process.tail(200))
        assert (process.tail(1) == ["edl: interrupted"]) == (code == INTERRUPTED)
    assert not picture.exists()
