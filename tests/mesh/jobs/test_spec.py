"""A job's file: what a node of it runs, and what is said of a file that describes none."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from edl.mesh.jobs.spec import QueuedJobSpec, checked_job
from edl.mesh.resources.documents import read_documents
from edl.runtime.errors import UsageError
from edl.tests.deploy.command_lines import check

EXAMPLES = Path(__file__).parents[3] / "examples" / "jobs"


def written(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(f"{text}kind: job\n")
    return file


def read_job(file: Path) -> QueuedJobSpec:
    ((path, spec),) = read_documents([file])
    assert isinstance(spec, QueuedJobSpec)
    return checked_job(spec, path)


def test_a_training_gets_what_the_fleet_says(tmp_path: Path) -> None:
    (tmp_path / "my job.py").touch()
    text = "name: digits\ntrain: \"'my job.py' --epochs 3\"\nmax_nodes: 4\ngrace_s: 2 min\n"
    spec = read_job(written(tmp_path, text))
    assert (spec.folder, spec.grace_s, spec.trains) == (tmp_path, 120.0, True)
    argv = spec.arguments(Path("/own"))
    own = ("--job", "digits", "--nodes", "1:4", "--checkpoint", "/own/checkpoints")
    assert argv[5:] == ("student", "train", "my job.py", "--epochs", "3", *own)
    check(["edl", *argv[5:]], {"EDL_COORDINATOR": "redis://127.0.0.1:1"})
    named = QueuedJobSpec("a", train="j.py --steps 3 --checkpoint=s3://runs/a")
    assert "--checkpoint" not in named.arguments(Path("/own"))
    spec = read_job(written(tmp_path, "name: a\ncommand: prog 'two words' $HOME *\nfolder: ..\n"))
    assert spec.arguments(tmp_path) == ("prog", "two words", "$HOME", "*"), "through no shell"
    assert spec.folder == tmp_path.parent


def test_a_spec_travels_as_json(tmp_path: Path) -> None:
    spec = QueuedJobSpec(
        "a", command="x", max_nodes=3, priority=-2, env={"A": "1"}, folder=tmp_path,
        image="i:1", resources={"cpu": 2},
    )  # fmt: skip
    alone = QueuedJobSpec.from_json(json.loads(json.dumps(spec.to_json())))
    numbers: dict[str, Any] = {"gpus": 3, "max_nodes": 2.5, "min_nodes": True, "retries": None}
    others = {**numbers, "train": "y", "priority": "high", "env": {"A": ["x"]}, "grace_s": math.nan}
    for strange in ({"name": "a"}, *({**spec.to_json(), key: others[key]} for key in others)):
        with pytest.raises(UsageError, match="submit it again"):
            QueuedJobSpec.from_json(strange)
    assert spec.fleet_note().endswith("for Kubernetes only: image, resources")
    assert (alone, alone.fleet_note()) == (dataclasses.replace(spec, image="", resources={}), "")
    assert not {"image", "resources", "checkpoint_claim"} & alone.to_json().keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nane: a\ncommand: x\n", r"job.yaml:1: nane: unknown key; did you mean 'name'"),
        ("name: a\n", "expects one of `train: "),
        ("name: a\ncommand: x\ntrain: y.py\n", "expects one of `train: "),
        ("name: a b\ncommand: x\n", "name: a name is 1 to 64 letters"),
        ("name: a\ncommand: x\nmin_nodes: 3\nmax_nodes: 2\n", r"min_nodes \(3\) or more, got 2"),
        ('name: a\ncommand: "x \'y"\n', "command: expects words in shell syntax"),
        ("name: a\ncommand: x\nenv: {A B: c}\n", "env: expects names of variables, got 'A B'"),
        ('name: a\ncommand: "x \\0"\n', "command: arguments of a program cannot contain a NUL"),
        ('name: a\ncommand: x\nenv: {A: "\\0"}\n', "env: a variable cannot contain a NUL"),
        ("name: a\ntrain: y.py --nodes 3\n", "train: --nodes is set from "),
        ("name: a\ntrain: y.py --job=b\n", "train: --job is set from "),
        ("name: a\ntrain: y.py --dry-run\n", "train: --dry-run starts no rank: remove it"),
        ("name: a\ntrain: --epochs 3 y.py\n", "train: expects the job file first, got '--epochs'"),
        ("name: a\ntrain: none.py\n", "train: there is no file"),
        ("name: a\ncommand: x\nfolder: nowhere\n", "folder: there is no folder"),
    ],
)
def test_a_file_that_describes_no_job(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read_job(written(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_examples_are_jobs(file: Path) -> None:
    assert read_job(file).name == file.stem


def test_the_page_tells_of_every_key() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "how-to" / "elastic-jobs.md").read_text()
    table = page.partition("| key | default |")[2].partition("\n\n")[0]
    first_column = "".join(re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE))
    keys = re.findall(r"`(\w+)`", first_column)
    names = [one.name for one in dataclasses.fields(QueuedJobSpec)]
    assert sorted(keys) == sorted(["kind", *names])


def test_numbers_and_texts_are_the_same(tmp_path: Path) -> None:
    resources = "cpu: 0.5, memory: 512Mi, gpu: 1, amd.com/gpu: '2', ephemeral-storage: 10G"
    file = written(tmp_path, f"name: a\ncommand: x\nresources: {{{resources}}}\n")
    assert read_job(file).resources == {
        "cpu": "0.5", "memory": "512Mi", "gpu": "1", "amd.com/gpu": "2", "ephemeral-storage": "10G"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "amount", "says"),
    [
        ("cpu", "two", "resources.cpu: expects cores, `2`, `0.5` or `500m`, got 'two'"),
        ("cpu", -1, "resources.cpu: expects cores"),
        ("memory", "4GiB", "resources.memory: expects bytes in Kubernetes notation, `4Gi`"),
        ("memory", 4, "resources.memory: '4' is less than 1Mi: it needs a unit"),
        ("ephemeral-storage", "1e9k", "resources.ephemeral-storage: expects bytes"),
        ("gpu", 0.5, "resources.gpu: expects a whole number, got '0.5'"),
        ("amd.com/gpu", "many", "resources.amd.com/gpu: expects a whole number"),
        ("cpus", 2, "resources.cpus: expects cpu, memory, ephemeral-storage, gpu, or a full name"),
    ],
)
def test_what_is_none_is_named(name: str, amount: int | float | str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        QueuedJobSpec("a", command="x", resources={name: amount})
