"""Events of Kubernetes about resources, which `kubectl describe` shows."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ...mesh.kubernetes.client import Client
from ...mesh.kubernetes.resources import EVENT, OPERATOR, Object, rfc3339_s
from ...runtime.errors import EdlError, KubernetesObjectExists, LeaseSuperseded

log = logging.getLogger(__name__)

#: Most characters of the text of an event.
_LONGEST: Final = 1024


@dataclass(frozen=True, slots=True)
class ResourceEvent:
    """One event.

    Attributes:
        regarding: its resource, as it was read.
        reason: one word in CamelCase, such as "Scaled".
        message: a sentence.
        severity: "Warning" if a user should look at it.
    """

    regarding: Object
    reason: str
    message: str
    severity: Literal["Normal", "Warning"] = "Normal"


def post_events(client: Client, events: Iterable[ResourceEvent], now: float) -> None:
    """Log events and write them to the cluster; one that cannot be written is only logged.

    A repeated event with the same text is counted in the existing one.

    Args:
        client: of the cluster.
        events: in their order.
        now: seconds since 1970.

    Raises:
        LeaseSuperseded: this operator no longer leads; the client's hook raises it.
    """
    for one in events:
        meta = one.regarding["metadata"]
        level = logging.WARNING if one.severity == "Warning" else logging.INFO
        kind = one.regarding["kind"]
        log.log(
            level, "%s %s/%s: %s: %s",
            kind, meta.get("namespace", ""), meta["name"], one.reason, one.message,
        )  # fmt: skip
        try:
            _write(client, one, now)
        except LeaseSuperseded:
            raise
        except EdlError as error:
            log.warning("an event could not be written: %s", error)


def _write(client: Client, one: ResourceEvent, now: float) -> None:
    event = manifest(one, now)
    namespace = event["metadata"]["namespace"]
    try:
        client.create(EVENT, event, namespace)
    except KubernetesObjectExists:
        name = event["metadata"]["name"]
        count = client.get(EVENT, name, namespace).get("count", 1) + 1
        client.patch(
            EVENT, name, {"count": count, "lastTimestamp": event["lastTimestamp"]}, namespace
        )


def manifest(one: ResourceEvent, now: float) -> Object:
    """Return the object; equal events of a resource have the same name."""
    about = one.regarding
    meta = about["metadata"]
    words = f"{meta['uid']} {one.severity} {one.reason} {one.message}"
    namespace = meta.get("namespace", "default")
    return {
        "metadata": {
            "name": f"{meta['name']}.{hashlib.sha256(words.encode()).hexdigest()[:16]}",
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": meta["name"],
            "namespace": namespace,
            "uid": meta["uid"],
        },
        "type": one.severity,
        "reason": one.reason,
        "message": one.message[:_LONGEST],
        "source": {"component": OPERATOR},
        "reportingComponent": OPERATOR,
        "firstTimestamp": rfc3339_s(now),
        "lastTimestamp": rfc3339_s(now),
        "count": 1,
    }
