"""Authentication and authorisation of callers at a server, by bearer tokens or certificates.

A file lists the accepted tokens and their roles, one token per line.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...runtime.errors import AccessError, Forbidden, Unauthenticated, UsageError
from .certificates import Reloaded
from .credentials import ServerSecurity

#: Students request labels and subscribe, viewers read the status, and admins may do everything.
ROLES: Final = ("student", "viewer", "admin")


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Attributes:
        role: one of `ROLES`.
        name: name within the role; empty if the credential has none. A student caller with a name
            may only act for students of the job of that name.
        principal: role and name, or, without a name, an id of the credential. Calls with the same
            principal have the same authority. It contains no secret.
    """

    role: str
    name: str
    principal: str

    def __str__(self) -> str:
        return f"{self.role}:{self.name}" if self.name else self.role

    def may(self, role: str) -> bool:
        """Return whether the caller has the rights of `role`."""
        return self.role in (role, "admin")

    def may_be(self, student_id: str) -> bool:
        """Return whether the caller may act for the student `job/rank`."""
        return self.role == "admin" or (
            self.role == "student" and (not self.name or student_id.startswith(f"{self.name}/"))
        )


#: The caller of every call to a server without authentication, on loopback or with --insecure.
ANYONE: Final = Caller("admin", "", "anyone")


def caller_of(text: str, anonymous: str) -> Caller:
    """Parse `ROLE` or `ROLE:NAME`.

    Args:
        text: as in a tokens file.
        anonymous: the principal if `text` has no name.

    Raises:
        UsageError: the role is unknown, or the name is empty.
    """
    role, colon, name = text.partition(":")
    if role not in ROLES:
        # Do not quote the word: if the two words of the line are swapped, it is the token.
        raise UsageError(f"its first word is no role: write one of {', '.join(ROLES)}")
    if colon and not name:
        raise UsageError(f"{role}: has no name behind the colon: write {role}, or {role}:NAME")
    return Caller(role, name, f"{role}:{name}" if name else anonymous)


def caller_of_certificate(common_name: str) -> Caller:
    """Return the caller that a certificate's CN names: `ROLE[:NAME]`, or the job of a student."""
    try:
        return caller_of(common_name, f"certificate {common_name}")
    except UsageError:
        return Caller("student", common_name, f"student:{common_name}")


#: Limit of the length of a token: a call may have 8 KiB of metadata in all.
_MAX_TOKEN_CHARS = 4096
_MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """The tokens that a server accepts: pairs of a token's SHA-256 and its caller."""

    entries: tuple[tuple[bytes, Caller], ...]

    def find(self, token: str) -> Caller | None:
        """Return the caller of `token`, or None; takes the same time for wrong and right tokens."""
        wanted = _digest(token)
        found = None
        for digest, caller in self.entries:
            if hmac.compare_digest(digest, wanted):
                found = caller
        return found


def read_tokens(path: Path) -> Tokens:
    """Read a list of tokens.

    Raises:
        UsageError: the file cannot be read, is open to others, is writable by its group, is empty,
            or has a malformed line.
    """
    entries: dict[bytes, Caller] = {}
    for number, line in enumerate(_read_secret(path).splitlines(), start=1):
        where = f"line {number} of the tokens file {path}"
        text, comment, _ = line.partition("#")
        if comment and text[-1:].strip():  # the part before it would be accepted as the token
            raise UsageError(
                f"{where} has a # within a word: put a space before a comment; tokens have no #"
            )
        words = text.split()
        if not words:
            continue
        if len(words) > 2:
            raise UsageError(
                f"{where} has {len(words)} words: write TOKEN, or ROLE TOKEN, or ROLE:NAME TOKEN"
            )
        digest = _digest(_checked(words[-1], where))
        if digest in entries:
            raise UsageError(f"{where} repeats a token of a line above: remove one of the two")
        anonymous = f"token {digest.hex()[:16]}"
        try:
            entries[digest] = caller_of(words[0] if len(words) == 2 else "student", anonymous)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    if not entries:
        raise UsageError(f"the tokens file {path} has no token in it: put one in a line of its own")
    return Tokens(tuple(entries.items()))


def read_token(path: Path) -> str:
    """Read the one token that a client sends.

    Raises:
        UsageError: the file cannot be read, is open to others, is writable by its group, or does
            not hold exactly one token.
    """
    words = _read_secret(path).split()
    if len(words) != 1:
        raise UsageError(
            f"the token file {path} has {len(words)} words: it must hold one token and nothing else"
        )
    return _checked(words[0], f"the token file {path}")


def _read_secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
                raise UsageError(
                    f"{path} holds secrets and its mode is {mode:04o}, open to other users: "
                    f"chmod 600 {path}"
                )
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"token file {path} cannot be read: {error.strerror or error}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"{path} has more than {_MAX_FILE_BYTES >> 20} MiB: not a list of tokens")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise UsageError(f"{path} has characters that are not ASCII; tokens have none") from None


def _checked(token: str, where: str) -> str:
    """Return `token`; raise UsageError if it is too long or has control characters."""
    if len(token) > _MAX_TOKEN_CHARS:
        raise UsageError(f"{where} has a token of more than {_MAX_TOKEN_CHARS} characters")
    if not token.isprintable():
        raise UsageError(f"{where} has a token with a control character in it")
    return token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


#: Seconds after the start of a handshake within which a call must follow; otherwise the handshake
#: counts as failed. Our clients call at once. gRPC allows 20 s for a handshake, but such slow
#: clients are not expected.
PATIENCE_S: Final = 10.0
#: Limit of the handshakes without a call so far; if there are more, the oldest count as failed.
_MAX_UNFINISHED = 4096
#: Limit of the peers that are remembered as having called.
_MAX_PEERS = 16384


class HandshakeMonitor:
    """Counts the failed TLS handshakes of a gRPC server. Safe to use from several threads.

    TLS rejects clients without an accepted certificate before there is a call, and gRPC does not
    report this. But gRPC asks for our certificate before each handshake. So a handshake that is not
    followed by a call in time counts as failed. Connections that are only opened and closed, as by
    port scans and some health checks, count as failed too.

    A failure is counted at the next connection or call, because the monitor has no timer. If a peer
    connects again from the same port, its calls are attributed to the old connection, so its new
    handshake counts as failed.

    Args:
        on_failed: called for each failure.
        patience_s: seconds after the start of a handshake within which a call must follow.
        clock: returns seconds, with any origin.
    """

    def __init__(
        self,
        on_failed: Callable[[], None],
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_failed = on_failed
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._unfinished: deque[float] = deque()  # start of each handshake without a call
        self._peers: dict[str, None] = {}  # peers that have called, the earliest first

    def handshake_started(self) -> None:
        """Record the start of a handshake; called when gRPC asks for our certificate."""
        now = self._clock()
        with self._lock:
            self._unfinished.append(now)
            failed = self._remove_failed(now)
        self._report_failed(failed)

    def call_received(self, peer: str) -> None:
        """Record a call from `peer`, as gRPC names it; empty: the call did not come over gRPC."""
        if not peer or (peer in self._peers and not self._unfinished):
            return
        now = self._clock()
        with self._lock:
            if peer not in self._peers:
                self._peers[peer] = None
                if len(self._peers) > _MAX_PEERS:
                    del self._peers[next(iter(self._peers))]
                if self._unfinished:
                    self._unfinished.pop()
            failed = self._remove_failed(now)
        self._report_failed(failed)

    def _remove_failed(self, now: float) -> int:
        failed = 0
        while self._unfinished and (
            self._unfinished[0] < now - self._patience_s or len(self._unfinished) > _MAX_UNFINISHED
        ):
            self._unfinished.popleft()
            failed += 1
        return failed

    def _report_failed(self, failed: int) -> None:
        for _ in range(failed):
            self._on_failed()


_SCHEME = "bearer"


class AccessControl:
    """Authenticates and authorises the calls of one server. Safe to use from several threads.

    With a list of tokens, every call must carry a token; with a `ca`, every connection needs a
    certificate. If both are set, both are required, and the token determines the caller. If neither
    is set, every caller is an admin: such a server listens on loopback, or the operator has allowed
    it to be insecure (`check_exposure`).

    Args:
        security: what to require; None for nothing.
        on_refused: called with "unauthenticated" or "forbidden" for each refusal, to count it.
        patience_s: seconds from a TLS handshake to its first call; see `HandshakeMonitor`.

    Attributes:
        authenticates: whether callers must authenticate.
        handshakes: counts failed TLS handshakes. `listen` reports each handshake to it, and `admit`
            each call; the server has to report calls of methods without authentication.

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
        self.authenticates = security.authenticates
        self._wants_certificates = security.wants_certificates
        self._on_refused = on_refused or (lambda reason: None)
        self.handshakes = HandshakeMonitor(
            lambda: self._on_refused("unauthenticated"), patience_s=patience_s
        )
        self._tokens: Reloaded[Tokens] | None = None
        if (path := security.tokens_file) is not None:
            self._tokens = Reloaded((path,), lambda: read_tokens(path))

    @property
    def revision(self) -> object:
        """An object that differs after each change of the list of tokens; reloads it if needed."""
        return None if self._tokens is None else self._tokens.current()

    def admit(
        self,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        auth_context: Mapping[str, Any] | None,
        peer: str = "",
    ) -> Caller:
        """Authenticate a gRPC call.

        Args:
            metadata: `context.invocation_metadata()`.
            auth_context: `context.auth_context()`.
            peer: `context.peer()`; shows which TLS handshakes have succeeded.

        Raises:
            Unauthenticated: a required credential is missing or unknown.
        """
        self.handshakes.call_received(peer)
        caller = ANYONE
        if self._wants_certificates:
            caller = self._caller_from_certificate(auth_context or {})
        if self._tokens is not None:
            caller = self.bearer(_token(metadata or ()))
        return caller

    def bearer(self, token: str | None) -> Caller:
        """Authenticate a caller by its token alone; no certificate is checked.

        `admit` uses it, and HTTP servers without client certificates (web page, metrics).

        Raises:
            Unauthenticated: the token is missing or unknown, or the settings have a `ca` but no
                tokens.
        """
        if self._tokens is None:
            if self._wants_certificates:
                raise self._count_refusal(
                    Unauthenticated("this server accepts certificates only, no tokens")
                )
            return ANYONE
        if not token:
            raise self._count_refusal(
                Unauthenticated(
                    "no token came with the call: name the file with your token "
                    "(--token-file, EDL_TOKEN_FILE; token_file= of a DistilReader)"
                )
            )
        if (caller := self._tokens.current().find(token)) is None:
            raise self._count_refusal(
                Unauthenticated(
                    "the token of this call is not known here: it is wrong, or was withdrawn"
                )
            )
        return caller

    def require(self, caller: Caller, *roles: str) -> None:
        """Allow only callers in one of `roles`, and admins.

        Raises:
            Forbidden: `caller` is in none of them.
        """
        if caller.role != "admin" and caller.role not in roles:
            allowed = " and ".join(f"{role}s" for role in roles)
            raise self._count_refusal(
                Forbidden(f"this call is for {allowed}; the credential has the role {caller}")
            )

    def require_student(self, caller: Caller, student_id: str) -> None:
        """Allow only callers that may act for the student `job/rank`.

        Raises:
            Forbidden: `caller` may not.
        """
        if not caller.may_be(student_id):
            raise self._count_refusal(
                Forbidden(
                    f"the credential of a {caller} may not act for student {student_id!r}: "
                    "a reader names its job by job=..."
                )
            )

    def _caller_from_certificate(self, auth_context: Mapping[str, Any]) -> Caller:
        names = list(auth_context.get("x509_common_name", ()))
        if len(names) != 1 or not names[0]:  # there is a certificate: TLS has required it
            raise self._count_refusal(
                Unauthenticated(
                    "the certificate has no single CN: it needs exactly one, as student:JOB"
                )
            )
        return caller_of_certificate(names[0].decode("utf-8", "replace"))

    def _count_refusal(self, error: AccessError) -> AccessError:
        """Count the refusal of a call; return `error`, which the caller raises."""
        reason = "forbidden" if isinstance(error, Forbidden) else "unauthenticated"
        self._on_refused(reason)
        return error


def _token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Return the bearer token in the metadata of a call; None if there is none."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == _SCHEME:
                return token.strip()
    return None
