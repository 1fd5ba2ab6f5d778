"""Who makes a request: from its token or its connection's certificate, as gRPC's gate asks."""

from __future__ import annotations

from starlette.requests import Request

from ...proto.security import Gate
from ..shared_memory.visitors import Visitor
from .connections import CERTIFICATE


class Callers:
    """The gate of a teacher, for HTTP."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def visitor(self, request: Request, role: str = "") -> Visitor:
        """Who asks.

        Raises:
            AccessError: a credential is missing or unknown, or is not that of a `role`.
        """
        name = getattr(request.state, CERTIFICATE, None)
        identities = {"x509_common_name": [name.encode()]} if name else {}
        token = [("authorization", request.headers.get("authorization", ""))]
        caller = self._gate.admit(token, identities)
        if role:
            self._gate.require(caller, role)
        host, port = request.client or ("", 0)
        return Visitor(caller.principal, host, port)
