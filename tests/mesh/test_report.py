"""The demo's table, sentences, JSON and picture say what was measured."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from edl.mesh.demo.cores import Cores
from edl.mesh.demo.picture import draw
from edl.mesh.demo.report import DemoReport, as_json, caption, spread, table
from edl.tests.mesh.stand_ins import report, stream


def printed(shown: DemoReport, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table(shown))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_fits_a_terminal_and_holds_every_figure() -> None:
    text = printed(report(starved_s=1.5))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if "±" in line}
    assert rows["N-training"] == ["91.0", "±", "1.4", "500", "2000.0", "-", "-", "-", "-"]
    assert rows["Online"] == ["94.5", "±", "0.7", "200", "2000.0", "3000.0", "-", "-", "-"]
    expected = ["94.5", "±", "0.7", "400", "2000.0", "1000.0", "500.0", "1.5", "2"]
    assert rows["EDL-Dist"] == expected
    assert "…" not in text


def test_the_sentences_follow_the_figures() -> None:
    text = " ".join(caption(report()))
    assert "+3.5 points" in text
    assert "+4.0, +3.0" in text
    assert "2.00 times the speed of Online" in text
    assert "The student set the pace" in text
    assert "1 other core." in text
    assert "Of 40 batches 40 came, 0 twice, 0 out of order; every byte equals" in text


def test_what_went_wrong_is_not_hidden() -> None:
    text = " ".join(caption(report(stream("bb", duplicates=3, out_of_order=4), starved_s=2.5)))
    assert "3 twice, 4 out of order; every byte DIFFERS" in text
    assert "waited for labels 25% of the time" in text


def test_a_machine_with_one_core_is_called_one() -> None:
    one = Cores(frozenset({0}), frozenset({0}))
    assert any("gives one core" in line for line in caption(report(cores=one)))


def test_json_is_plain_and_complete() -> None:
    d = json.loads(json.dumps(as_json(report())))
    edl = d["edl_dist"]
    assert edl["delivered"] == edl["yielded"] == 40
    assert (edl["duplicates"], edl["out_of_order"]) == (0, 0)
    assert (edl["teachers_killed"], edl["teachers_added"], edl["resends"]) == (1, 1, 2)
    assert edl["stream_sha256"] == edl["reference_sha256"] == "aa"
    assert [event["kind"] for event in edl["events"]] == ["kill", "resent", "start", "join"]
    assert list(d["modes"]) == ["n_training", "online", "edl_dist"]
    assert d["modes"]["n_training"]["accuracy"] == [0.90, 0.92]
    assert d["modes"]["edl_dist"]["samples_per_s"] == 400
    assert d["modes"]["online"]["core_seconds_per_sample"]["all"] == 0.005
    assert d["gain"]["by_seed"] == pytest.approx([0.04, 0.03])


def test_the_reference_is_the_stream_that_was_labelled_without_the_mesh() -> None:
    edl = as_json(report(stream("bb")))["edl_dist"]
    assert (edl["stream_sha256"], edl["reference_sha256"]) == ("bb", "aa")


def test_one_seed_has_no_spread() -> None:
    assert spread([0.9]) == 0
    assert "90.0 ± 0.0" in printed(report(seeds=1))


def test_the_picture_is_a_png_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    draw(report(), path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["picture"]
