"""Client of the Kubernetes API; objects are plain dicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlencode

from ...runtime.errors import (
    EdlError,
    Forbidden,
    KubernetesObjectChanged,
    KubernetesObjectExists,
    KubernetesObjectMissing,
    KubernetesUnavailable,
    ManifestRefused,
    Unauthenticated,
    UsageError,
)
from ...runtime.extras import install_command
from .resources import GROUP, OPERATOR, POD, Kind, Object, Objects, key_of

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from urllib3 import BaseHTTPResponse

#: Value of `namespace` in `Client.list` for objects of all namespaces.
ALL_NAMESPACES: Final = ""
#: Maximum number of objects in a response to a list request.
_PAGE: Final = 500
#: File in a pod that contains the namespace of the pod.
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Connection:
    """Address of an API server, and credentials for it.

    Attributes:
        configuration: address, certificates and credentials; the official client renews tokens.
        namespace: default namespace.
    """

    configuration: Configuration
    namespace: str


def connect(
    kubeconfig: Path | None = None, context: str | None = None, namespace: str | None = None
) -> Connection:
    """Find the API server, and load credentials for it.

    Args:
        kubeconfig: path of the kubeconfig. None: the service account if this is a pod and `context`
            is None, otherwise `$KUBECONFIG` or ~/.kube/config.
        context: context of the kubeconfig; None: its current context.
        namespace: default namespace; None: that of the context or the pod, otherwise "default".

    Raises:
        UsageError: there is no such file or context, the file is no kubeconfig, or the extra `k8s`
            is not installed.
    """
    try:
        from kubernetes import config as untyped
        from kubernetes.client import Configuration
    except ImportError:
        raise UsageError(
            f"Kubernetes needs its Python client, which is not installed: {install_command('k8s')}"
        ) from None
    from yaml import YAMLError

    config: Any = untyped
    configuration = Configuration()
    try:
        if kubeconfig is None and context is None:
            try:
                config.load_incluster_config(client_configuration=configuration)
                return Connection(configuration, namespace or _pod_namespace())
            except config.ConfigException:
                pass  # not a pod
        file = None if kubeconfig is None else str(kubeconfig)
        config.load_kube_config(file, context, configuration, persist_config=False)
        contexts, active = config.list_kube_config_contexts(file)
    except (config.ConfigException, OSError) as error:
        raise UsageError(
            f"no Kubernetes cluster is configured: {error}; name another kubeconfig or context"
        ) from None
    except (YAMLError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise UsageError(
            f"{kubeconfig or 'the kubeconfig'} is no kubeconfig: {' '.join(str(error).split())}"
        ) from None
    if context is not None:
        active = next(one for one in contexts if one["name"] == context)
    context_namespace = active["context"].get("namespace") or "default"
    return Connection(configuration, namespace or context_namespace)


def _pod_namespace() -> str:
    try:
        return _POD_NAMESPACE.read_text().strip() or "default"
    except OSError:
        return "default"


class Client:
    """Client of one API server. Thread-safe.

    It never retries a request. All methods raise these errors of `runtime/errors.py`:

    - KubernetesUnavailable: the server does not answer, is overloaded or fails; retry later;
    - Unauthenticated, Forbidden: the credentials are wrong, or do not permit the request;
    - ManifestRefused: the schema, a rule or an admission webhook rejects the object;
    - KubernetesObjectMissing, KubernetesObjectExists, KubernetesObjectChanged: see the methods.

    Args:
        connection: result of `connect`.
        timeout_s: timeout in seconds for each response, and for each part of a log.
        hook: called with method and path before each request; an exception stops the request.

    Attributes:
        namespace: default namespace of all methods.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        timeout_s: float = 30.0,
        hook: Callable[[str, str], None] | None = None,
    ) -> None:
        from kubernetes.client.rest import RESTClientObject

        self._configuration = connection.configuration
        self._pool = RESTClientObject(connection.configuration).pool_manager
        self._timeout_s = timeout_s
        self._hook = hook
        self.namespace = connection.namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """Return an object.

        Raises:
            KubernetesObjectMissing: the object or its kind does not exist.
        """
        return self._json("GET", self._path(kind, namespace, name))

    def find(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return an object; None: the object or its kind does not exist."""
        try:
            return self.get(kind, name, namespace)
        except KubernetesObjectMissing:
            return None

    def list(
        self, kind: Kind, labels: str = "", namespace: str | None = None, fields: str = ""
    ) -> Objects:
        """Return all objects of a kind, ordered by namespace and name.

        The server omits `apiVersion` and `kind` of the items of a list; this method adds them.

        Args:
            kind: the kind.
            labels: label selector, see `resources.selector`.
            namespace: namespace, or `ALL_NAMESPACES`.
            fields: field selector, such as "status.phase=Running".

        Raises:
            KubernetesObjectMissing: the cluster does not know the kind (`unknown_kind`).
        """
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        query: dict[str, str | int] = {"limit": _PAGE, **_non_empty(selectors)}
        path = self._path(kind, namespace)
        objects: Objects = []
        while True:
            page = self._json("GET", path, query)
            objects += page["items"]
            next_page = page["metadata"].get("continue")
            if not next_page:
                break
            query["continue"] = next_page
        for item in objects:
            item.update(apiVersion=kind.api_version, kind=kind.kind)
        return sorted(objects, key=key_of)

    def create(self, kind: Kind, body: Mapping[str, Any], namespace: str | None = None) -> Object:
        """Create an object. The default `namespace` is that of `body`, then that of the client.

        Raises:
            KubernetesObjectExists: an object of this name exists.
            KubernetesObjectMissing: the namespace or the kind does not exist.
        """
        path = self._path(kind, namespace or body["metadata"].get("namespace"))
        return self._json("POST", path, body=_with_type(kind, body))

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
        """Merge changes into an object (RFC 7386: null removes a field, a list is replaced).

        Args:
            kind: kind of the object.
            name: name of the object.
            changes: fields to change, such as `{"spec": {"nodes": 3}}`.
            namespace: namespace of the object.
            subresource: "status" or "scale"; empty: all fields except the status.
            resource_version: change nothing unless the object still has this version.

        Raises:
            KubernetesObjectMissing: the object does not exist.
            KubernetesObjectChanged: the object has another version.
        """
        body = dict(changes)
        if resource_version is not None:
            body["metadata"] = {
                **body.get("metadata", {}),
                "resourceVersion": resource_version,
            }
        path = self._path(kind, namespace, name, subresource)
        return self._json("PATCH", path, body=body, content_type="application/merge-patch+json")

    def patch_status(self, kind: Kind, resource: Object, changes: Mapping[str, Any]) -> Object:
        """Merge changes into the status of an object, unless it has changed since it was read.

        Raises:
            KubernetesObjectMissing, KubernetesObjectChanged: see `patch`.
        """
        meta = resource["metadata"]
        return self.patch(
            kind,
            meta["name"],
            {"status": changes},
            meta["namespace"],
            subresource="status",
            resource_version=meta["resourceVersion"],
        )

    def apply(self, kind: Kind, body: Mapping[str, Any]) -> Object:
        """Create an object, or set the fields in `body` (server-side apply).

        The operator then owns these fields, even if another field manager owned them. Fields that
        the operator applied before and that are not in `body` are removed.
        """
        meta = body["metadata"]
        path = self._path(kind, meta.get("namespace"), meta["name"])
        query = {"fieldManager": OPERATOR, "force": "true"}
        return self._json(
            "PATCH", path, query, _with_type(kind, body), "application/apply-patch+yaml"
        )

    def replace(self, kind: Kind, body: Mapping[str, Any]) -> Object:
        """Replace an object by a changed copy.

        Raises:
            KubernetesObjectMissing: the object does not exist.
            KubernetesObjectChanged: its `resourceVersion` is not that of `body`.
        """
        meta = body["metadata"]
        path = self._path(kind, meta.get("namespace"), meta["name"])
        return self._json("PUT", path, body=body)

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
        """Request the deletion of an object; the server then deletes its dependents, too.

        Args:
            kind: kind of the object.
            name: name of the object.
            namespace: namespace of the object.
            grace_s: seconds that a pod has to end; None: as in its spec; 0: end at once.
            uid: delete nothing unless the object has this uid.
            resource_version: delete nothing unless the object still has this version.

        Returns:
            False: there is no such object, or it has another uid or version.
        """
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if preconditions := _non_empty({"uid": uid, "resourceVersion": resource_version}):
            options["preconditions"] = preconditions
        try:
            self._json("DELETE", self._path(kind, namespace, name), body=options)
        except (KubernetesObjectMissing, KubernetesObjectChanged):
            return False
        return True

    def pod_log(
        self,
        pod: str,
        *,
        since_time: str = "",
        tail_lines: int | None = None,
        container: str = "",
    ) -> Iterator[str]:
        """Yield the lines that a container has printed so far, each as time, space and text.

        Args:
            pod: name of the pod, in the default namespace.
            since_time: yield lines printed at or after this time (RFC 3339); empty: all.
            tail_lines: yield at most this number of last lines; None: all.
            container: name of the container; empty: the pod has only one.

        Raises:
            KubernetesObjectMissing: the pod does not exist.
            ManifestRefused: the container has not started yet.
        """
        from urllib3.exceptions import HTTPError

        options = {"sinceTime": since_time, "container": container, "tailLines": tail_lines}
        query = {"timestamps": "true", **_non_empty(options)}
        response = self._send("GET", self._path(POD, None, pod, "log"), query, stream=True)
        incomplete = b""
        try:
            for block in response.stream(1 << 16):
                *lines, incomplete = (incomplete + block).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        except HTTPError as error:
            raise KubernetesUnavailable(f"the log of {pod} broke off: {error}") from None
        finally:
            response.close()
        if incomplete:
            yield incomplete.decode(errors="replace")

    def _path(
        self, kind: Kind, namespace: str | None, name: str = "", subresource: str = ""
    ) -> str:
        return kind.path(self.namespace if namespace is None else namespace, name, subresource)

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Send a request and return the object in its response."""
        text = self._send(method, path, query, body, content_type).data
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            host = self._configuration.host
            raise KubernetesUnavailable(
                f"{host} does not answer as the API of Kubernetes does: {text[:80]!r}"
            )
        return value

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        stream: bool = False,
    ) -> BaseHTTPResponse:
        """Send a request and return its response; raise an error if it is unsuccessful.

        With `stream` the body is not read yet; reading it may raise urllib3's HTTPError.
        """
        from urllib3.exceptions import HTTPError

        if self._hook is not None:
            self._hook(method, path)
        headers = {"Accept": "application/json", "Content-Type": content_type}
        # This call also renews a token that has expired.
        settings: dict[str, Any] = self._configuration.auth_settings()  # type: ignore[assignment]
        for setting in settings.values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        host = self._configuration.host.rstrip("/")
        try:
            response = self._pool.request(
                method,
                f"{host}{path}?{urlencode(query)}" if query else f"{host}{path}",
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=self._timeout_s,
                retries=False,
                preload_content=not stream,
            )
            refusal = response.data if response.status >= 300 else None
        except HTTPError as error:
            raise KubernetesUnavailable(f"Kubernetes at {host} does not answer: {error}") from None
        if refusal is not None:
            raise _error(method, path, response.status, refusal)
        return response


def _with_type(kind: Kind, body: Mapping[str, Any]) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **body}


def _non_empty(values: Mapping[str, str | int | None]) -> dict[str, str | int]:
    """Return the values that are neither None nor an empty text."""
    return {key: value for key, value in values.items() if value not in (None, "")}


def _error(method: str, path: str, status: int, body: bytes) -> EdlError:
    """Return the error of an unsuccessful response."""
    try:
        answer = json.loads(body)
        message, reason = str(answer["message"]), str(answer.get("reason", ""))
    except (ValueError, KeyError, TypeError):
        if status == 404:
            return KubernetesObjectMissing(
                f"this cluster does not know {path}: are the definitions of {GROUP} installed?",
                unknown_kind=True,
            )
        message, reason = body.decode(errors="replace")[:200].strip() or f"status {status}", ""
    match status:
        case 409:
            exists = reason == "AlreadyExists"
            return (KubernetesObjectExists if exists else KubernetesObjectChanged)(message)
        case 401:
            return Unauthenticated(f"Kubernetes rejected the credentials: {message}")
        case 403:
            return Forbidden(f"Kubernetes does not allow it: {message}")
        case 404:
            return KubernetesObjectMissing(message)
        case 400 | 405 | 413 | 415 | 422:
            return ManifestRefused(message)
    text = f"Kubernetes answered {status} to {method} {path}: {message}"
    return KubernetesUnavailable(text, answered=status == 500)
