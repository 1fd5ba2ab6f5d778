"""Requests to an API server of Kubernetes: the official client's connection, our errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from ...runtime.errors import (
    EdlError,
    Forbidden,
    KubernetesUnavailable,
    ManifestRefused,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    Unauthenticated,
    UsageError,
)
from ...runtime.extras import install_command
from .resources import GROUP, Object

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from urllib3 import BaseHTTPResponse

#: Where a pod finds the namespace that it is in.
_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Connection:
    """Where an API server is, and who we are there.

    Attributes:
        configuration: the official client's: address, certificates, credentials that are renewed.
        namespace: in which objects are, where nobody says another.
    """

    configuration: Configuration
    namespace: str


def connect(
    kubeconfig: Path | None = None, context: str | None = None, namespace: str | None = None
) -> Connection:
    """Find the API server: as a kubeconfig says, or from within a pod.

    Args:
        kubeconfig: the file; None: `$KUBECONFIG` or ~/.kube/config, and within a pod its account.
        context: of the kubeconfig; None: its current one.
        namespace: None: the context's, within a pod its own, else "default".

    Raises:
        UsageError: there is no such file or context, and this is no pod; the file is no kubeconfig;
            or the extra `k8s` is not installed.
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
                return Connection(configuration, namespace or _own_namespace())
            except config.ConfigException:
                pass  # not within a pod
        file = None if kubeconfig is None else str(kubeconfig)
        config.load_kube_config(file, context, configuration, persist_config=False)
        contexts, active = config.list_kube_config_contexts(file)
    except (config.ConfigException, OSError) as error:
        raise UsageError(
            f"no Kubernetes to talk to: {error}; name another kubeconfig, or a context of it"
        ) from None
    except (YAMLError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise UsageError(
            f"{kubeconfig or 'the kubeconfig'} is no kubeconfig: {' '.join(str(error).split())}"
        ) from None
    if context is not None:
        active = next(one for one in contexts if one["name"] == context)
    own = active["context"].get("namespace") or "default"
    return Connection(configuration, namespace or own)


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text().strip() or "default"
    except OSError:
        return "default"


class Transport:
    """Sends requests and takes answers. Any number of threads may use it.

    Args:
        connection: from `connect`.
        timeout_s: for each answer, and for each piece of one that is a stream.
        hook: called with method and path before each request; what it raises stops the request.
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

    def close(self) -> None:
        """Close what connections there are."""
        self._pool.clear()

    def json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """As `send`, for answers that are an object."""
        answer = self.send(method, path, query, body, content_type).data
        try:
            value = json.loads(answer)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise KubernetesUnavailable(
                f"{self._configuration.host} does not answer as the API of Kubernetes does:"
                f" {answer[:80]!r}"
            )
        return value

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        stream: bool = False,
    ) -> BaseHTTPResponse:
        """Send a request; its answer is one of success.

        Args:
            method: "GET", "PATCH" ...
            path: as `Kind.path` makes it.
            query: what stands behind the question mark.
            body: sent as JSON.
            content_type: of the body.
            stream: the answer's body is still to be read; each piece of it comes in time, or
                reading it raises an HTTPError of urllib3.

        Raises:
            EdlError: as `Client` says.
        """
        from urllib3.exceptions import HTTPError

        if self._hook is not None:
            self._hook(method, path)
        headers = {"Accept": "application/json", "Content-Type": content_type}
        headers.update(self._credentials())
        host = self._configuration.host.rstrip("/")
        url = f"{host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=self._timeout_s,
                retries=False,
                preload_content=not stream,
            )
            refused = answer.data if answer.status >= 300 else None
        except HTTPError as error:
            raise KubernetesUnavailable(f"Kubernetes at {host} does not answer: {error}") from None
        if refused is not None:
            raise _refusal(method, path, answer.status, refused)
        return answer

    def _credentials(self) -> dict[str, str]:
        """The header that says who we are; a token that has run out is renewed by the library."""
        found = {}
        settings: dict[str, Any] = self._configuration.auth_settings()  # type: ignore[assignment]
        for setting in settings.values():
            if setting["in"] == "header" and setting["value"]:
                found[setting["key"]] = setting["value"]
        return found


def _refusal(method: str, path: str, status: int, body: bytes) -> EdlError:
    """Our error for an answer that is none of success."""
    told_as_status = True
    try:
        told = json.loads(body)
        message, reason = str(told["message"]), str(told.get("reason", ""))
    except (ValueError, KeyError, TypeError):
        message, reason = body.decode(errors="replace")[:200].strip() or f"status {status}", ""
        told_as_status = False
    if status == 409:
        kind = ObjectExists if reason == "AlreadyExists" else ObjectChanged
        return kind(message)
    if status == 401:
        return Unauthenticated(f"Kubernetes does not know who we are: {message}")
    if status == 403:
        return Forbidden(f"Kubernetes does not allow it: {message}")
    if status == 404:
        if told_as_status:
            return ObjectMissing(message)
        return ObjectMissing(
            f"this cluster does not know {path}: are the definitions of {GROUP} installed?", True
        )
    if status in (400, 405, 413, 415, 422):
        return ManifestRefused(message)
    return KubernetesUnavailable(f"Kubernetes answered {status} to {method} {path}: {message}")
