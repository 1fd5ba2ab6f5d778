"""A cluster for tests: an API server, a client of ours, and hands that play everybody else.

The server is the emulator, or the one that a kubeconfig named by EDL_TEST_KUBECONFIG leads to:
`tests/kubernetes/real_apiserver.sh` starts such a one. Neither has a scheduler, kubelets or
controllers: `play` is all of them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from edl.errors import EdlError, ObjectExists
from edl.mesh.kubernetes.client import ALL_NAMESPACES, Client, Connection, connect
from edl.mesh.kubernetes.resources import (
    CRD,
    DEPLOYMENT,
    DISTILL_JOB,
    EVENT,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    SERVICE,
    TEACHER_SERVICE,
    Kind,
    Object,
    quantity,
    selector,
)
from edl.mesh.kubernetes.transport import Transport

from .server import ApiServer

#: Path of the kubeconfig of a real API server.
VARIABLE: Final = "EDL_TEST_KUBECONFIG"
CRDS: Final = Path(__file__).parents[3] / "deploy" / "operator" / "crds"


class Killed(BaseException):
    """The process that called is dead: it neither cleans up nor goes on."""


@cache
def definitions() -> tuple[Object, ...]:
    """Our CustomResourceDefinitions."""
    files = (CRDS / "teacherservices.yaml", CRDS / "distilljobs.yaml")
    return tuple(yaml.safe_load(one.read_text()) for one in files)


class Cluster:
    """One namespace of a cluster that has our definitions.

    Attributes:
        server: the emulator; None: the API server is a real one.
        kubeconfig: a file that leads to it.
        connection: to it, in the namespace.
        client: one that nothing happens to.
    """

    server: ApiServer | None

    def __init__(self, folder: Path, undo: ExitStack, real: str | None = None) -> None:
        self.server = None if real else undo.enter_context(ApiServer())
        self.kubeconfig = Path(real) if real else folder / "kubeconfig"
        self._nodes: set[str] = set()
        if self.server is not None:
            self.kubeconfig.write_text(self.server.kubeconfig())
            self.connection = connect(self.kubeconfig)
        else:
            self.connection = connect(self.kubeconfig, namespace=f"edl-{uuid.uuid4().hex[:8]}")
        self.client = undo.enter_context(Client(self.connection))
        self._install()
        undo.callback(self._clean)

    @property
    def namespace(self) -> str:
        """In which a test works."""
        return self.connection.namespace

    @property
    def knows_rules(self) -> bool:
        """Whether the server holds the rules of definitions: one before 1.25 forgets them."""
        crd = self.client.get(CRD, "teacherservices.edl-dist.io")
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return "x-kubernetes-validations" in schema

    def _install(self) -> None:
        for crd in definitions():
            with suppress(ObjectExists):  # of a test before, on a real server
                self.client.create(CRD, crd)
        if self.server is None:
            self.client.create(NAMESPACE, {"metadata": {"name": self.namespace}})

    def _clean(self) -> None:
        if self.server is not None:
            return
        for kind in (TEACHER_SERVICE, DISTILL_JOB, DEPLOYMENT, SERVICE, POD, LEASE, EVENT):
            for one in self.client.list(kind):
                self.client.delete(kind, one["metadata"]["name"], grace_s=0)
        for name in self._nodes:
            self.client.delete(NODE, name)
        self.client.delete(NAMESPACE, self.namespace)

    @contextmanager
    def calling(self, hook: Callable[[str, str], None]) -> Iterator[Client]:
        """A client that calls `hook` with method and path before each request."""
        with Client(self.connection, hook=hook) as client:
            yield client

    @contextmanager
    def mortal(self, calls: int, *, after: bool = False) -> Iterator[Client]:
        """A client whose process dies at its call number `calls`, which counts from 0.

        Args:
            calls: so many are carried out before it.
            after: that call is carried out, too, and nobody learns of the answer.
        """
        transport = _Mortal(self.connection, calls, after)
        with Client(self.connection, transport=transport) as client:
            yield client

    def create(self, kind: Kind, name: str, spec: Mapping[str, Any], **more: Any) -> Object:
        """Make an object with this `spec`."""
        return self.client.create(kind, {"metadata": {"name": name}, "spec": dict(spec), **more})

    def node(self, name: str, **allocatable: str) -> str:
        """A machine that is ready, with this much: `cpu="4", memory="8Gi"`; its full name."""
        full = name if self.server is not None else f"{name}-{self.namespace}"
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110", **allocatable}
        self._nodes.add(full)
        self.client.create(NODE, {"metadata": {"name": full}, "spec": {}})
        self.client.patch(NODE, full, {"spec": {"taints": None}})  # a real one marks it not ready
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                {
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                }
            ],
        }  # fmt: skip
        self.client.patch(NODE, full, {"status": status}, subresource="status")
        return full

    def lose(self, node: str) -> None:
        """A machine goes, and all its pods with it."""
        self.client.delete(NODE, node)
        self._nodes.discard(node)
        for pod in self.client.list(POD, namespace=ALL_NAMESPACES):
            if pod["spec"].get("nodeName") == node:
                meta = pod["metadata"]
                self.client.delete(POD, meta["name"], meta["namespace"], grace_s=0)

    def pods(self, **labels: str) -> list[Object]:
        """Pods of the namespace with these labels."""
        return self.client.list(POD, selector(labels))

    def say(self, pod: str, phase: str, exit_code: int | None = None, ready: bool = True) -> None:
        """What a kubelet says of a pod."""
        found = self.client.get(POD, pod)
        started = "2026-01-01T00:00:00Z"
        over = {"exitCode": exit_code or 0, "startedAt": started, "finishedAt": started}
        state = {"running": {"startedAt": started}} if exit_code is None else {"terminated": over}
        up = phase == "Running" and ready
        status = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(up)}],
            "containerStatuses": [
                {
                    "name": one["name"], "image": one["image"], "imageID": "", "restartCount": 0,
                    "ready": up, "state": state,
                }
                for one in found["spec"]["containers"]
            ],
        }  # fmt: skip
        self.client.patch(POD, pod, {"status": status}, subresource="status")

    def end(self, pod: str, exit_code: int) -> None:
        """The container of a pod ends by itself."""
        self.say(pod, "Failed" if exit_code else "Succeeded", exit_code)

    def play(self, *, finish: bool = True) -> None:
        """Controllers, scheduler and kubelets do what there is to do now.

        Deployments get their pods; pods get machines with room, and run; those that were told to
        go are gone.

        Args:
            finish: pods that leave are gone at once; else they go on leaving.
        """
        self._replicate()
        if finish:
            for pod in self.client.list(POD):
                if "deletionTimestamp" in pod["metadata"]:
                    self.client.delete(POD, pod["metadata"]["name"], grace_s=0)
        self._schedule()
        for pod in self.client.list(POD):
            status = pod.get("status", {}).get("phase", "Pending")
            if pod["spec"].get("nodeName") and status == "Pending":
                self.say(pod["metadata"]["name"], "Running")
        self._count()

    def _replicate(self) -> None:
        """The controllers of deployments: as many pods as they say."""
        deployments = self.client.list(DEPLOYMENT)
        alive = {one["metadata"]["uid"] for one in deployments}
        for one in deployments:
            labels = one["spec"]["selector"]["matchLabels"]
            pods = [p for p in self.pods(**labels) if "deletionTimestamp" not in p["metadata"]]
            for _ in range(len(pods), one["spec"].get("replicas", 1)):
                template = one["spec"]["template"]
                name = f"{one['metadata']['name']}-{uuid.uuid4().hex[:8]}"
                owner = {
                    "apiVersion": "apps/v1", "kind": "Deployment", "controller": True,
                    "name": one["metadata"]["name"], "uid": one["metadata"]["uid"],
                }  # fmt: skip
                meta = {**template["metadata"], "name": name, "ownerReferences": [owner]}
                self.client.create(POD, {"metadata": meta, "spec": template["spec"]})
            for pod in pods[one["spec"].get("replicas", 1) :]:
                self.client.delete(POD, pod["metadata"]["name"])
        for pod in self.client.list(POD):
            owners = pod["metadata"].get("ownerReferences", ())
            if any(x["kind"] == "Deployment" and x["uid"] not in alive for x in owners):
                self.client.delete(POD, pod["metadata"]["name"])

    def _schedule(self) -> None:
        """Each pod that waits gets the first machine that has room for it."""
        pods = self.client.list(POD, namespace=ALL_NAMESPACES)
        for pod in pods:
            if pod["spec"].get("nodeName") or pod["metadata"]["namespace"] != self.namespace:
                continue
            for node in self.client.list(NODE):
                name = node["metadata"]["name"]
                if name in self._nodes and _fits(node, pod, pods):
                    self._bind(pod, name)
                    pod["spec"]["nodeName"] = name
                    break

    def _bind(self, pod: Object, node: str) -> None:
        name = pod["metadata"]["name"]
        binding = Kind("v1", "Binding", f"pods/{name}/binding")
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.client.create(binding, {"metadata": {"name": name}, "target": target})

    def _count(self) -> None:
        """What deployments say of their pods."""
        for one in self.client.list(DEPLOYMENT):
            pods = [
                pod
                for pod in self.pods(**one["spec"]["selector"]["matchLabels"])
                if "deletionTimestamp" not in pod["metadata"]
            ]
            ready = sum(pod["status"].get("phase") == "Running" for pod in pods)
            status = {
                "observedGeneration": one["metadata"]["generation"],
                "replicas": len(pods),
                "updatedReplicas": len(pods),
                "readyReplicas": ready,
                "availableReplicas": ready,
            }
            name = one["metadata"]["name"]
            self.client.patch(DEPLOYMENT, name, {"status": status}, subresource="status")

    def collect_garbage(self) -> None:
        """What belongs to somebody who has gone goes too."""
        kinds = (TEACHER_SERVICE, DISTILL_JOB, DEPLOYMENT, SERVICE, POD)
        alive = {one["metadata"]["uid"] for kind in kinds for one in self.client.list(kind)}
        for kind in kinds:
            for one in self.client.list(kind):
                owners = one["metadata"].get("ownerReferences", ())
                if owners and not any(owner["uid"] in alive for owner in owners):
                    self.client.delete(kind, one["metadata"]["name"], grace_s=0)


class _Mortal(Transport):
    def __init__(self, connection: Connection, calls: int, after: bool) -> None:
        super().__init__(connection)
        self._left, self._after = calls, after

    def send(self, *args: Any, **more: Any) -> Any:
        if self._left < 0:
            raise AssertionError("it is dead, and calls")
        self._left -= 1
        if self._left >= 0:
            return super().send(*args, **more)
        if self._after:
            with suppress(EdlError):
                super().send(*args, **more)
        raise Killed


def _fits(node: Object, pod: Object, pods: list[Object]) -> bool:
    wanted = _requests(pod)
    here = [
        _requests(one)
        for one in pods
        if one["spec"].get("nodeName") == node["metadata"]["name"]
        and one.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]
    has = node["status"]["allocatable"]
    return all(
        sum(one.get(kind, 0.0) for one in here) + amount <= quantity(has.get(kind, 0))
        for kind, amount in wanted.items()
    )


def _requests(pod: Object) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in pod["spec"]["containers"]:
        for kind, amount in one.get("resources", {}).get("requests", {}).items():
            found[kind] = found.get(kind, 0.0) + quantity(amount)
    return found


class Emulated(Cluster):
    """One of the emulator alone: tests may look into the server, and change what it has."""

    server: ApiServer


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    """A cluster for the time of a `with`; `folder` is where its kubeconfig is written.

    It is one of the real API server that a variable names, if one does.
    """
    with ExitStack() as undo:
        yield Cluster(folder, undo, os.environ.get(VARIABLE))


@contextmanager
def emulated_in(folder: Path) -> Iterator[Emulated]:
    """`cluster_in`, of the emulator in any case."""
    with ExitStack() as undo:
        yield Emulated(folder, undo)
