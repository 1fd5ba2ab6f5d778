"""What a node needs on a cluster, as job files say it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.mesh.jobs.spec import JobSpec, read_job


def test_numbers_and_texts_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: a\ncommand: x\n"
        "resources: {cpu: 0.5, memory: 512Mi, gpu: 1, amd.com/gpu: '2', ephemeral-storage: 1e9k}\n"
    )
    with pytest.raises(UsageError, match="ephemeral-storage: expects bytes"):
        read_job(file)
    file.write_text(file.read_text().replace("1e9k", "10G"))
    assert read_job(file).resources == {
        "cpu": "0.5", "memory": "512Mi", "gpu": "1", "amd.com/gpu": "2", "ephemeral-storage": "10G"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "amount", "says"),
    [
        ("cpu", "two", "resources.cpu: expects cores, `2`, `0.5` or `500m`, got 'two'"),
        ("cpu", "2Gi", "resources.cpu: expects cores"),
        ("cpu", -1, "resources.cpu: expects cores"),
        ("memory", "4GiB", "resources.memory: expects bytes as Kubernetes has them, `4Gi`"),
        ("memory", "400m", "resources.memory: expects bytes"),
        ("memory", 4, "resources.memory: '4' is less than 1Mi: it needs a unit"),
        ("memory", "4k", "resources.memory: '4k' is less than 1Mi"),
        ("gpu", 0.5, "resources.gpu: expects a whole number, got '0.5'"),
        ("amd.com/gpu", "many", "resources.amd.com/gpu: expects a whole number"),
        ("cpus", 2, "resources.cpus: expects cpu, memory, ephemeral-storage, gpu, or a full name"),
    ],
)
def test_what_is_none_is_named(name: str, amount: int | float | str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        JobSpec("a", command="x", resources={name: amount})


def test_a_fleet_leaves_out_what_is_of_a_cluster_and_says_so() -> None:
    spec = JobSpec("a", command="x", image="i:1", resources={"cpu": 2})
    assert spec.fleet_note() == "image, resources are of a cluster: a fleet leaves them out"
    alone = spec.for_a_fleet()
    assert (alone, alone.fleet_note()) == (JobSpec("a", command="x"), "")
    assert not {"image", "resources", "checkpoint_claim"} & alone.to_json().keys()
    assert JobSpec.from_json(spec.to_json()) == spec
