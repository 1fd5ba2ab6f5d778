"""What has happened to a resource, as Events of Kubernetes: `kubectl describe` shows them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ...errors import EdlError, LeaseSuperseded, ObjectExists
from ...mesh.kubernetes.client import Client
from ...mesh.kubernetes.resources import EVENT, OPERATOR, Object, rfc3339_s

log = logging.getLogger(__name__)

#: What the API takes as the text of an event.
_LONGEST: Final = 1024


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that has happened.

    Attributes:
        regarding: the resource that it has happened to, as it was read.
        reason: in one word, CamelCase: "Scaled".
        message: in a sentence.
        severity: "Warning" for what a user should look at.
    """

    regarding: Object
    reason: str
    message: str
    severity: Literal["Normal", "Warning"] = "Normal"


def post(client: Client, happenings: Iterable[Happening], now: float) -> None:
    """Write them down; what cannot be written is logged alone, for nothing depends on it.

    The same happening again, with the same words, is counted in the same event.

    Args:
        client: of the cluster.
        happenings: in their order.
        now: seconds since 1970.

    Raises:
        LeaseSuperseded: from the client's own hook, when this operator leads no more.
    """
    for one in happenings:
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


def _write(client: Client, one: Happening, now: float) -> None:
    event = manifest(one, now)
    namespace = event["metadata"]["namespace"]
    try:
        client.create(EVENT, event, namespace)
    except ObjectExists:
        name = event["metadata"]["name"]
        count = client.get(EVENT, name, namespace).get("count", 1) + 1
        client.patch(
            EVENT, name, {"count": count, "lastTimestamp": event["lastTimestamp"]}, namespace
        )


def manifest(one: Happening, now: float) -> Object:
    """The event; its name is that of all events with these words about this resource."""
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
