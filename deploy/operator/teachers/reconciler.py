"""Reconciles all TeacherServices: observe, decide, write the status, act."""

from __future__ import annotations

import logging
from typing import Final

from ....mesh.kubernetes.client import Client
from ....mesh.kubernetes.resources import (
    DEPLOYMENT,
    SERVICE,
    TEACHER_SERVICE,
    Kind,
    Object,
    is_controlled_by,
    key_of,
    labels_of,
    selector,
)
from ....runtime.errors import (
    EdlError,
    Forbidden,
    KubernetesObjectChanged,
    KubernetesObjectMissing,
    ManifestRefused,
    UsageError,
)
from ..capacity import checked_requests_of
from ..config import OperatorConfig
from ..error_log import ErrorLog, ends_round
from ..events import post_events
from ..templates import covers, manifest_hash, with_hash
from .coordinator_counts import CoordinatorCounts
from .manifests import deployment_of, pod_spec_of, service_manifest_of, service_of
from .replica_count import ReplicaBounds, ReplicaCount, count_of
from .status import events_of, refused_status_of, status_of
from .teacher_room import TeacherRoom

log = logging.getLogger(__name__)

#: Selects Deployments and Services that the operator created for teachers.
_OWN_SELECTOR: Final = selector(labels_of("teacher"))


class TeacherServiceReconciler:
    """Its method `reconcile` is a `loop.Reconciler`. Use it from one thread.

    Args:
        client: of the cluster.
        config: settings of the operator.
        desired_counts: the numbers of teachers that coordinators want.
    """

    def __init__(
        self, client: Client, config: OperatorConfig, desired_counts: CoordinatorCounts
    ) -> None:
        self._client, self._config, self._desired_counts = client, config, desired_counts
        self._errors, self._room_errors = ErrorLog(), ErrorLog()

    def reconcile(self, now: float) -> None:
        """Bring all services nearer to their desired state.

        Args:
            now: seconds since 1970.

        Raises:
            LeaseSuperseded: this operator no longer leads, or ends.
            EdlError: the cluster does not answer, or denies access.
            Exception: every service failed; this is the first error.
        """
        namespace = self._config.namespace
        listed = self._client.list(TEACHER_SERVICE, namespace=namespace)
        alive = [service for service in listed if "deletionTimestamp" not in service["metadata"]]
        self._errors.retain({service["metadata"]["uid"] for service in alive})
        sources = map(self._count_source, alive)
        self._desired_counts.keep({source for source in sources if source is not None})
        if not alive:
            return
        existing = {
            kind: {key_of(each): each for each in self._client.list(kind, _OWN_SELECTOR, namespace)}
            for kind in (DEPLOYMENT, SERVICE)
        }
        room = TeacherRoom(
            self._client, self._config, self._room_errors, existing[DEPLOYMENT].values()
        )
        errors: list[Exception] = []
        for resource in alive:
            meta = resource["metadata"]
            try:
                self._reconcile_one(resource, existing, room, now)
                self._errors.clear(meta["uid"])
            except KubernetesObjectMissing as error:
                log.info("%s was deleted meanwhile: %s", meta["name"], error)
            except KubernetesObjectChanged as error:  # the change wakes the loop
                log.debug("%s has changed meanwhile: %s", meta["name"], error)
            except Exception as error:  # must not affect other services
                if ends_round(error):
                    raise
                is_unexpected = not isinstance(error, EdlError)
                what = f"service {meta['name']}"
                self._errors.report(log, meta["uid"], what, error, traceback=is_unexpected)
                errors.append(error)
        if len(errors) == len(alive):  # the cause may concern all services
            raise errors[0]

    def _count_source(self, resource: Object) -> tuple[str, str] | None:
        """Return where to read the desired number: Redis URL and service.

        None: the spec sets the number, or there is no URL.
        """
        url = resource["spec"].get("coordinator") or self._config.coordinator
        if url is None or resource["spec"].get("replicas") is not None:
            return None
        return url, service_of(resource)

    def _reconcile_one(
        self,
        resource: Object,
        existing: dict[Kind, dict[tuple[str, str], Object]],
        room: TeacherRoom,
        now: float,
    ) -> None:
        deployment = existing[DEPLOYMENT].get(key_of(resource))
        try:
            service = self._existing(SERVICE, resource, existing)
            deployment = self._existing(DEPLOYMENT, resource, existing)
            count, manifest = self._desired(resource, deployment, room)
        except UsageError as error:
            self._write_status(
                resource, refused_status_of(resource, deployment, str(error), now), now
            )
            return
        hashed = with_hash(manifest)
        in_sync = deployment is not None and manifest_hash(deployment) == manifest_hash(hashed)
        status = status_of(resource, deployment, count, now, in_sync=in_sync)
        # Write a decision before applying it, so that the next operator finds it. After a refusal,
        # however, the cluster must accept the objects first.
        refused = _is_invalid(resource.get("status") or {})
        if not refused:
            self._write_status(resource, status, now)
        try:
            self._ensure(SERVICE, service, service_manifest_of(resource))
            self._ensure(DEPLOYMENT, deployment, manifest)
            room.reserve(manifest)
        except (ManifestRefused, Forbidden) as error:  # Forbidden: for example by a quota
            why = f"the cluster refuses its objects: {error}"
            status = refused_status_of(resource, deployment, why, now)
        self._write_status(resource, status, now)

    def _existing(
        self, kind: Kind, resource: Object, existing: dict[Kind, dict[tuple[str, str], Object]]
    ) -> Object | None:
        """Return the existing object of this name.

        Raises:
            UsageError: it does not belong to this resource.
        """
        meta = resource["metadata"]
        current = existing[kind].get(key_of(resource))
        if current is None:  # its labels may have been removed
            current = self._client.find(kind, meta["name"], meta["namespace"])
        if current is not None and not is_controlled_by(current, meta["uid"]):
            raise UsageError(
                f"there is a {kind.kind} {meta['name']!r} that is not this service's: delete it, or"
                " rename this service"
            )
        return current

    def _desired(
        self, resource: Object, deployment: Object | None, room: TeacherRoom
    ) -> tuple[ReplicaCount, Object]:
        """Return the number of teachers, and the manifest of their Deployment.

        Raises:
            UsageError: the spec is invalid.
        """
        spec = resource["spec"]
        manifest = deployment_of(resource, 0, self._config.coordinator)
        checked_requests_of(pod_spec_of(manifest))
        bounds = ReplicaBounds(
            spec.get("replicas"), spec["minReplicas"], spec["maxReplicas"], spec["scaleToZero"]
        )
        last = (resource.get("status") or {}).get("desired")
        source = self._count_source(resource)
        desired = None if source is None else self._desired_counts.of(*source)
        count = count_of(bounds, desired, last)
        if count.cause == "FollowsCoordinator" and count.count > (last or 0):
            count = count_of(bounds, desired, last, room.of(manifest))
        manifest["spec"]["replicas"] = count.count
        return count, manifest

    def _write_status(self, resource: Object, status: Object, now: float) -> None:
        """Write a changed status, and its events."""
        before = resource.get("status") or {}
        if status == before:
            return
        events = events_of(resource, status)
        removed = {key: None for key in before if key not in status}
        # This raises if the resource has changed since it was read, for example by a new leader.
        written = self._client.patch_status(TEACHER_SERVICE, resource, {**status, **removed})
        resource["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"]
        resource["status"] = status
        post_events(self._client, resource, events, now)  # only if the write was not refused

    def _ensure(self, kind: Kind, current: Object | None, manifest: Object) -> None:
        """Create an object, or correct its fields that are in the manifest."""
        wanted = with_hash(manifest)
        if current is not None and "deletionTimestamp" in current["metadata"]:
            return  # a round after its deletion creates it again
        if current is None or not covers(current, wanted):
            self._client.apply(kind, wanted)


def _is_invalid(status: Object) -> bool:
    return any(condition["type"] == "InvalidSpec" for condition in status.get("conditions") or ())
