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
        """Who asks; arguments and errors as of `known`."""
        return self.known(
            request.headers.get("authorization", ""),
            getattr(request.state, CERTIFICATE, None),
            request.client or ("", 0),
            role,
        )

    def known(
        self, authorization: str, certificate: str | None, address: tuple[str, int], role: str = ""
    ) -> Visitor:
        """Who shows this.

        Args:
            authorization: the header.
            certificate: the common name of the connection's certificate, where it has one.
            address: of the connection.
            role: that the caller has to have; empty: any.

        Raises:
            AccessError: a credential is missing or unknown, or is not that of a `role`.
        """
        identities = {"x509_common_name": [certificate.encode()]} if certificate else {}
        caller = self._gate.admit([("authorization", authorization)], identities)
        if role:
            self._gate.require(caller, role)
        return Visitor(caller.principal, *address)
