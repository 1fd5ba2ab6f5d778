"""Manifests for a TeacherService: the Deployment of its teachers, and a headless Service."""

from __future__ import annotations

from typing import Any, Final

from ....coordinator.registry.schema import check_service
from ....mesh.agent.teacher_fleet import FLEET_PREFIX
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
from ..templates import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    check_coordinator,
    escaped,
    merged,
    unreachable_tolerations,
)

CONTAINER: Final = "teacher"
#: Label with the name of the TeacherService; its `spec.service` may differ.
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
METRICS_PORT: Final = 9101
#: Options that the operator sets, so `spec.args` may not.
_RESERVED_ARGS: Final = (
    "--model", "--service", "--redis", "--coordinator", "--teacher-id", "--listen", "--http",
    "--transport-port", "--metrics-listen", "--grace",
)  # fmt: skip
#: A teacher needs one of these options and variables to serve on all its ports. Certificates do not
#: suffice: the port of metrics and health accepts none, because kubelets have none.
_CREDENTIALS: Final = frozenset({"--tokens", "--insecure", "EDL_TOKENS", "EDL_INSECURE"})
#: Seconds that a pod gets to end in addition to the grace period of its teacher.
_MARGIN_S: Final = 15
#: Starts the drain and waits until the teacher has ended. Kubernetes sends SIGTERM after the hook,
#: and a second SIGTERM would abort a drain.
_DRAIN: Final = "kill -TERM 1; while kill -0 1 2>/dev/null; do sleep 0.2; done"
#: Taints and labels of spot machines.
_SPOT_TAINTS: Final = (
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("spot", None),
)
_SPOT_LABELS: Final = (
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
)
#: Seconds after which pods of spot teachers are moved from an unreachable machine.
_UNREACHABLE_S: Final = 10


def service_of(resource: Object) -> str:
    """Return the name of the service in the mesh."""
    return str(resource["spec"].get("service") or resource["metadata"]["name"])


def selector_of(resource: Object) -> dict[str, str]:
    """Return the labels that select the pods of its teachers.

    A Deployment cannot change its selector, so every version of the operator must return the same.
    """
    return {
        INSTANCE_LABEL: resource["metadata"]["name"],
        COMPONENT_LABEL: "teacher",
        MANAGED_BY_LABEL: OPERATOR,
    }


def service_key_of(pod: Object) -> tuple[str, str] | None:
    """Return namespace and name of a pod's TeacherService; None: it belongs to none."""
    labels = pod["metadata"].get("labels") or {}
    key = pod["metadata"]["namespace"], labels.get(INSTANCE_LABEL, "")
    is_ours = labels.get(COMPONENT_LABEL) == "teacher" and labels.get(MANAGED_BY_LABEL) == OPERATOR
    return key if is_ours else None


def deployment_of(resource: Object, replicas: int, coordinator: str | None) -> Object:
    """Return the manifest of the Deployment for a TeacherService.

    Args:
        resource: the TeacherService.
        replicas: number of teachers.
        coordinator: Redis URL of the mesh, if the resource names none.

    Raises:
        UsageError: the resource is invalid; the message has the reason.
    """
    spec = resource["spec"]
    _check(resource)
    labels = _labels(resource)
    template = spec.get("podTemplate") or {}
    try:
        pod = merged(_pod(resource, coordinator), template.get("spec") or {})
        user_meta = template.get("metadata") or {}
        template_meta: Object = {"labels": {**(user_meta.get("labels") or {}), **labels}}
        if user_meta.get("annotations"):
            template_meta["annotations"] = dict(user_meta["annotations"])
        container = next(one for one in pod["containers"] if one["name"] == CONTAINER)
        _check_container(container)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise UsageError(f"spec.podTemplate: not a valid pod template: {error}") from None
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
                # 25 % of up to three teachers is rounded down to 0, so an update starts a new pod
                # first. Of four or more, some may end first: no room is needed for a new pod.
                "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 1},
            },
            "template": {"metadata": template_meta, "spec": pod},
        },
    }


def service_manifest_of(resource: Object) -> Object:
    """Return the manifest of a headless Service, which gives teachers DNS names."""
    port = resource["spec"]["port"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(resource),
        "spec": {
            "clusterIP": "None",
            # The admission check reaches a teacher by its name, before its pod is ready.
            "publishNotReadyAddresses": True,
            "selector": selector_of(resource),
            "ports": [
                {"name": name, "port": number, "protocol": "TCP", "targetPort": name}
                for name, number in _ports(port)
            ],
        },
    }


def pod_spec_of(deployment: Object) -> Object:
    """Return the spec of a Deployment's pods."""
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def _check(resource: Object) -> None:
    """Check the rules that the schema of TeacherService cannot express.

    Raises:
        UsageError: the spec breaks a rule.
    """
    spec = resource["spec"]
    try:
        check_service(service_of(resource))
    except UsageError as error:
        raise UsageError(f"spec.service: {error}") from None
    if spec["minReplicas"] > spec["maxReplicas"]:  # API servers before 1.25 do not check this
        raise UsageError(
            f"spec.maxReplicas: expects spec.minReplicas ({spec['minReplicas']}) or more, got"
            f" {spec['maxReplicas']}"
        )
    for word in spec.get("args") or ():
        if word.split("=")[0] in _RESERVED_ARGS:
            raise UsageError(f"spec.args: {word.split('=')[0]} is set by the operator: remove it")
    for field in ("requests", "limits"):
        for kind, amount in ((spec.get("resources") or {}).get(field) or {}).items():
            try:
                quantity(amount)
            except UsageError as error:
                raise UsageError(f"spec.resources.{field}.{kind}: {error}") from None


def _check_container(container: Object) -> None:
    """Check that a teacher knows its coordinator, and that it can authenticate callers.

    Raises:
        UsageError: the teacher would not start, or clients would not find it.
    """
    coordinator_known = check_coordinator(container)
    if container.get("envFrom"):
        return  # its variables are unknown here, and may contain both
    if not coordinator_known:
        raise UsageError(
            "spec.coordinator: teachers register in the mesh's Redis: set the URL of Redis, or"
            " start the operator with --redis"
        )
    names = {word.split("=")[0] for word in container.get("args") or ()}
    names |= {variable["name"] for variable in container.get("env") or ()}
    if not names & _CREDENTIALS:
        raise UsageError(
            "spec.args: teachers are reached from other machines, and callers are not"
            " authenticated: add --tokens (of a Secret that spec.podTemplate mounts), or"
            " --insecure if the network is trusted; with --tls ca=FILE, --insecure concerns only"
            " metrics and health"
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
        "securityContext": POD_SECURITY,
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
    return pod | _spot_fields() if spec.get("spot") else pod


def _spot_fields() -> Object:
    """Return tolerations and affinity of pods that may run on spot machines."""
    tolerations: list[Object] = [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        if value is None
        else {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        for key, value in _SPOT_TAINTS
    ]
    tolerations += unreachable_tolerations(_UNREACHABLE_S)
    preferred = [
        {
            "weight": 100,
            "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
        }
        for key, value in _SPOT_LABELS
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return {"tolerations": tolerations, "affinity": affinity}


def _ports(port: int) -> tuple[tuple[str, int], ...]:
    """Return name and number of all ports of a teacher; `port` is its gRPC port."""
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
        # ten minutes to load the model, warm up and pass the self-test
        "startupProbe": _probe("/health/ready", periodSeconds=2, failureThreshold=300),
        "livenessProbe": _probe("/health/live", periodSeconds=10, failureThreshold=3),
        "readinessProbe": _probe("/health/ready", periodSeconds=5, failureThreshold=3),
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", _DRAIN]}}},
        **({"resources": resources} if resources else {}),
        "securityContext": CONTAINER_SECURITY,
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
        f"--model={escaped(spec['model'])}",
        f"--service={service}",
        f"--listen=0.0.0.0:{port}",
        f"--http={port + 1}",
        f"--transport-port={port + 2}",
        f"--metrics-listen=0.0.0.0:{METRICS_PORT}",
        f"--grace={spec['graceSeconds']}",
        *(spec.get("args") or ()),
    ]


def _env(resource: Object, coordinator: str | None) -> list[Object]:
    """Return the environment variables; the user's come last, so that they may refer to ours."""
    spec = resource["spec"]
    fields = {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
    }
    pod_fields: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in fields.items()
    ]
    url = spec.get("coordinator") or coordinator
    values: dict[str, Any] = {
        "HOME": "/tmp",
        # `ServicePoller` subtracts teachers without this prefix from the coordinator's count.
        "EDL_TEACHER_ID": f"{FLEET_PREFIX}$(POD_NAME)",
        "EDL_ADVERTISE": "$(POD_IP)",
        **({"EDL_COORDINATOR": url} if url else {}),
        **(spec.get("env") or {}),
    }
    return pod_fields + [{"name": name, "value": value} for name, value in values.items()]


def _probe(path: str, **settings: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "metrics", "scheme": "HTTP"},
        "timeoutSeconds": 5,
        **settings,
    }
