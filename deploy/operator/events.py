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

#: Most characters of the text of an event.
_LONGEST: Final = 1024


def post_events(
    client: Client, resource: Object, events: Iterable[ResourceEvent], now: float
) -> None:
    """Log events and write them to the cluster; one that cannot be written is only logged.

    A repeated event with the same text is counted in the existing one.

    Args:
        client: of the cluster.
        resource: the resource of all events, as it was read.
        events: in their order.
        now: seconds since 1970.

    Raises:
        LeaseSuperseded: this operator no longer leads; the client's hook raises it.
    """
    kind, (namespace, name) = resource["kind"], key_of(resource)
    for one in events:
        level = logging.WARNING if one.warns else logging.INFO
        log.log(level, "%s %s/%s: %s: %s", kind, namespace, name, one.reason, one.message)
        try:
            _write(client, _manifest(resource, one, now))
        except LeaseSuperseded:
            raise
        except EdlError as error:
            log.warning("an event could not be written: %s", error)


def _write(client: Client, event: Object) -> None:
    namespace = event["metadata"]["namespace"]
    try:
        client.create(EVENT, event, namespace)
    except KubernetesObjectExists:
        name = event["metadata"]["name"]
        count = client.get(EVENT, name, namespace).get("count", 1) + 1
        client.patch(
            EVENT, name, {"count": count, "lastTimestamp": event["lastTimestamp"]}, namespace
        )


def _manifest(resource: Object, one: ResourceEvent, now: float) -> Object:
    """Return the object; equal events of a resource have the same name."""
    meta, severity = resource["metadata"], "Warning" if one.warns else "Normal"
    words = f"{meta['uid']} {severity} {one.reason} {one.message}"
    namespace = meta.get("namespace", "default")
    return {
        "metadata": {
            "name": f"{meta['name']}.{hashlib.sha256(words.encode()).hexdigest()[:16]}",
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
        "reason": one.reason,
        "message": one.message[:_LONGEST],
        "source": {"component": OPERATOR},
        "reportingComponent": OPERATOR,
        "firstTimestamp": rfc3339_s(now),
        "lastTimestamp": rfc3339_s(now),
        "count": 1,
    }
