"""`edl checkpoint`: list, verify and prune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from edl.errors import CheckpointDamaged, UsageError
from edl.student.checkpoint import Repository
from edl.student.checkpoint.cli import app
from edl.tests.student.checkpoint.samples import contents_of


@pytest.fixture
def place(tmp_path: Path) -> Path:
    repository = Repository(str(tmp_path / "job"), keep=9)
    for step in (10, 20, 30):
        repository.save(contents_of(step))
    return tmp_path / "job"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)


def told(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def spoil(place: Path, step: int) -> Path:
    path = place / f"step-{step:012d}" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


def test_list(place: Path) -> None:
    listed = told("list", place)
    assert [one["step"] for one in listed] == [30, 20, 10]
    assert {one["world"] for one in listed} == {2}
    assert listed[0]["location"] == str(place / "step-000000000030")
    assert all(one["bytes"] > contents_of(1).nbytes and not one["problem"] for one in listed)
    shown = run("list", place).stdout
    for words in ("step-000000000030", "0.5", "yes", "world", " s "):
        assert words in shown


def test_list_shows_damaged_checkpoints(place: Path) -> None:
    (place / "step-000000000020" / "state.json").unlink()
    assert [one["problem"] for one in told("list", place)] == ["", "state.json is missing", ""]
    assert "no: " in run("list", place).stdout


def test_there_is_none(tmp_path: Path) -> None:
    assert told("list", tmp_path / "job") == []
    assert "there is no checkpoint" in run("list", tmp_path / "job").stdout
    with pytest.raises(UsageError, match="there is no checkpoint"):
        run("verify", tmp_path / "job")
    assert not list(tmp_path.iterdir()), "looking makes nothing"


def test_verify(place: Path) -> None:
    assert [one["problem"] for one in told("verify", place)] == [""] * 3
    spoil(place, 20)
    with pytest.raises(CheckpointDamaged, match="1 of 3 checkpoints are damaged") as raised:
        run("verify", place)
    assert raised.value.exit_code == 65
    assert [one["problem"] for one in told("list", place)] == [""] * 3, "lengths are right"
    shown = CliRunner().invoke(app, ["verify", str(place)]).stdout
    assert "step-000000000020 is damaged: model.safetensors: it fails its checksum" in shown
    assert "step-000000000030: whole" in shown


def test_verify_one_of_them(place: Path) -> None:
    spoil(place, 20)
    (one,) = told("verify", place / "step-000000000030")
    assert one["step"] == 30
    for step, error in ((20, CheckpointDamaged), (40, UsageError)):
        with pytest.raises(error):
            run("verify", place / f"step-{step:012d}")


def test_prune(place: Path) -> None:
    assert "would remove" in run("prune", place, "--keep", 2, "--dry-run").stdout
    assert len(told("list", place)) == 3
    assert [one["step"] for one in told("prune", place, "--keep", 1)] == [10, 20]
    assert [one["step"] for one in told("list", place)] == [30]
    assert "nothing to remove" in run("prune", place, "--keep", 1).stdout
    assert run("prune", place, "--keep", 0).exit_code == 2
