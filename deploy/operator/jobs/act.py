"""Carries out what was decided about one job: first its status is written, then pods come and go.

Whoever does it may die between any two calls. What was written is what the next one goes on from:
numbers of nodes that were given out are used up, whether their pods were made or not, and a pod
that was to leave is found to be one too many.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from ....errors import (
    EdlError,
    Forbidden,
    ManifestRefused,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
)
from ....mesh.kubernetes.client import Client
from ....mesh.kubernetes.resources import DISTILL_JOB, POD, Object, rfc3339
from ....scheduler.job_pods import Happening as Told
from ....scheduler.job_pods import Orders
from ....scheduler.job_states import Life
from ..happenings import Happening, post
from .pods import pod_of
from .status import changes, status_of

log = logging.getLogger(__name__)

#: After the cluster has not allowed a pod (a quota, a right), seconds.
_FORBIDDEN_PAUSE_S: Final = 300.0
_WHY_CHARS: Final = 600
_NUMBERS: Final = re.compile(r"\d+")


def carry_out(
    client: Client,
    resource: Object,
    pods: dict[int, Object],
    orders: Orders,
    coordinator: str | None,
    now: float,
) -> bool:
    """Do what is to be done about one job.

    Args:
        client: of the cluster.
        resource: the DistillJob as it was read.
        pods: its pods as they were read, by number.
        orders: for it.
        coordinator: Redis URL of jobs that name none.
        now: seconds since 1970.

    Returns:
        False: somebody has changed the job since it was read; nothing was done, look again.

    Raises:
        EdlError: see `Client`.
    """
    meta = resource["metadata"]
    name, namespace = meta["name"], meta["namespace"]
    told = changes(resource.get("status") or {}, status_of(resource, orders, now))
    if told:
        try:
            resource = client.patch(
                DISTILL_JOB,
                name,
                {"status": told},
                namespace,
                subresource="status",
                resource_version=meta["resourceVersion"],
            )
        except (ObjectChanged, ObjectMissing) as error:
            log.debug("job %s is looked at again: %s", name, error)
            return False
    for number in (*orders.leave, *orders.forget):
        own = pods[number]["metadata"]
        # One that has ended in the meantime is not told to leave: how it ended has to be noted.
        client.delete(
            POD, own["name"], namespace, uid=own["uid"], resource_version=own["resourceVersion"]
        )
    refused = _start(client, resource, orders, coordinator, now)
    told_of = [*orders.happenings, *refused]
    post(
        client,
        [
            Happening(resource, one.word, one.message, "Warning" if one.warns else "Normal")
            for one in told_of
        ],
        now,
    )
    return True


def _start(
    client: Client, resource: Object, orders: Orders, coordinator: str | None, now: float
) -> list[Told]:
    made = 0
    for number in orders.start:
        try:
            client.create(POD, pod_of(resource, number, coordinator))
            made += 1
        except ObjectExists as error:  # of a job of this name that was deleted: the next number
            log.info("node %d is not started: %s", number, error)
        except (Forbidden, ManifestRefused) as error:
            return _note_refused(client, resource, orders, (number, made), error, now)
    return []


def _note_refused(
    client: Client,
    resource: Object,
    orders: Orders,
    refused: tuple[int, int],
    error: EdlError,
    now: float,
) -> list[Told]:
    """A pod is not taken: what the API server never takes counts as a node that failed.

    What it does not allow has no place, so that its room is others' until it is asked for again.
    """
    meta, before = resource["metadata"], orders.ledger
    number, made = refused
    why = f"node {number} cannot be started: {error}"[:_WHY_CHARS]
    status: Object = {"lastFailure": why}
    if isinstance(error, ManifestRefused):
        life = Life(failures=before.failures).after("failed")
        status |= {"failures": life.failures, "retryAt": rfc3339(now + life.delay_s)}
    else:
        until = rfc3339(now + _FORBIDDEN_PAUSE_S)
        status |= {"placeable": orders.nodes + made, "placeableUntil": until}
    try:
        client.patch(
            DISTILL_JOB,
            meta["name"],
            {"status": status},
            meta["namespace"],
            subresource="status",
            resource_version=meta["resourceVersion"],
        )
    except (ObjectChanged, ObjectMissing) as changed:
        log.debug("it is tried again at once: %s", changed)
    # The same again, but for numbers, is not told again.
    told = _NUMBERS.sub("", why) == _NUMBERS.sub("", before.why)
    return [] if told else [Told("NodeRefused", why, warns=True)]
