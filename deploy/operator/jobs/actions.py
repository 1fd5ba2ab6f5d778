"""Acts on one job: writes its status, then deletes and creates pods.

An operator may die between any two calls. The next one continues from the written status: assigned
numbers of nodes are used up even if their pods do not exist, and a pod that should have left is a
surplus again.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from ....mesh.kubernetes.client import Client
from ....mesh.kubernetes.resources import DISTILL_JOB, POD, Object
from ....runtime.errors import (
    Forbidden,
    KubernetesObjectChanged,
    KubernetesObjectExists,
    KubernetesObjectMissing,
    ManifestRefused,
)
from ..config import OperatorConfig
from ..events import ResourceEvent, post_events
from .ledger import JobActions, PodLedger, record_refusal
from .pods import pod_of
from .status import changes, ledger_fields, status_of

log = logging.getLogger(__name__)

_NUMBERS: Final = re.compile(r"\d+")


def apply_actions(
    client: Client,
    resource: Object,
    pods: dict[int, Object],
    actions: JobActions,
    config: OperatorConfig,
    now: float,
) -> bool:
    """Apply the actions for one job.

    Args:
        client: of the cluster.
        resource: the DistillJob as it was read.
        pods: its pods as they were read, by number.
        actions: the actions.
        config: settings of the operator.
        now: seconds since 1970.

    Returns:
        False: the job was changed since it was read, and nothing was done; observe it again.

    Raises:
        EdlError: see `Client`.
    """
    changed = changes(resource.get("status") or {}, status_of(resource, actions, now))
    if changed:
        try:
            resource = client.patch_status(DISTILL_JOB, resource, changed)
        except (KubernetesObjectChanged, KubernetesObjectMissing) as error:
            log.debug("job %s is looked at again: %s", actions.job, error)
            return False
    for number in (*actions.leave, *actions.forget):
        own = pods[number]["metadata"]
        # The version excludes a pod that has ended meanwhile: its end has to be recorded.
        version = own["resourceVersion"]
        client.delete(POD, own["name"], own["namespace"], uid=own["uid"], resource_version=version)
    notices = [*actions.notices, *_start(client, resource, actions, config, now)]
    post_events(client, resource, notices, now)
    return True


def _start(
    client: Client, resource: Object, actions: JobActions, config: OperatorConfig, now: float
) -> list[ResourceEvent]:
    made = 0
    for number in actions.start:
        try:
            client.create(POD, pod_of(resource, number, config.coordinator))
            made += 1
        except KubernetesObjectExists as error:
            # It is a pod of a deleted job of this name: use the next number.
            log.info("node %d is not started: %s", number, error)
        except (Forbidden, ManifestRefused) as error:
            why = f"node {number} cannot be started: {error}"
            never = isinstance(error, ManifestRefused)
            there = actions.nodes + made
            after = record_refusal(actions.ledger, there, why, now, config, never=never)
            return _keep(client, resource, actions.ledger, after)
    return []


def _keep(
    client: Client, resource: Object, before: PodLedger, after: PodLedger
) -> list[ResourceEvent]:
    """Record a refused pod in the ledger; return what to report."""
    changed_fields = changes(resource.get("status") or {}, ledger_fields(after))
    try:
        client.patch_status(DISTILL_JOB, resource, changed_fields)
    except (KubernetesObjectChanged, KubernetesObjectMissing) as changed:
        log.debug("it is tried again at once: %s", changed)
    # A message that differs only in numbers is not repeated.
    is_known = _NUMBERS.sub("", after.why) == _NUMBERS.sub("", before.why)
    return [] if is_known else [ResourceEvent("NodeRefused", after.why, warns=True)]
