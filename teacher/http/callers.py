"""Who makes a request: from its token or its connection's certificate, as gRPC's gate asks."""

from __future__ import annotations

from starlette.requests import Request

from ...proto.security import Gate
from ..shared_memory.visitors import Visitor

#: In a request's `state`: the common name of the caller's certificate.
CERTIFICATE = "certificate"


class Callers:
    """The gate of a teacher, for HTTP."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def visitor(self, request: Request, role: str = "") -> Visitor:
        """Who asks.

        Args:
            request: with the header `authorization`, or by a connection with a certificate.
            role: that the caller has to have; empty: any.

        Raises:
            AccessError: a credential is missing or unknown, or is not that of a `role`.
        """
        certificate: str | None = getattr(request.state, CERTIFICATE, None)
        identities = {"x509_common_name": [certificate.encode()]} if certificate else {}
        shown = [("authorization", request.headers.get("authorization", ""))]
        caller = self._gate.admit(shown, identities)
        if role:
            self._gate.require(caller, role)
        return Visitor(caller.principal, *(request.client or ("", 0)))
