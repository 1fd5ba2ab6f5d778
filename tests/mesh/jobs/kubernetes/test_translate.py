"""A job's file and its resource say the same, and what a cluster cannot run is an error."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edl.coordinator.contexts import MeshContext
from edl.mesh.jobs.backend import cluster_namespace
from edl.mesh.jobs.kubernetes_resource import facts_of, manifest, to_resource
from edl.mesh.jobs.spec import QueuedJobSpec
from edl.mesh.kubernetes.resources import GPU
from edl.runtime.errors import UsageError

_WORDS = st.lists(st.from_regex(r"[a-z0-9./=_-]{1,12}", fullmatch=True), min_size=1, max_size=4)
_VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
_NODES = st.tuples(st.integers(1, 4096), st.integers(1, 4096)).map(sorted)
_RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(0, 512) | st.sampled_from(["500m", "0.25", "1.5"]),
        "memory": st.sampled_from(["512Mi", "4Gi", "10G", "1.5Ti"]),
        "gpu": st.integers(0, 16),
        "amd.com/gpu": st.integers(0, 16),
    },
)


@st.composite
def jobs(draw: st.DrawFn) -> QueuedJobSpec:
    least, most = draw(_NODES)
    words = " ".join(draw(_WORDS))
    trains = draw(st.booleans())
    return QueuedJobSpec(
        draw(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True)),
        train=f"job.py {draw(st.sampled_from(['', '--epochs 3']))}".strip() if trains else "",
        command="" if trains else words,
        min_nodes=least,
        max_nodes=most,
        priority=draw(st.integers(-1000, 1000)),
        retries=draw(st.integers(0, 1000)),
        grace_s=float(draw(st.integers(0, 3600))),
        env=draw(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), _VALUES)),
        image=draw(st.sampled_from(["edl-dist:1", "host:5000/a/b@sha256:00"])),
        resources=draw(_RESOURCES),
        checkpoint_claim=draw(st.sampled_from(["", "checkpoints"])),
        coordinator=draw(st.sampled_from(["", "redis://redis:6379"])),
    )


@given(jobs())
def test_a_job_comes_back_from_its_resource_which_is_its_manifest(spec: QueuedJobSpec) -> None:
    resource = json.loads(json.dumps(to_resource(spec, "here")))
    assert QueuedJobSpec(**facts_of(resource)) == spec
    assert resource["metadata"] == {"name": spec.name, "namespace": "here"}
    text = "\n".join(manifest(spec, "here"))
    assert yaml.safe_load(text) == resource


def test_a_node_has_what_it_asks_for_and_idle_cores_besides() -> None:
    spec = QueuedJobSpec(
        "a", command="x", image="i", resources={"cpu": 2, "memory": "4Gi", "gpu": 1}
    )
    claims = to_resource(spec)["spec"]["resources"]
    assert claims["requests"] == {"cpu": "2", "memory": "4Gi", GPU: "1"}
    assert claims["limits"] == {"memory": "4Gi", GPU: "1"}
    plain = to_resource(QueuedJobSpec("a", command="x", image="i", grace_s=0.2))["spec"]
    assert "resources" not in plain
    assert plain["graceSeconds"] == 1, "parts of a second are a whole one"


def test_a_password_does_not_go_into_a_resource() -> None:
    spec = partial(QueuedJobSpec, "a", command="x", image="i")
    with pytest.raises(UsageError, match="password") as refused:
        to_resource(spec(coordinator="redis://:s3cret@head"))
    assert "s3cret" not in str(refused.value)
    file = "/etc/edl/redis/password"
    to_resource(spec(coordinator=f"redis://edl-student@head?password_file={file}"))


def test_what_stands_in_a_file_and_is_left_out_is_said() -> None:
    def comments(**more: Any) -> int:
        lines = list(manifest(QueuedJobSpec("a", command="x", image="i", **more), ""))
        assert "namespace" not in yaml.safe_load("\n".join(lines))["metadata"]
        return sum(line.startswith("#") for line in lines)

    assert comments(resources={"gpu": 1}) == 0
    assert comments() == 1
    assert comments(folder=Path("jobs")) == 2


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (QueuedJobSpec("a", command="x"), "image: a job on Kubernetes needs a container image"),
        (
            QueuedJobSpec("A", command="x", image="i"),
            "name: on Kubernetes a name is 1 to 52 small letters",
        ),
        (QueuedJobSpec("a" * 53, command="x", image="i"), "name: on Kubernetes"),
    ],
)
def test_what_no_cluster_runs(spec: QueuedJobSpec, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        to_resource(spec)


def test_a_place() -> None:
    assert cluster_namespace(MeshContext(jobs_on="kubernetes:team-a")) == "team-a"
    assert cluster_namespace(MeshContext(jobs_on="kubernetes")) == ""
    assert cluster_namespace(MeshContext()) is None
    for jobs_on in ("", "k8s", "kubernetes:", "kubernetes:A b", "queue:main"):
        with pytest.raises(UsageError, match="expects queue, kubernetes or kubernetes:NAMESPACE"):
            cluster_namespace(MeshContext(jobs_on=jobs_on))
