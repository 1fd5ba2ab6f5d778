"""The Role of the page has the rights that `edl job` uses on a cluster: all of them, no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import edl
from edl.mesh.jobs.cli import app
from edl.mesh.kubernetes.resources import DISTILL_JOB, POD, labels_of, owner_reference
from edl.tests.deploy.kube_api.cluster import Emulated, emulated_in

PAGE = Path(edl.__file__).resolve().parent / "docs" / "elastic-jobs.md"
Right = tuple[str, str, str]
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Emulated]:
    with emulated_in(tmp_path) as found:
        yield found


def granted() -> set[Right]:
    """API group, resource and verb of each right that the page grants."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    role = next(yaml.safe_load(block) for block in blocks if "kind: Role" in block)
    return {
        right
        for rule in role["rules"]
        for right in product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def used(method: str, path: str, namespace: str) -> Right:
    """The right that a request needs, as RBAC has it."""
    before, _, behind = path.partition(f"/namespaces/{namespace}/")
    assert behind, f"{path} is of another namespace, or of the whole cluster"
    group = "" if before == "/api/v1" else before.split("/")[2]
    resource, *rest = behind.split("/")
    verb = VERBS.get(method, "get" if rest else "list")
    return group, "/".join([resource, *rest[1:]]), verb


def test_the_role_of_the_page_is_enough_and_no_more(cluster: Emulated, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("name: a\ncommand: x\nimage: i\nmax_nodes: 2\n")
    asked: set[Right] = set()

    def run(*words: str) -> None:
        where = ("--on", f"kubernetes:{cluster.namespace}", "--kubeconfig", str(cluster.kubeconfig))
        before = len(cluster.server.requests)
        result = CliRunner().invoke(app, [*words, *where], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        for method, path in cluster.server.requests[before:]:
            asked.add(used(method, path, cluster.namespace))

    run("submit", str(file))
    job = cluster.client.get(DISTILL_JOB, "a")
    labels = labels_of("student", job="a", node="1")
    meta = {"name": "a-1", "labels": labels, "ownerReferences": [owner_reference(job)]}
    pod = {"metadata": meta, "spec": {"containers": [{"name": "node", "image": "i"}]}}
    cluster.client.create(POD, pod)
    cluster.say("a-1", "Running")
    cluster.server.store.logs[cluster.namespace, "a-1"] = "2026-01-01T00:00:00Z up\n"
    for words in (("list",), ("events",), ("logs", "a"), ("scale", "a", "1"), ("stop", "a")):
        run(*words)
    status = {"observedGeneration": 1, "state": "stopped"}
    cluster.client.patch(DISTILL_JOB, "a", {"status": status}, subresource="status")
    run("logs", "a", "--follow")
    run("submit", str(file))  # in the place of the one that has ended
    assert asked == granted()
