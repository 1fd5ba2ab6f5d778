"""Wakes the operator when its resources, or their Deployments or pods, change.

kopf watches and reconnects; the loop reconciles. A missed change loses nothing, as each round reads
everything.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...mesh.kubernetes.client import ALL_NAMESPACES, Client, Connection
from ...mesh.kubernetes.resources import (
    DEPLOYMENT,
    DISTILL_JOB,
    MANAGED_BY_LABEL,
    OPERATOR,
    POD,
    TEACHER_SERVICE,
)
from .error_log import ErrorLog

if TYPE_CHECKING:
    import kopf

log = logging.getLogger(__name__)

#: Kinds of which all objects are watched.
_RESOURCES: Final = (TEACHER_SERVICE, DISTILL_JOB)
#: Kinds of which only the objects that the operator created are watched.
_CREATED: Final = (POD, DEPLOYMENT)
#: Seconds after which a watch is renewed, as it may have broken silently.
_WATCH_S: Final = 300
#: Seconds for which `stop` waits for the end of the thread.
_END_S: Final = 10.0


class ResourceWatcher:
    """Watches the cluster in a thread, and calls `wake` after each change.

    Args:
        connection: to the cluster.
        namespace: namespace to watch; empty: all.
        wake: called in that thread.
        again_s: seconds before a retry, if kopf cannot watch or has ended.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        wake: Callable[[], object],
        again_s: float = 10.0,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._wake = wake
        self._again_s = again_s
        self._stopping = threading.Event()
        self._errors = ErrorLog()
        self._thread = threading.Thread(target=self._run, name="edl-watch", daemon=True)

    def start(self) -> None:
        """Start the thread; call it once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, within seconds."""
        self._stopping.set()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            log.warning("the watcher has not ended within %g s", _END_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self._check_definitions()
                asyncio.run(self._watch())
            except Exception as error:
                if time.monotonic() - began_s > self._again_s:  # it worked for a while
                    self._errors.clear(self._namespace)
                what = "cannot watch for changes, polling instead"
                self._errors.report(log, self._namespace, what, error)
            self._stopping.wait(self._again_s)

    def _check_definitions(self) -> None:
        """Check that our resource definitions exist, as kopf looks for them only once.

        Raises:
            EdlError: they do not exist yet, or may not be read.
        """
        with Client(self._connection, timeout_s=_END_S / 2) as client:
            for kind in _RESOURCES:
                client.list(kind, namespace=self._namespace)

    async def _watch(self) -> None:
        import kopf

        registry = kopf.OperatorRegistry()
        wake = self._wake

        async def changed(**_: Any) -> None:
            wake()

        for kind in (*_RESOURCES, *_CREATED):
            labels = None if kind in _RESOURCES else {MANAGED_BY_LABEL: OPERATOR}
            group, _, version = kind.api_version.rpartition("/")
            resource = (group, version, kind.plural)
            kopf.on.event(*resource, registry=registry, id=kind.plural, labels=labels)(changed)
        connection = self._connection

        async def login(**_: Any) -> kopf.ConnectionInfo:
            return connection_info(connection)

        kopf.on.login(registry=registry, id="edl")(login)
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.server_timeout = _WATCH_S
        everywhere = self._namespace == ALL_NAMESPACES
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=everywhere,
            namespaces=() if everywhere else (self._namespace,),
            stop_flag=self._stopping,
        )


def connection_info(connection: Connection) -> kopf.ConnectionInfo:
    """Return address and credentials of our own client, in kopf's form."""
    import kopf

    configuration = connection.configuration
    auth: dict[str, Any] = configuration.auth_settings()  # type: ignore[assignment]
    bearer = next((setting["value"] for setting in auth.values() if setting["value"]), "")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme="Bearer" if bearer else None,
        token=bearer.partition(" ")[2] or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        default_namespace=connection.namespace,
    )
