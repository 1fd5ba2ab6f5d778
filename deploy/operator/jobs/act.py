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
    Forbidden,
    ManifestRefused,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
)
from ....mesh.kubernetes.client import Client
from ....mesh.kubernetes.resources import DISTILL_JOB, POD, Object
from ..happenings import Happening, post
from .ledger import Happening as Told
from .ledger import Orders, PodLedger, PodsConfig, refused
from .pods import pod_of
from .status import changes, ledger_fields, status_of

log = logging.getLogger(__name__)

_NUMBERS: Final = re.compile(r"\d+")


def carry_out(
    client: Client,
    resource: Object,
    pods: dict[int, Object],
    orders: Orders,
    config: PodsConfig,
    coordinator: str | None,
    now: float,
) -> bool:
    """Do what is to be done about one job.

    Args:
        client: of the cluster.
        resource: the DistillJob as it was read.
        pods: its pods as they were read, by number.
        orders: for it.
        config: of all jobs.
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
    told_of = [*orders.happenings, *_start(client, resource, orders, config, coordinator, now)]
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
    client: Client,
    resource: Object,
    orders: Orders,
    config: PodsConfig,
    coordinator: str | None,
    now: float,
) -> list[Told]:
    made = 0
    for number in orders.start:
        try:
            client.create(POD, pod_of(resource, number, coordinator))
            made += 1
        except ObjectExists as error:  # of a job of this name that was deleted: the next number
            log.info("node %d is not started: %s", number, error)
        except (Forbidden, ManifestRefused) as error:
            why = f"node {number} cannot be started: {error}"
            never = isinstance(error, ManifestRefused)
            there = orders.nodes + made
            after = refused(orders.ledger, there, why, now, config, never=never)
            return _keep(client, resource, orders.ledger, after)
    return []


def _keep(client: Client, resource: Object, before: PodLedger, after: PodLedger) -> list[Told]:
    """Write down what follows from a pod that was refused; what there is to tell of it."""
    meta = resource["metadata"]
    try:
        client.patch(
            DISTILL_JOB,
            meta["name"],
            {"status": changes(resource.get("status") or {}, ledger_fields(after))},
            meta["namespace"],
            subresource="status",
            resource_version=meta["resourceVersion"],
        )
    except (ObjectChanged, ObjectMissing) as changed:
        log.debug("it is tried again at once: %s", changed)
    # The same again, but for numbers, is not told again.
    told = _NUMBERS.sub("", after.why) == _NUMBERS.sub("", before.why)
    return [] if told else [Told("NodeRefused", after.why, warns=True)]
