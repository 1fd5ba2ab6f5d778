"""The demo's report, its outputs and its progress, of a run that is made up."""

from __future__ import annotations

import errno
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from edl.distill_reader import ReaderStats
from edl.mesh.demo import cli, run
from edl.mesh.demo.cpu_cores import CoreAssignment
from edl.mesh.demo.edl_dist import BufferSample, EdlDistResult
from edl.mesh.demo.models import TeacherModel
from edl.mesh.demo.modes import Mode, ModeResult, StreamSummary
from edl.mesh.demo.progress_display import open_display
from edl.mesh.demo.report import DemoReport, as_json, results_table, summary_lines
from edl.mesh.demo.settings import DemoSettings
from edl.mesh.demo.teacher_churn import TeacherEvent
from edl.runtime.errors import UsageError
from edl.tests.cli_output import printed


def test_the_table_fits_a_terminal_and_holds_every_figure() -> None:
    text = printed(results_table(report(starved_s=1.5)), 80)
    rows = dict(" ".join(line.split()).split(" ", 1) for line in text.splitlines() if "±" in line)
    assert rows["N-training"] == "91.0 ± 1.4 500 2.50 200.0 - - - -"
    assert rows["EDL-Dist"] == "94.5 ± 0.7 400 2.00 225.0 100.0 50.0 1.5 2"
    assert "…" not in text
    assert "90.0 500 2.50" in " ".join(printed(results_table(report(seeds=1)), 80).split())


def test_the_sentences_follow_the_figures() -> None:
    plain = report()

    def n_training(**changes: Any) -> DemoReport:
        changed = replace(plain.modes["n_training"], **changes)
        return replace(plain, modes={**plain.modes, "n_training": changed})

    wrong = stream("bb", duplicates=3333, out_of_order=4444)
    on_gpu = replace(plain.settings, device="gpu:0")
    for made, figures in (
        (plain, ("+3.5", "2.00", "t_s = 200.0", "t_t = 300.0", "at most 1.67")),
        (report(wrong, starved_s=2.5), ("3333", "4444", "25%")),
        (
            replace(plain, cores=CoreAssignment.divide({0, 1, 2, 3})),
            ("on 3 other cores", "max(t_s, t_t / 2) = 200.0", "at most 2.50"),
        ),
        (n_training(seconds=4.0, student_core_s=4.0), ("speed changed by 125%",)),
        (n_training(seconds=16.0), ("used the student's core for up to 50%",)),
        (
            replace(plain, cores=CoreAssignment.divide({0})),
            ("one core", "no more than the speed of Online"),
        ),
        (replace(plain, settings=on_gpu), ("one GPU", "no more than the speed of Online")),
    ):
        text = " ".join(summary_lines(made))
        assert [figure for figure in figures if figure not in text] == []
    assert not any("Other programs" in line or "changed" in line for line in summary_lines(plain))
    assert summary_lines(report(stream("bb"))) != summary_lines(plain)


def test_json_is_plain_and_complete() -> None:
    d = json.loads(json.dumps(as_json(report(stream("bb")))))
    # The reference is the stream that was labelled without the mesh.
    assert (d["edl_dist"]["stream_sha256"], d["edl_dist"]["reference_sha256"]) == ("bb", "aa")
    assert d["modes"]["n_training"]["accuracy"] == [0.90, 0.92]
    assert d["modes"]["edl_dist"]["samples_per_s"] == 400
    assert d["modes"]["online"]["core_seconds_per_sample"]["all"] == 0.005
    assert d["expected"]["ratio_to_online"] == pytest.approx(5 / 3)
    assert d["reached"] == pytest.approx({"ratio_to_online": 2.0, "ratio_to_n_training": 0.8})
    assert d["gain"]["by_seed"] == pytest.approx([0.04, 0.03])


def stream(sha256: str = "aa", duplicates: int = 0, out_of_order: int = 0) -> StreamSummary:
    return StreamSummary(40, 4000, duplicates, out_of_order, sha256)


def report(
    edl_stream: StreamSummary | None = None, *, starved_s: float = 0.0, seeds: int = 2
) -> DemoReport:
    made = edl_stream or stream()
    edl = ModeResult("edl_dist", (0.94, 0.95)[:seeds], 10.0, 9.0, made, 4.0, 2.0, starved_s, 2)
    results: dict[Mode, ModeResult] = {
        "n_training": ModeResult("n_training", (0.90, 0.92)[:seeds], 8.0, 8.0, stream("00")),
        "online": ModeResult("online", (0.94, 0.95)[:seeds], 20.0, 8.0, stream(), 12.0),
        "edl_dist": edl,
    }
    timeline = tuple(BufferSample(float(at), 1024 * at % 4096, 3 - at % 2) for at in range(10))
    events = (
        TeacherEvent("kill", "teacher-2", 13, 3.0),
        TeacherEvent("join", "teacher-4", 33, 8.0),
    )
    reader = ReaderStats(yielded=40, delivered=40, upper_bytes=4096, lower_bytes=1024, resends=2)
    return DemoReport(
        DemoSettings(students=seeds, steps=20),
        CoreAssignment(frozenset({0}), frozenset({1})),
        TeacherModel(Path("teacher"), 0.985, cached=True),
        results,
        EdlDistResult(edl, reader, timeline, events, killed=1, added=1),
        seconds=60.0,
    )


def test_what_fits_on_a_full_disk_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(_: DemoReport, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(run, "draw", draw)
    with pytest.raises(UsageError, match=r"cannot write .*p\.png: No space left on device"):
        run.write_outputs(report(), tmp_path / "p.png", tmp_path / "d.json")
    assert json.loads((tmp_path / "d.json").read_text())["seconds"] == 60.0


def test_a_cache_is_used_if_it_can_be_written_and_else_replaced_for_this_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    with run.usable_cache(tmp_path / "a" / "b", said.append) as folder:
        assert folder == tmp_path / "a" / "b"
    assert (list(folder.iterdir()), said) == ([], [])
    with run.usable_cache(tmp_path / "file" / "cache", said.append) as folder:
        assert folder.is_dir()
        assert tmp_path not in folder.parents
    assert not folder.exists()
    assert len(said) == 1


def test_what_is_not_installed_is_named_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: object() if name == "sklearn" else None)
    with pytest.raises(UsageError, match=r"the demo needs paddle, psutil, matplotlib: .*\[demo\]"):
        cli.check_installed()


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_a_few_lines_or_a_bar_for_each_stage(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with open_display(console, lambda: None) as display:
        with display.stage("Train", 8) as stage:
            for done in range(1, 9):
                stage.note(f"n{done}")
                stage.reach(done)
            display.say("a teacher died")
        with display.stage("Load", 1) as stage:
            stage.reach(0, 4)
            stage.reach(4)
    text = out.getvalue()
    assert all(shown in text for shown in ("8/8", "4/4", "a teacher died"))
    assert terminal or len(text.splitlines()) == 8
