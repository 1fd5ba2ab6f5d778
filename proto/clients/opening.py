"""Which client asks a teacher: chosen by its protocol, and by the scheme of its address."""

from __future__ import annotations

from ...errors import UsageError
from ..lent_arena import LentArena
from ..security import ClientSecurity
from .client import Client

#: The Open Inference Protocol, which our own teachers speak.
OIP = "oip"
#: Paddle Serving's pipeline server, and its C++ server.
PADDLE_SERVING = "paddle-serving"
PADDLE_SERVING_CPP = "paddle-serving-cpp"
#: What a registry's field `protocol` may say; empty is `oip`.
PROTOCOLS = (OIP, PADDLE_SERVING, PADDLE_SERVING_CPP)


def open_client(
    protocol: str,
    address: str,
    model: str,
    security: ClientSecurity | None = None,
    arena: LentArena | None = None,
) -> Client:
    """A client of one model at one server; it connects when it is first used.

    Args:
        protocol: as the registry names it; empty: `oip`.
        address: host:port or grpc://host:port for gRPC; http://host:port or https://host:port for
            HTTP, which only `oip` has.
        model: its name at the server.
        security: how to prove who calls; None: neither TLS nor token.
        arena: what lies there is not sent to a server on this host that takes it in place (`oip`
            over gRPC); None: all is sent.

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

    client = OipGrpcClient(rest, model, security)
    if arena is None:
        return client
    from .same_host import SameHostClient

    return SameHostClient(client, arena)


def check_dialled(protocol: str, address: str) -> None:
    """Raise UsageError where an address that is asked over gRPC is none, or names no port.

    Args:
        protocol: as of `open_client`.
        address: as of `open_client`; one of HTTP, which has ports of its own, passes.
    """
    scheme, _, rest = address.rpartition("://")
    if scheme in ("http", "https") and protocol in ("", OIP):
        return
    if scheme not in ("", "grpc") or not rest or "/" in rest:
        raise UsageError(
            f"{address!r:.120} is no address of {protocol or OIP}: write host:port or"
            " grpc://host:port for gRPC, http://host:port for HTTP"
        )
    host, _, port = rest.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r:.120} names no port: write host:port")
