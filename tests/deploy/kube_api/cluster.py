"""A cluster for tests: an API server, a client, and everything that controllers and kubelets do.

The server is the emulator, or the one of the kubeconfig that EDL_TEST_KUBECONFIG names
(`tests/kubernetes/real_apiserver.sh` starts one).
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from edl.mesh.kubernetes.client import ALL_NAMESPACES, Client, connect
from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    DISTILL_JOB,
    EVENT,
    LEASE,
    NODE,
    POD,
    SERVICE,
    TEACHER_SERVICE,
    Kind,
    Object,
    owner_reference,
    quantity,
    selector,
)
from edl.runtime.errors import KubernetesObjectExists

from .kinds import CRD, NAMESPACE
from .server import ApiServer

#: Path of the kubeconfig of a real API server.
VARIABLE: Final = "EDL_TEST_KUBECONFIG"
CRDS: Final = Path(__file__).parents[3] / "deploy" / "operator" / "crds"
#: Kinds that have owners or are some: owners before what they own.
_OWNED: Final = (TEACHER_SERVICE, DISTILL_JOB, DEPLOYMENT, SERVICE, POD)
_STARTED: Final = "2026-01-01T00:00:00Z"
Hook = Callable[[str, str], None]


class Killed(BaseException):
    """The calling process is dead: it neither cleans up nor goes on."""


class KillBefore:
    """A hook that kills its process before the request of number `at`; notes those before it."""

    def __init__(self, at: float, *, writes_only: bool = False) -> None:
        self.at, self.writes_only = at, writes_only
        self.died = False
        self.requests: list[str] = []

    def __call__(self, method: str, path: str) -> None:
        assert not self.died, "a process that died sends a request"
        if self.writes_only and method == "GET":
            return
        if len(self.requests) == self.at:
            self.died = True
            raise Killed
        self.requests.append(f"{method} {path}")


@cache
def definitions() -> tuple[Object, ...]:
    files = (CRDS / "teacherservices.yaml", CRDS / "distilljobs.yaml")
    return tuple(yaml.safe_load(one.read_text()) for one in files)


class Cluster:
    """One namespace of a cluster that has our definitions.

    `server` is None where the API server is a real one.
    """

    server: ApiServer | None

    def __init__(self, folder: Path, undo: ExitStack, real: str | None = None) -> None:
        self._nodes: set[str] = set()
        if real:
            self.server, self.kubeconfig = None, Path(real)
            self.connection = connect(self.kubeconfig, namespace=f"edl-{uuid.uuid4().hex[:8]}")
        else:
            self.server, self.kubeconfig = undo.enter_context(ApiServer()), folder / "kubeconfig"
            self.kubeconfig.write_text(self.server.kubeconfig())
            self.connection = connect(self.kubeconfig)
        self.namespace = self.connection.namespace
        self.client = undo.enter_context(self.calling(None))
        for crd in definitions():
            with suppress(KubernetesObjectExists):  # of an earlier test, on a real server
                self.client.create(CRD, crd)
        if real:
            self.client.create(NAMESPACE, {"metadata": {"name": self.namespace}})
            undo.callback(self._clean)

    @property
    def knows_rules(self) -> bool:
        """Whether the server evaluates rules of definitions: one before 1.25 drops them."""
        crd = self.client.get(CRD, "teacherservices.edl-dist.io")
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return "x-kubernetes-validations" in schema

    def _clean(self) -> None:
        for kind in (*_OWNED, LEASE, EVENT):
            for one in self.client.list(kind):
                self.client.delete(kind, one["metadata"]["name"], grace_s=0)
        for name in self._nodes:
            self.client.delete(NODE, name)
        self.client.delete(NAMESPACE, self.namespace)

    def calling(self, hook: Hook | None) -> Client:
        """A client that calls `hook` with method and path before each request."""
        return Client(self.connection, hook=hook)

    def create(self, kind: Kind, name: str, spec: Mapping[str, Any]) -> Object:
        return self.client.create(kind, {"metadata": {"name": name}, "spec": dict(spec)})

    def patch_status(self, kind: Kind, name: str, **status: Any) -> Object:
        return self.client.patch(kind, name, {"status": status}, subresource="status")

    def node(self, name: str, **allocatable: str) -> str:
        """Add a node that is ready, with such resources: `cpu="4"`; returns its full name."""
        full = name if self.server is not None else f"{name}-{self.namespace}"
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110", **allocatable}
        self._nodes.add(full)
        self.create(NODE, full, {})
        self.client.patch(NODE, full, {"spec": {"taints": None}})  # a real one marks it not ready
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        ready |= dict.fromkeys(("lastTransitionTime", "lastHeartbeatTime"), _STARTED)
        self.patch_status(NODE, full, capacity=amounts, allocatable=amounts, conditions=[ready])
        return full

    def lose(self, node: str) -> None:
        self.client.delete(NODE, node)
        self._nodes.discard(node)
        for pod in self.client.list(POD, namespace=ALL_NAMESPACES):
            if pod["spec"].get("nodeName") == node:
                meta = pod["metadata"]
                self.client.delete(POD, meta["name"], meta["namespace"], grace_s=0)

    def pods(self, **labels: str) -> list[Object]:
        return self.client.list(POD, selector(labels))

    def events(self, about: str = "") -> list[tuple[str, str]]:
        """Reasons and messages, the earliest first; of one object, if it is named."""
        listed = sorted(self.client.list(EVENT), key=lambda one: one["firstTimestamp"])
        wanted = [one for one in listed if about in ("", one["involvedObject"]["name"])]
        return [(one["reason"], one["message"]) for one in wanted]

    def say(self, pod: str, phase: str, exit_code: int | None = None) -> None:
        """Report the phase of a pod, as its kubelet does."""
        containers = self.client.get(POD, pod)["spec"]["containers"]
        over = {"exitCode": exit_code or 0, "startedAt": _STARTED, "finishedAt": _STARTED}
        state = {"running": {"startedAt": _STARTED}} if exit_code is None else {"terminated": over}
        up = phase == "Running"
        common = {"imageID": "", "restartCount": 0, "ready": up, "state": state}
        statuses = [{"name": one["name"], "image": one["image"], **common} for one in containers]
        ready = {"type": "Ready", "status": str(up)}
        self.patch_status(POD, pod, phase=phase, conditions=[ready], containerStatuses=statuses)

    def end(self, pod: str, exit_code: int) -> None:
        self.say(pod, "Failed" if exit_code else "Succeeded", exit_code)

    def play(self) -> None:
        """Do everything that controllers, scheduler and kubelets have to do now."""
        self._replicate()
        for pod in self.client.list(POD):
            if "deletionTimestamp" in pod["metadata"]:
                self.client.delete(POD, pod["metadata"]["name"], grace_s=0)
        self._schedule()
        for pod in self.client.list(POD):
            if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                self.say(pod["metadata"]["name"], "Running")
        for one in self.client.list(DEPLOYMENT):
            pods = self._replicas(one)
            ready = sum(pod["status"]["phase"] == "Running" for pod in pods)
            self.patch_status(
                DEPLOYMENT,
                one["metadata"]["name"],
                observedGeneration=one["metadata"]["generation"],
                **dict.fromkeys(("replicas", "updatedReplicas"), len(pods)),
                **dict.fromkeys(("readyReplicas", "availableReplicas"), ready),
            )

    def _replicas(self, deployment: Object) -> list[Object]:
        pods = self.pods(**deployment["spec"]["selector"]["matchLabels"])
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _replicate(self) -> None:
        for one in self.client.list(DEPLOYMENT):
            pods, wanted = self._replicas(one), one["spec"].get("replicas", 1)
            template, owner = one["spec"]["template"], owner_reference(one)
            for _ in range(len(pods), wanted):
                name = f"{one['metadata']['name']}-{uuid.uuid4().hex[:8]}"
                meta = {**template["metadata"], "name": name, "ownerReferences": [owner]}
                self.client.create(POD, {"metadata": meta, "spec": template["spec"]})
            for pod in pods[wanted:]:
                self.client.delete(POD, pod["metadata"]["name"])

    def _schedule(self) -> None:
        """Bind each pod that waits to the first node that has room for it."""
        pods = self.client.list(POD, namespace=ALL_NAMESPACES)
        for pod in pods:
            meta = pod["metadata"]
            if pod["spec"].get("nodeName") or meta["namespace"] != self.namespace:
                continue
            for node in self.client.list(NODE):
                name = node["metadata"]["name"]
                if name in self._nodes and _fits(node, pod, pods):
                    binding = Kind("v1", "Binding", f"pods/{meta['name']}/binding")
                    target = {"apiVersion": "v1", "kind": "Node", "name": name}
                    self.client.create(
                        binding, {"metadata": {"name": meta["name"]}, "target": target}
                    )
                    pod["spec"]["nodeName"] = name
                    break

    def collect_garbage(self) -> None:
        alive = set[str]()
        for kind in _OWNED:
            for one in self.client.list(kind):
                meta = one["metadata"]
                owners = {owner["uid"] for owner in meta.get("ownerReferences", ())}
                if owners and not owners & alive:
                    self.client.delete(kind, meta["name"], grace_s=0)
                else:
                    alive.add(meta["uid"])


def _fits(node: Object, pod: Object, pods: list[Object]) -> bool:
    has, used = node["status"]["allocatable"], Counter[str]()
    for one in pods:
        ended = one["status"]["phase"] in ("Succeeded", "Failed")
        if one["spec"].get("nodeName") == node["metadata"]["name"] and not ended:
            used.update(_requests(one))
    wanted = _requests(pod)
    return all(used[kind] + wanted[kind] <= quantity(has.get(kind, 0)) for kind in wanted)


def _requests(pod: Object) -> Counter[str]:
    found = Counter[str]()
    for one in pod["spec"]["containers"]:
        requests = one.get("resources", {}).get("requests", {})
        found.update({kind: quantity(amount) for kind, amount in requests.items()})
    return found


class Emulated(Cluster):
    """A cluster of the emulator in any case: tests may look into the server."""

    server: ApiServer


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    """A cluster whose kubeconfig is in `folder`; of the real server, if a variable names one."""
    with ExitStack() as undo:
        yield Cluster(folder, undo, os.environ.get(VARIABLE))


@contextmanager
def emulated_in(folder: Path) -> Iterator[Emulated]:
    with ExitStack() as undo:
        yield Emulated(folder, undo)
