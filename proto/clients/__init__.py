"""How to ask a teacher: one `Client` protocol, and one file for each language that teachers speak.

Readers, sidecars of foreign servers and managers ask through it.
"""

from __future__ import annotations

from ...errors import UsageError
from ..protocols import OIP, PADDLE_SERVING, PADDLE_SERVING_CPP, PROTOCOLS, check_dialled
from ..security import ClientSecurity
from .client import Answer, Client, Found, Request

__all__ = ["Answer", "Client", "Found", "Request", "open_client"]


def open_client(
    protocol: str,
    address: str,
    model: str,
    security: ClientSecurity | None = None,
) -> Client:
    """A client of one model at one server; it connects when it is first used.

    Args:
        protocol: as the registry names it; empty: `oip`.
        address: host:port or grpc://host:port for gRPC; http://host:port or https://host:port for
            HTTP, which only `oip` has.
        model: its name at the server.
        security: how to prove who calls; None: neither TLS nor token.

    Raises:
        UsageError: there is no such protocol, the address is none, or a file of `security` cannot
            be used.
    """
    if protocol not in ("", *PROTOCOLS):
        raise UsageError(f"no client speaks {protocol!r:.40}: known are {', '.join(PROTOCOLS)}")
    scheme, _, rest = address.rpartition("://")
    if scheme in ("http", "https") and protocol in ("", OIP):
        from .oip_http import OipHttpClient

        return OipHttpClient(address, model, security)
    check_dialled(protocol, address)
    if protocol in (PADDLE_SERVING, PADDLE_SERVING_CPP):
        from .paddle_serving import GeneralModelClient, PipelineClient

        if protocol == PADDLE_SERVING:
            return PipelineClient(rest, model, security)
        return GeneralModelClient(rest, security)
    from .oip_grpc import OipGrpcClient

    return OipGrpcClient(rest, model, security)
