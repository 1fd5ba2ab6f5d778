"""Bearer tokens in files: one that a client sends, the list that a server knows.

A list has one token in a line, `#` begins a comment:

    # who      token
    3f9c...                    a student, of any job
    student:resnet 81aa...     a student of the job `resnet` only
    viewer:grafana 77e0...
    admin:ann 0b5d...

Tokens are kept as their SHA-256 only, so that no dump of a server's memory or error shows one.
"""

from __future__ import annotations

import hashlib
import hmac
import stat
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError
from .roles import Caller, caller_of

#: Larger than any header may be, which is how a token travels.
_MAX_TOKEN_CHARS = 4096
_MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """The tokens that a server knows: (SHA-256 of the token, who it stands for)."""

    entries: tuple[tuple[bytes, Caller], ...]

    def __repr__(self) -> str:
        return f"Tokens({len(self.entries)} of them)"

    def find(self, token: str) -> Caller | None:
        """Whom `token` stands for; takes as long for a wrong one as for a right one."""
        wanted = _digest(token)
        found = None
        for digest, caller in self.entries:
            if hmac.compare_digest(digest, wanted):
                found = caller
        return found


def read_tokens(path: Path) -> Tokens:
    """The list of tokens in `path`.

    Raises:
        UsageError: it cannot be read, others may read it, it has no token, or a line is malformed.
    """
    entries: dict[bytes, Caller] = {}
    for number, line in enumerate(_read_secret(path).splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        where = f"line {number} of the tokens file {path}"
        if len(words) > 2:
            raise UsageError(
                f"{where} has {len(words)} words: write TOKEN, or ROLE TOKEN, or ROLE:NAME TOKEN"
            )
        digest = _digest(_checked(words[-1], where))
        if digest in entries:
            raise UsageError(f"{where} repeats a token that stands above it: remove one of both")
        anonymous = f"token {digest.hex()[:16]}"
        try:
            entries[digest] = caller_of(words[0] if len(words) == 2 else "student", anonymous)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    if not entries:
        raise UsageError(f"the tokens file {path} has no token in it: put one in a line of its own")
    return Tokens(tuple(entries.items()))


def read_token(path: Path) -> str:
    """The one token in `path`, which a client sends.

    Raises:
        UsageError: it cannot be read, others may read it, or it does not hold one token.
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
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
                raise UsageError(
                    f"{path} holds secrets and its mode is {mode:04o}, which lets others in: "
                    f"chmod 600 {path}"
                )
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"token file {path} cannot be read: {error.strerror or error}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB: no list of tokens is")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise UsageError(f"{path} has characters that are not ASCII: no token has") from None


def _checked(token: str, where: str) -> str:
    """`token`, if a header can carry it."""
    if len(token) > _MAX_TOKEN_CHARS:
        raise UsageError(f"{where} has a token of more than {_MAX_TOKEN_CHARS} characters")
    if not token.isprintable():
        raise UsageError(f"{where} has a token with a control character in it")
    return token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
