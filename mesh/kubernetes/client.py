"""Objects of Kubernetes, got, made and changed, as plain dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

from ...runtime.errors import KubernetesUnavailable, ObjectChanged, ObjectMissing
from .resources import OPERATOR, POD, Kind, Object, Objects
from .transport import Connection, Transport, connect

__all__ = ["ALL_NAMESPACES", "Client", "Connection", "connect"]

#: Every namespace, where one is expected.
ALL_NAMESPACES: Final = ""
#: Objects that one answer to a list brings at most.
_PAGE: Final = 500


class Client:
    """Objects of one API server, as plain dicts. Any number of threads may use it.

    Every method raises, of `runtime/errors.py`:

    - KubernetesUnavailable: the server does not answer, is overloaded or fails: try again later;
    - Unauthenticated, Forbidden: our credentials, or what they allow;
    - ManifestRefused: it is no such object: its schema, a rule, an admission webhook;
    - ObjectMissing, ObjectExists, ObjectChanged, where a method says so.

    Args:
        connection: from `connect`.
        timeout_s: for each answer, and for each piece of a log.
        hook: called with method and path before each request; what it raises stops the request.
        transport: another one than that, which then brings time and hook with it.

    Attributes:
        namespace: where objects are, where nobody says another.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        timeout_s: float = 30.0,
        hook: Callable[[str, str], None] | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._transport = transport or Transport(connection, timeout_s=timeout_s, hook=hook)
        self.namespace = connection.namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what connections there are."""
        self._transport.close()

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """One object.

        Args:
            kind: its kind.
            name: its name.
            namespace: None: the client's own.

        Raises:
            ObjectMissing: there is none of this name.
        """
        return self._transport.json("GET", self._path(kind, namespace, name))

    def find(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """As `get`; None: there is none."""
        try:
            return self.get(kind, name, namespace)
        except ObjectMissing:
            return None

    def list(
        self, kind: Kind, labels: str = "", namespace: str | None = None, fields: str = ""
    ) -> Objects:
        """All objects of a kind, by name; each says its `apiVersion` and `kind`.

        Args:
            kind: which kind.
            labels: a label selector, as of `resources.selector`.
            namespace: None: the client's own; ALL_NAMESPACES: all.
            fields: a field selector, such as "status.phase=Running".

        Raises:
            ObjectMissing: the cluster does not know the kind (`unknown_kind`).
        """
        query: dict[str, str | int] = {"limit": _PAGE}
        query.update({"labelSelector": labels} if labels else {})
        query.update({"fieldSelector": fields} if fields else {})
        path = self._path(kind, namespace)
        found: Objects = []
        while True:
            page = self._transport.json("GET", path, query)
            found += page["items"]
            more = page["metadata"].get("continue")
            if not more:
                break
            query["continue"] = more
        for one in found:
            one.update(apiVersion=kind.api_version, kind=kind.kind)
        return sorted(found, key=_name_of)

    def create(self, kind: Kind, body: Mapping[str, Any], namespace: str | None = None) -> Object:
        """Make an object; `namespace` None: the one that it says, else the client's own.

        Raises:
            ObjectExists: there is one of this name.
            ObjectMissing: there is no such namespace, or kind.
        """
        path = self._path(kind, namespace or body["metadata"].get("namespace"))
        full = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return self._transport.json("POST", path, body=full)

    def patch(
        self,
        kind: Kind,
        name: str,
        changes: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str = "",
        resource_version: str | None = None,
    ) -> Object:
        """Merge changes into an object (RFC 7386: null takes a field away, a list is replaced).

        Args:
            kind: its kind.
            name: its name.
            changes: what is to be otherwise, `{"spec": {"nodes": 3}}`.
            namespace: None: the client's own.
            subresource: "status" or "scale"; empty: all but the status.
            resource_version: of the object that was read; with another one nothing is changed.

        Raises:
            ObjectMissing: there is none.
            ObjectChanged: somebody has changed it since it was read.
        """
        body = dict(changes)
        if resource_version is not None:
            body["metadata"] = {
                **body.get("metadata", {}),
                "resourceVersion": resource_version,
            }
        return self._transport.json(
            "PATCH",
            self._path(kind, namespace, name, subresource),
            body=body,
            content_type="application/merge-patch+json",
        )

    def apply(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        force: bool = True,
    ) -> Object:
        """Make an object, or make those fields of it ours that `body` has (server-side apply).

        They are the operator's from then on; what it had said before and says no more is taken
        away.

        Args:
            kind: its kind.
            body: the fields that we want, and no others.
            namespace: None: the one that it says, else the client's own.
            force: take fields from others.

        Raises:
            ObjectChanged: others own a field, and `force` is not given.
        """
        meta = body["metadata"]
        full = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return self._transport.json(
            "PATCH",
            self._path(kind, namespace or meta.get("namespace"), meta["name"]),
            {"fieldManager": OPERATOR, "force": str(force).lower()},
            full,
            "application/apply-patch+yaml",
        )

    def replace(self, kind: Kind, body: Mapping[str, Any], namespace: str | None = None) -> Object:
        """Put an object that was read and changed in its place.

        Raises:
            ObjectMissing: there is none.
            ObjectChanged: it has another `resourceVersion` than `body`.
        """
        meta = body["metadata"]
        path = self._path(kind, namespace or meta.get("namespace"), meta["name"])
        return self._transport.json("PUT", path, body=body)

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_s: int | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> bool:
        """Order an object to go; what it owns goes after it.

        Args:
            kind: its kind.
            name: its name.
            namespace: None: the client's own.
            grace_s: for a pod to end, seconds; None: as the pod says; 0: at once.
            uid: of the one that is meant; another of the same name stays.
            resource_version: as it was read; one that has changed since stays.

        Returns:
            False: there was none, or not this one.
        """
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        meant = {"uid": uid, "resourceVersion": resource_version}
        if any(meant.values()):
            options["preconditions"] = {key: value for key, value in meant.items() if value}
        try:
            self._transport.json("DELETE", self._path(kind, namespace, name), body=options)
        except (ObjectMissing, ObjectChanged):
            return False
        return True

    def pod_log(
        self,
        pod: str,
        namespace: str | None = None,
        *,
        since_time: str = "",
        tail_lines: int | None = None,
        container: str = "",
    ) -> Iterator[str]:
        """Lines that a pod's container has printed so far, each after its time and a space.

        Args:
            pod: its name.
            namespace: None: the client's own.
            since_time: only what came after, RFC 3339.
            tail_lines: only so many of the last.
            container: its name; empty: the only one.

        Raises:
            ObjectMissing: there is no such pod.
            ManifestRefused: it has not started yet.
        """
        from urllib3.exceptions import HTTPError

        query: dict[str, str | int] = {"timestamps": "true"}
        query.update({"sinceTime": since_time} if since_time else {})
        query.update({"container": container} if container else {})
        query.update({} if tail_lines is None else {"tailLines": tail_lines})
        answer = self._transport.send(
            "GET", self._path(POD, namespace, pod, "log"), query, stream=True
        )
        rest = b""
        try:
            for block in answer.stream(1 << 16):
                *lines, rest = (rest + block).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        except HTTPError as error:
            raise KubernetesUnavailable(f"the log of {pod} broke off: {error}") from None
        finally:
            answer.close()
        if rest:
            yield rest.decode(errors="replace")

    def _path(
        self, kind: Kind, namespace: str | None, name: str = "", subresource: str = ""
    ) -> str:
        return kind.path(self.namespace if namespace is None else namespace, name, subresource)


def _name_of(found: Object) -> tuple[str, str]:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]
