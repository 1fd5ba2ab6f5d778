"""Roles, and who calls: what a server decides by, with no secret in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...errors import UsageError

#: What each may do. A student has batches labelled and subscribes; a viewer looks; an admin may
#: do everything.
ROLES: Final = ("student", "viewer", "admin")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        role: one of `ROLES`.
        name: who in that role; empty where the credential names nobody. A student with a name may
            only be students of that job.
        principal: what is equal for calls with the same authority: role and name where there is a
            name, else the credential. It holds no secret.
    """

    role: str
    name: str
    principal: str

    def __str__(self) -> str:
        return f"{self.role}:{self.name}" if self.name else self.role

    def may(self, role: str) -> bool:
        """Whether it may do what is for `role`."""
        return self.role in (role, "admin")

    def may_be(self, student_id: str) -> bool:
        """Whether it may be the student `job/rank`."""
        return self.role == "admin" or (
            self.role == "student" and (not self.name or student_id.startswith(f"{self.name}/"))
        )


#: Who calls a server that asks nobody: it listens on loopback, or was told to be insecure.
ANYONE: Final = Caller("admin", "", "anyone")


def caller_of(text: str, anonymous: str) -> Caller:
    """Who `ROLE` or `ROLE:NAME` is.

    Args:
        text: as it stands in a tokens file.
        anonymous: the principal where there is no name.

    Raises:
        UsageError: no such role, or an empty name.
    """
    role, colon, name = text.partition(":")
    if role not in ROLES:
        raise UsageError(f"{role[:40]!r} is no role: it is one of {', '.join(ROLES)}")
    if colon and not name:
        raise UsageError(f"{role}: has no name behind the colon: write {role}, or {role}:NAME")
    return Caller(role, name, f"{role}:{name}" if name else anonymous)


def caller_of_certificate(common_name: str) -> Caller:
    """Whom a certificate names by its CN: `ROLE[:NAME]`, else a student of that name."""
    try:
        return caller_of(common_name, f"certificate {common_name}")
    except UsageError:
        return Caller("student", common_name, f"student:{common_name}")
