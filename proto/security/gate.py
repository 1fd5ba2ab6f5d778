"""The gate of a server: who calls, from its token or certificate, and whether it may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import AccessError, Forbidden, Unauthenticated
from .certificates import Reloaded
from .credentials import ServerSecurity
from .listening import PATIENCE_S, Handshakes
from .tokens import ANYONE, ROLES, Caller, Tokens, caller_of_certificate, read_tokens

__all__ = ["ROLES", "Caller", "Gate"]

_SCHEME = "bearer"


class Gate:
    """Admits the calls of one server. Safe to use from several threads.

    A server that has a list of tokens demands one of them with every call; one that has a `ca`
    demands a certificate of every connection; one that has both demands both, and then the token
    says who calls. One that has neither takes everybody for an admin: it listens on loopback or
    was told to be insecure (`check_exposure`).

    Args:
        security: what to ask for; None: nothing.
        on_refused: told "unauthenticated" or "forbidden" for each refusal, to be counted.
        patience_s: seconds from a TLS handshake to its first call; see `handshakes.py`.

    Raises:
        UsageError: the list of tokens cannot be used.
    """

    def __init__(
        self,
        security: ServerSecurity | None,
        on_refused: Callable[[str], None] | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        security = security or ServerSecurity()
        self._wants_certificates = security.wants_certificates
        self._on_refused = on_refused or (lambda reason: None)
        self._handshakes = Handshakes(
            lambda: self._on_refused("unauthenticated"), patience_s=patience_s
        )
        self._tokens: Reloaded[Tokens] | None = None
        if (path := security.tokens_file) is not None:
            self._tokens = Reloaded((path,), lambda: read_tokens(path))

    def __repr__(self) -> str:
        asks = [name for name, asked in self._demands() if asked]
        return f"Gate({' and '.join(asks) or 'open'})"

    @property
    def authenticates(self) -> bool:
        """Whether a caller has to prove who it is."""
        return any(asked for _, asked in self._demands())

    @property
    def revision(self) -> object:
        """Identity of the list of tokens: another object once the file changed. Reads it if so."""
        return None if self._tokens is None else self._tokens.current()

    def admit(
        self,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        auth_context: Mapping[str, Any] | None,
        peer: str = "",
    ) -> Caller:
        """Who makes a call of gRPC's.

        Args:
            metadata: `context.invocation_metadata()`.
            auth_context: `context.auth_context()`.
            peer: `context.peer()`, by which TLS handshakes are known to have succeeded.

        Raises:
            Unauthenticated: what it must show is missing or not known.
        """
        self.called(peer)
        caller = ANYONE
        if self._wants_certificates:
            caller = self._of_certificate(auth_context or {})
        if self._tokens is not None:
            caller = self.bearer(_token(metadata or ()))
        return caller

    def handshake_began(self) -> None:
        """`listen` says so of each TLS connection."""
        self._handshakes.began()

    def called(self, peer: str) -> None:
        """A call came from `peer`: for methods that ask nobody; `admit` says so itself."""
        if peer:
            self._handshakes.called(peer)

    def bearer(self, token: str | None) -> Caller:
        """Who holds `token`; for HTTP, where no certificate is asked for.

        Raises:
            Unauthenticated: there is none, or it is not known; or this server has no tokens, and
                knows its callers by their certificates.
        """
        if self._tokens is None:
            if self._wants_certificates:
                raise self._refuse(
                    Unauthenticated("this server knows certificates only, no tokens")
                )
            return ANYONE
        if not token:
            raise self._refuse(
                Unauthenticated(
                    "no token came with the call: name the file that holds yours "
                    "(--token-file, EDL_TOKEN_FILE; token_file= of a DistilReader)"
                )
            )
        if (caller := self._tokens.current().find(token)) is None:
            raise self._refuse(
                Unauthenticated(
                    "the token of this call is not known here: it is wrong, or was withdrawn"
                )
            )
        return caller

    def require(self, caller: Caller, *roles: str) -> None:
        """Let only callers in one of `roles` and admins pass.

        Raises:
            Forbidden: `caller` is neither.
        """
        if not any(caller.may(role) for role in roles):
            meant = " and ".join(f"{role}s" for role in roles)
            raise self._refuse(
                Forbidden(f"this is for {meant}; the credential shown is a {caller}'s")
            )

    def require_student(self, caller: Caller, student_id: str) -> None:
        """Let only those pass who may be the student `job/rank`.

        Raises:
            Forbidden: `caller` may not.
        """
        if not caller.may_be(student_id):
            raise self._refuse(
                Forbidden(
                    f"{student_id!r} is none of those that the credential of a {caller} may be: "
                    "a reader names its job by job=..."
                )
            )

    def _of_certificate(self, auth_context: Mapping[str, Any]) -> Caller:
        names = list(auth_context.get("x509_common_name", ()))
        if len(names) != 1 or not names[0]:  # TLS lets nobody in without a certificate
            raise self._refuse(
                Unauthenticated(
                    "the certificate shown names nobody: it needs one CN, as student:JOB"
                )
            )
        return caller_of_certificate(names[0].decode("utf-8", "replace"))

    def _refuse(self, error: AccessError) -> AccessError:
        reason = "forbidden" if isinstance(error, Forbidden) else "unauthenticated"
        self._on_refused(reason)
        return error

    def _demands(self) -> tuple[tuple[str, bool], ...]:
        return ("certificates", self._wants_certificates), ("tokens", self._tokens is not None)


def _token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The bearer token in a call's metadata."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == _SCHEME:
                return token.strip()
    return None
