"""`edl simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import typer

from edl.benchmarks.simulator import LARGE
from edl.mesh.files import read
from edl.mesh.simulate.cli import simulate
from edl.scheduler.simulator import Scenario
from edl.tests.cli_output import json_of, output_of, refusal_of

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "scenarios").glob("*.yaml"))
#: `edl simulate` alone: to put all commands together for each call takes longer than a run.
SIMULATE = typer.Typer()
SIMULATE.command()(simulate)
SMALL = """
seed: 3
duration_s: 20
sample_s: 0.5
students:
  - {name: s, count: 2, batch: 8, t_s_s: 12.5 ms, jitter: 0.05}
teachers:
  - {name: t, count: 5, t_t_s: 25 ms, jitter: 0.1, price_per_hour: 2}
faults:
  - {at_s: 8, group: t, kind: crash}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


run = partial(output_of, SIMULATE)
refused = partial(refusal_of, SIMULATE)


def test_what_is_printed_is_all_of_it_and_the_same_again(small: Path) -> None:
    text = run(small)
    for shown in ("2 students, 5 teachers, 20 s", "seed 3", "simulated, not measured", "s/0"):
        assert shown in text
    found, again = json_of(SIMULATE, small), json_of(SIMULATE, small)
    other = json_of(SIMULATE, small, "--seed", 4)
    assert found["scenario"]["students"][0]["t_s_s"] == 0.0125
    assert [student["name"] for student in found["students"]] == ["s/0", "s/1"]
    rates = [one["samples_per_s"] for one in found["students"]]
    assert found["samples_per_s"] == pytest.approx(sum(rates))
    assert found["cost"] == pytest.approx(2 * sum(t["there_s"] for t in found["teachers"]) / 3600)
    assert len(found["points"]) >= 40
    assert "crash" in {event["kind"] for event in found["happenings"]}
    assert {**found, "wall_s": 0} == {**again, "wall_s": 0}
    assert other["scenario"]["seed"] == 4
    assert other["trace_hash"] != found["trace_hash"]
    small.write_text(SMALL.replace("count: 2", "count: 30").replace("count: 5", "count: 40"))
    text = run(small)
    for shown in ("s (30): mean", "slowest: s/"):
        assert shown in text


def test_the_timeline_has_steps_requests_counters_and_events(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    batches = sum(student["batches"] for student in json_of(SIMULATE, small)["students"])
    run(small, "--trace", path)
    events = json.loads(path.read_text())
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    slices = [event for event in events if event["ph"] == "X"]
    steps = [event for event in slices if event["name"].startswith("step ")]
    assert len(steps) == batches
    assert len(slices) >= 2 * batches  # each was labelled
    ends: dict[tuple[int, int], float] = {}
    for event in slices:  # none begins before the one before it there is over
        track = event["pid"], event["tid"]
        assert event["ts"] >= ends.get(track, 0.0) - 0.01
        ends[track] = event["ts"] + event["dur"]
    assert {"volume (batches)", "samples/s"} <= {e["name"] for e in events if e["ph"] == "C"}
    assert any(event["name"].startswith("crash t/") for event in events)


def test_what_cannot_be_simulated_or_written_is_refused(small: Path, tmp_path: Path) -> None:
    assert "no such file" in refused(small.with_name("other.yaml"))
    assert "must end in .png, .svg or .pdf" in refused(small, "--plot", tmp_path / "run.bmp")
    for option, name in (("--plot", "run.png"), ("--trace", "run.json")):
        assert "there is no folder" in refused(small, option, tmp_path / "no" / name)
    assert "it is a folder" in refused(small, "--trace", tmp_path)
    small.write_text(SMALL.replace("duration_s: 20", "batches: 9").replace("count: 5", "count: 0"))
    assert "small.yaml: no student has trained anything" in refused(small)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_is_a_scenario(path: Path) -> None:
    scenario = read(path, Scenario)
    assert scenario.name
    assert path.stem != "large-mesh" or scenario == LARGE, "it is what the benchmark runs"
