"""One turn of all TeacherServices: look, decide, tell, act."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from ....errors import (
    EdlError,
    Forbidden,
    LeaseSuperseded,
    ManifestRefused,
    ObjectChanged,
    ObjectMissing,
    Unauthenticated,
    UnavailableError,
    UsageError,
)
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
from ..capacity import checked_requests_of
from ..config import OperatorConfig
from ..happenings import post
from ..templates import covers, made_from, marked
from ..troubles import Troubles
from .count import Count, Wish, count_of
from .manifests import deployment_of, pod_spec_of, service_manifest_of, service_of
from .room import Room
from .telling import happenings_of, refusal_of, status_of

log = logging.getLogger(__name__)

#: Of the Deployments and Services that are made here.
_MADE: Final = selector(labels_of("teacher"))


class Desires(Protocol):
    """Who says how many teachers are desired: `Numbers`, or a test."""

    def of(self, url: str, service: str) -> int | None:
        """Teachers; None: nobody says it now."""

    def keep(self, wanted: set[tuple[str, str]]) -> None:
        """Nobody else is asked for any more."""


class TeacherServices:
    """See the package. Used by one thread, of the operator that leads.

    Args:
        client: of the cluster.
        config: how the operator works.
        numbers: who says how many teachers are desired.
    """

    def __init__(self, client: Client, config: OperatorConfig, numbers: Desires) -> None:
        self._client, self._config, self._numbers = client, config, numbers
        self._troubles, self._blind = Troubles(), Troubles()

    def turn(self, now: float) -> None:
        """Bring all services nearer to what they shall be.

        Args:
            now: seconds since 1970.

        Raises:
            LeaseSuperseded: this operator leads no more.
            EdlError: the cluster does not answer, or does not allow what is needed.
            Exception: no service could be seen to, for this or the like.
        """
        where = self._config.namespace
        listed = self._client.list(TEACHER_SERVICE, namespace=where)
        alive = [one for one in listed if "deletionTimestamp" not in one["metadata"]]
        self._troubles.keep({one["metadata"]["uid"] for one in alive})
        self._numbers.keep({pair for one in alive if (pair := self._asked(one)) is not None})
        if not alive:
            return
        made = {
            kind: {key_of(one): one for one in self._client.list(kind, _MADE, where)}
            for kind in (DEPLOYMENT, SERVICE)
        }
        room = Room(self._client, self._config, self._blind, made[DEPLOYMENT].values())
        failed: list[Exception] = []
        for resource in alive:
            meta = resource["metadata"]
            try:
                self._one(resource, made, room, now)
                self._troubles.over(meta["uid"])
            except (LeaseSuperseded, UnavailableError, Unauthenticated):
                raise
            except ObjectMissing as error:
                log.info("%s has gone meanwhile: %s", meta["name"], error)
            except ObjectChanged as error:  # which wakes the next turn
                log.debug("%s has changed meanwhile: %s", meta["name"], error)
            except Exception as error:  # this one's trouble is not the others'
                odd = not isinstance(error, EdlError)  # nobody has thought of it: where is it from?
                what = f"service {meta['name']}"
                self._troubles.tell(log, meta["uid"], what, error, traceback=odd)
                failed.append(error)
        if len(failed) == len(alive):  # that is hardly the trouble of each
            raise failed[0]

    def _asked(self, resource: Object) -> tuple[str, str] | None:
        """Whom its number is asked of; None: nobody."""
        url = resource["spec"].get("coordinator") or self._config.coordinator
        if url is None or resource["spec"].get("replicas") is not None:
            return None
        return url, service_of(resource)

    def _one(
        self,
        resource: Object,
        made: dict[Kind, dict[tuple[str, str], Object]],
        room: Room,
        now: float,
    ) -> None:
        deployment = made[DEPLOYMENT].get(key_of(resource))
        try:
            service = self._found(SERVICE, resource, made)
            deployment = self._found(DEPLOYMENT, resource, made)
            count, manifest = self._wanted(resource, deployment, room)
        except UsageError as error:
            self._tell(resource, refusal_of(resource, deployment, str(error), now), now)
            return
        applied = deployment is not None and made_from(deployment) == made_from(marked(manifest))
        status = status_of(resource, deployment, count, now, applied=applied)
        # What was decided is written down before it is done: whoever goes on from here finds it.
        # Only what was refused before has to be taken first.
        refused = _is_invalid(resource.get("status") or {})
        if not refused:
            self._tell(resource, status, now)
        try:
            self._have(SERVICE, resource, service, service_manifest_of(resource))
            self._have(DEPLOYMENT, resource, deployment, manifest)
            room.promise(manifest)
        except (ManifestRefused, Forbidden) as error:  # a quota forbids, too
            why = f"the cluster refuses what would be made of it: {error}"
            status = refusal_of(resource, deployment, why, now)
        self._tell(resource, status, now)

    def _found(
        self, kind: Kind, resource: Object, made: dict[Kind, dict[tuple[str, str], Object]]
    ) -> Object | None:
        """What there is of this name.

        Raises:
            UsageError: it is somebody else's.
        """
        meta = resource["metadata"]
        found = made[kind].get(key_of(resource))
        if found is None:  # it may have lost its labels, too
            found = self._client.find(kind, meta["name"], meta["namespace"])
        if found is not None and not is_controlled_by(found, meta["uid"]):
            raise UsageError(
                f"there is a {kind.kind} {meta['name']!r} that is not this service's: delete it, or"
                " give this service another name"
            )
        return found

    def _wanted(
        self, resource: Object, deployment: Object | None, room: Room
    ) -> tuple[Count, Object]:
        """How many teachers, and their Deployment.

        Raises:
            UsageError: it cannot be had so.
        """
        spec = resource["spec"]
        manifest = deployment_of(resource, 0, self._config.coordinator)
        checked_requests_of(pod_spec_of(manifest))
        wish = Wish(
            spec.get("replicas"), spec["minReplicas"], spec["maxReplicas"], spec["scaleToZero"]
        )
        last = (resource.get("status") or {}).get("desired")
        asked = self._asked(resource)
        desired = None if asked is None else self._numbers.of(*asked)
        count = count_of(wish, desired, last)
        if count.cause == "desired" and count.count > (last or 0):
            count = count_of(wish, desired, last, room.of(manifest))
        manifest["spec"]["replicas"] = count.count
        return count, manifest

    def _tell(self, resource: Object, status: Object, now: float) -> None:
        """Write a status if it says something new, and what has happened."""
        before = resource.get("status") or {}
        if status == before:
            return
        told = happenings_of(resource, status)
        gone = {key: None for key in before if key not in status}
        meta = resource["metadata"]
        done = self._client.patch(
            TEACHER_SERVICE,
            meta["name"],
            {"status": {**status, **gone}},
            meta["namespace"],
            subresource="status",
            resource_version=meta["resourceVersion"],  # who leads no more has read an older one
        )
        meta["resourceVersion"] = done["metadata"]["resourceVersion"]
        resource["status"] = status
        post(self._client, told, now)  # of what stands there now: it may have been refused

    def _have(self, kind: Kind, resource: Object, found: Object | None, manifest: Object) -> None:
        """Let an object be as it is wanted: made, or those fields of it put right that are ours."""
        wanted = marked(manifest)
        if found is not None and "deletionTimestamp" in found["metadata"]:
            return  # it is made anew when it has gone
        if found is None or not covers(found, wanted):
            self._client.apply(kind, wanted, resource["metadata"]["namespace"])


def _is_invalid(status: Object) -> bool:
    return any(one["type"] == "InvalidSpec" for one in status.get("conditions") or ())
