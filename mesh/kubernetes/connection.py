"""Address and credentials of the API server, from a kubeconfig or a pod's service account."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...runtime.errors import UsageError
from ...runtime.extras import install_command

if TYPE_CHECKING:
    from kubernetes.client import Configuration

#: File in a pod that contains the namespace of the pod.
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Connection:
    """Address of an API server, and credentials for it.

    Attributes:
        configuration: address, certificates and credentials; the official client renews them.
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
        context: context of the kubeconfig; None: its current one.
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
            f"no Kubernetes cluster is configured: {error}; name another kubeconfig, or a context"
            " of it"
        ) from None
    except (YAMLError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise UsageError(
            f"{kubeconfig or 'the kubeconfig'} is no kubeconfig: {' '.join(str(error).split())}"
        ) from None
    if context is not None:
        active = next(one for one in contexts if one["name"] == context)
    own = active["context"].get("namespace") or "default"
    return Connection(configuration, namespace or own)


def _pod_namespace() -> str:
    try:
        return _POD_NAMESPACE.read_text().strip() or "default"
    except OSError:
        return "default"
