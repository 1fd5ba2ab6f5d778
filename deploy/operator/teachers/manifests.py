"""The Deployment of a service's teachers, and the Service by which they are found."""

from __future__ import annotations

from typing import Any, Final

from ....coordinator.registry.keys import check_service
from ....mesh.fleet.service_poller import FLEET_PREFIX
from ....mesh.kubernetes.resources import (
    COMPONENT_LABEL,
    MANAGED_BY_LABEL,
    OPERATOR,
    Object,
    labels_of,
    owner_reference,
    quantity,
)
from ....runtime.errors import UsageError
from ..templates import USER, check_coordinator, literal, merged
from .spot import spot_fields

CONTAINER: Final = "teacher"
#: Which TeacherService it is, however the service itself is called.
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
METRICS_PORT: Final = 9101
#: Options that say the same as the resource, or as its Deployment.
_OURS: Final = (
    "--model", "--service", "--coordinator", "--teacher-id", "--host", "--port", "--http",
    "--transport-port", "--metrics-listen", "--grace",
)  # fmt: skip
#: By which a teacher knows who calls, or is told not to mind: options, and variables.
_CREDENTIALS: Final = ("--tokens", "--tls-ca", "--insecure")
_CREDENTIAL_VARIABLES: Final = ("EDL_TOKENS", "EDL_TLS_CA", "EDL_INSECURE")
#: A pod has so much longer than its teacher, seconds: to end, after it has finished.
_MARGIN_S: Final = 15
#: Lasts until the teacher has ended by itself: a second SIGTERM, which Kubernetes sends when a hook
#: is over, would end a drain at once.
_DRAIN: Final = "kill -TERM 1; while kill -0 1 2>/dev/null; do sleep 0.2; done"


def service_of(resource: Object) -> str:
    """Name of the service that a TeacherService is about."""
    return str(resource["spec"].get("service") or resource["metadata"]["name"])


def selector_of(resource: Object) -> dict[str, str]:
    """Labels that its teachers' pods have, and no others'; never changed."""
    return {
        INSTANCE_LABEL: resource["metadata"]["name"],
        COMPONENT_LABEL: "teacher",
        MANAGED_BY_LABEL: OPERATOR,
    }


def service_key_of(pod: Object) -> tuple[str, str] | None:
    """Namespace and name of the TeacherService of whose teachers a pod is one; None: of none."""
    labels = pod["metadata"].get("labels") or {}
    key = pod["metadata"]["namespace"], labels.get(INSTANCE_LABEL, "")
    ours = labels.get(COMPONENT_LABEL) == "teacher" and labels.get(MANAGED_BY_LABEL) == OPERATOR
    return key if ours else None


def deployment_of(resource: Object, replicas: int, coordinator: str | None) -> Object:
    """The Deployment that a TeacherService is to have.

    Args:
        resource: the TeacherService.
        replicas: teachers.
        coordinator: Redis URL of the mesh, unless the resource names one.

    Raises:
        UsageError: it cannot be had so; says why.
    """
    spec = resource["spec"]
    _check(resource)
    labels = _labels(resource)
    template = spec.get("podTemplate") or {}
    try:
        pod = merged(_pod(resource, coordinator), template.get("spec") or {})
        told = template.get("metadata") or {}
        template_meta: Object = {"labels": {**(told.get("labels") or {}), **labels}}
        if told.get("annotations"):
            template_meta["annotations"] = dict(told["annotations"])
        container = next(one for one in pod["containers"] if one["name"] == CONTAINER)
        _check_reach(container)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise UsageError(f"spec.podTemplate: this is no template of a pod: {error}") from None
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(resource),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector_of(resource)},
            "strategy": {
                "type": "RollingUpdate",
                # of one to three teachers none is missed; more need no room for one besides
                "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 1},
            },
            "template": {"metadata": template_meta, "spec": pod},
        },
    }


def service_manifest_of(resource: Object) -> Object:
    """The Service that a TeacherService is to have: names of teachers, no address of its own."""
    port = resource["spec"]["port"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(resource),
        "spec": {
            "clusterIP": "None",
            # a teacher is asked by its name to be admitted, before its pod counts as ready
            "publishNotReadyAddresses": True,
            "selector": selector_of(resource),
            "ports": [
                {"name": name, "port": number, "protocol": "TCP", "targetPort": name}
                for name, number in _ports(port)
            ],
        },
    }


def pod_spec_of(deployment: Object) -> Object:
    """The spec of its pods."""
    found: Object = deployment["spec"]["template"]["spec"]
    return found


def _check(resource: Object) -> None:
    """What the schema of the definition cannot say.

    Raises:
        UsageError: it cannot work.
    """
    spec = resource["spec"]
    try:
        check_service(service_of(resource))
    except UsageError as error:
        raise UsageError(f"spec.service: {error}") from None
    if spec["minReplicas"] > spec["maxReplicas"]:  # servers before 1.25 know no rules
        raise UsageError(
            f"spec.maxReplicas: expects spec.minReplicas ({spec['minReplicas']}) or more, got"
            f" {spec['maxReplicas']}"
        )
    for word in spec.get("args") or ():
        if word.split("=")[0] in _OURS:
            raise UsageError(
                f"spec.args: {word.split('=')[0]} is said by the operator: leave it out"
            )
    for what in ("requests", "limits"):
        for kind, amount in ((spec.get("resources") or {}).get(what) or {}).items():
            try:
                quantity(amount)
            except UsageError as error:
                raise UsageError(f"spec.resources.{what}.{kind}: {error}") from None


def _check_reach(container: Object) -> None:
    """A teacher finds its mesh, and does not start unless it knows who calls.

    Raises:
        UsageError: it would end at once, or nobody would find it.
    """
    told = check_coordinator(container)
    if container.get("envFrom"):
        return  # whatever it has from there
    if not told:
        raise UsageError(
            "spec.coordinator: teachers register in the mesh's Redis: name it, or start the"
            " operator with --coordinator"
        )
    said = {word.split("=")[0] for word in container.get("args") or ()}
    said |= {one["name"] for one in container.get("env") or ()}
    if not said & {*_CREDENTIALS, *_CREDENTIAL_VARIABLES}:
        raise UsageError(
            "spec.args: teachers are reached from other machines, and nothing asks who calls: give"
            " them --tokens or --tls-ca (of a Secret that spec.podTemplate mounts), or say"
            " --insecure if the network is trusted"
        )


def _labels(resource: Object) -> dict[str, str]:
    return {
        **labels_of("teacher", service=service_of(resource)),
        INSTANCE_LABEL: resource["metadata"]["name"],
    }


def _meta(resource: Object) -> Object:
    meta = resource["metadata"]
    return {
        "name": meta["name"],
        "namespace": meta["namespace"],
        "labels": _labels(resource),
        "ownerReferences": [owner_reference(resource)],
    }


def _pod(resource: Object, coordinator: str | None) -> Object:
    spec = resource["spec"]
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec["graceSeconds"] + _MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector_of(resource)},
            }
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
        "containers": [_container(resource, coordinator)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "state", "emptyDir": {}}],
    }
    return pod | spot_fields() if spec.get("spot") else pod


def _ports(port: int) -> tuple[tuple[str, int], ...]:
    """Those of a teacher by name; `port` is that of gRPC."""
    return ("grpc", port), ("http", port + 1), ("transport", port + 2), ("metrics", METRICS_PORT)


def _container(resource: Object, coordinator: str | None) -> Object:
    spec = resource["spec"]
    port, resources = spec["port"], spec.get("resources") or {}
    return {
        "name": CONTAINER,
        "image": spec["image"],
        "args": _arguments(spec, service_of(resource)),
        "env": _env(resource, coordinator),
        "ports": [
            {"name": name, "containerPort": number, "protocol": "TCP"}
            for name, number in _ports(port)
        ],
        # loading, warming up, the self-test: ten minutes for all of it
        "startupProbe": _probe("/health/ready", periodSeconds=2, failureThreshold=300),
        "livenessProbe": _probe("/health/live", periodSeconds=10, failureThreshold=3),
        "readinessProbe": _probe("/health/ready", periodSeconds=5, failureThreshold=3),
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", _DRAIN]}}},
        **({"resources": resources} if resources else {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "state", "mountPath": "/var/lib/edl"},
        ],
    }


def _arguments(spec: Object, service: str) -> list[str]:
    port = spec["port"]
    return [
        "teacher",
        "serve",
        f"--model={literal(spec['model'])}",
        f"--service={service}",
        "--host=0.0.0.0",
        f"--port={port}",
        f"--http={port + 1}",
        f"--transport-port={port + 2}",
        f"--metrics-listen=0.0.0.0:{METRICS_PORT}",
        f"--grace={spec['graceSeconds']}",
        *(spec.get("args") or ()),
    ]


def _env(resource: Object, coordinator: str | None) -> list[Object]:
    """Variables; those of the user are the later ones, and may use the earlier."""
    spec = resource["spec"]
    fields = {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
    }
    found: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in fields.items()
    ]
    url = spec.get("coordinator") or coordinator
    values: dict[str, Any] = {
        "HOME": "/tmp",
        # a fleet's: the coordinator's number is of those beside it that others have started
        "EDL_TEACHER_ID": f"{FLEET_PREFIX}$(POD_NAME)",
        "EDL_ADVERTISE": "$(POD_IP)",
        **({"EDL_COORDINATOR": url} if url else {}),
        **(spec.get("env") or {}),
    }
    return found + [{"name": name, "value": value} for name, value in values.items()]


def _probe(path: str, **more: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "metrics", "scheme": "HTTP"},
        "timeoutSeconds": 5,
        **more,
    }
