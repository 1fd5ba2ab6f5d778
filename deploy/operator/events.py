"""Events of Kubernetes about resources, which `kubectl describe` shows."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Final

from ...mesh.kubernetes.client import Client
from ...mesh.kubernetes.resources import EVENT, OPERATOR, Object, key_of, rfc3339_s
from ...runtime.errors import EdlError, KubernetesObjectExists, LeaseSuperseded
from .conditions import ResourceEvent

log = logging.getLogger(__name__)

#: Limit of the characters of an event's message.
_MESSAGE_CHARS: Final = 1024


def post_events(
    client: Client, resource: Object, events: Iterable[ResourceEvent], now: float
) -> None:
    """Log events and write them to the cluster; an event that cannot be written is only logged.

    A repeated event with the same message increases the count of the existing one.

    Args:
        client: of the cluster.
        resource: the resource of all events, as it was read.
        events: the events, in the order in which they are written.
        now: seconds since 1970.

    Raises:
        LeaseSuperseded: this operator no longer leads, or ends; the client's hook raises it.
    """
    kind, (namespace, name) = resource["kind"], key_of(resource)
    for event in events:
        level = logging.WARNING if event.warns else logging.INFO
        log.log(level, "%s %s/%s: %s: %s", kind, namespace, name, event.reason, event.message)
        try:
            _write(client, _manifest(resource, event, now))
        except LeaseSuperseded:
            raise
        except EdlError as error:
            log.warning("an event could not be written: %s", error)


def _write(client: Client, manifest: Object) -> None:
    namespace = manifest["metadata"]["namespace"]
    try:
        client.create(EVENT, manifest, namespace)
    except KubernetesObjectExists:
        name = manifest["metadata"]["name"]
        count = client.get(EVENT, name, namespace).get("count", 1) + 1
        client.patch(
            EVENT, name, {"count": count, "lastTimestamp": manifest["lastTimestamp"]}, namespace
        )


def _manifest(resource: Object, event: ResourceEvent, now: float) -> Object:
    """Return the manifest of an Event; equal events of a resource get the same name."""
    meta, severity = resource["metadata"], "Warning" if event.warns else "Normal"
    content = f"{meta['uid']} {severity} {event.reason} {event.message}"
    namespace = meta.get("namespace", "default")
    return {
        "metadata": {
            "name": f"{meta['name']}.{hashlib.sha256(content.encode()).hexdigest()[:16]}",
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            "name": meta["name"],
            "namespace": namespace,
            "uid": meta["uid"],
        },
        "type": severity,
        "reason": event.reason,
        "message": event.message[:_MESSAGE_CHARS],
        "source": {"component": OPERATOR},
        "reportingComponent": OPERATOR,
        "firstTimestamp": rfc3339_s(now),
        "lastTimestamp": rfc3339_s(now),
        "count": 1,
    }
