"""Who may look at the page, and who may drain a teacher from it."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import AccessError, Forbidden
from ...proto.security import AccessControl, Caller

_VIEWER = "viewer"
_ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one page.

    Attributes:
        gate: knows the tokens; None: there are none. Then nobody can show that it is an
            administrator, not even on this machine: any page of any browser could ask in its place.
        guarded: looking needs a token too.
    """

    gate: AccessControl | None
    guarded: bool

    def check_view(self, authorization: str) -> None:
        """Raises Unauthenticated, Forbidden."""
        if self.guarded:
            self._check(authorization, _VIEWER)

    def check_drain(self, authorization: str) -> None:
        """Raises Unauthenticated, Forbidden."""
        self._check(authorization, _ADMIN)

    def describe(self, authorization: str) -> dict[str, bool]:
        """What the bearer of a token may do, and what can be done here at all."""
        caller = self._known(_token(authorization))
        return {
            "guarded": self.guarded,
            "tokens": self.gate is not None,
            "known": caller is not None,
            "view": not self.guarded or (caller is not None and caller.may(_VIEWER)),
            "drain": caller is not None and caller.may(_ADMIN),
        }

    def _known(self, token: str) -> Caller | None:
        if self.gate is None or not token:
            return None
        try:
            return self.gate.bearer(token)
        except AccessError:
            return None

    def _check(self, authorization: str, role: str) -> None:
        if self.gate is None:
            raise Forbidden(
                "this manager knows no tokens: start it with --tokens FILE to drain from the page"
            )
        self.gate.require(self.gate.bearer(_token(authorization)), role)


def _token(authorization: str) -> str:
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
