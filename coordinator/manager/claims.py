"""Who may report as which student: the first that comes owns the name. No I/O.

A student's facts hold hashes of its owner and of the secret of its stream. When the registry has
lost them, the first to come is believed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...errors import EdlError, Forbidden, LeaseSuperseded
from ..registry import Member

OWNER: Final = "owner"
SECRET: Final = "secret"


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who opened a stream, and claims to be a student.

    Attributes:
        principal: who its credential says that it is; empty where nobody is authenticated.
        secret: of its subscription: what it presented, else what it is given now.
    """

    principal: str = ""
    secret: str = ""

    def facts(self) -> dict[str, str]:
        """What is kept of it beside the student's report."""
        return {OWNER: _hash(self.principal), SECRET: _hash(self.secret)}


def objection(
    student_id: str, incarnation: int, caller: Claimant, facts: Mapping[str, str] | None
) -> EdlError | None:
    """Why a caller may not report as this student; None: it may.

    Args:
        student_id: which student it says that it is.
        incarnation: which life of it.
        caller: who it is.
        facts: what is known of that student; None: nothing.

    Returns:
        Forbidden for another owner, or for the wrong secret of the same life; LeaseSuperseded for
        a life that is over. Who shows the right secret of the same life is its owner, whatever its
        principal: tokens may have been exchanged in the meantime.
    """
    if not facts:
        return None
    mine = caller.facts()
    same_life = facts.get("incarnation", "") == str(incarnation)
    if same_life and _agree(facts, mine, SECRET):
        return None
    if not _agree(facts, mine, OWNER):
        return Forbidden(f"student {student_id} belongs to another principal")
    if same_life:
        return Forbidden(
            f"student {student_id} has a stream with another secret; a new start of it needs a "
            "greater incarnation"
        )
    if incarnation < Member(student_id, facts).incarnation:
        return superseded(student_id)
    return None


def owns(principal: str, facts: Mapping[str, str]) -> bool:
    """Whether a student with these facts was subscribed by `principal`."""
    return hmac.compare_digest(facts.get(OWNER, ""), _hash(principal))


def _agree(facts: Mapping[str, str], mine: Mapping[str, str], name: str) -> bool:
    """Whether what is kept fits what came; where nothing is kept, whoever comes is believed."""
    kept = facts.get(name, "")
    return not kept or hmac.compare_digest(kept, mine[name])


def superseded(student_id: str) -> LeaseSuperseded:
    """What a life that is over is told."""
    return LeaseSuperseded(
        f"student {student_id} was started again and has replaced this one; if both are to run,"
        " give each reader another rank= or job="
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
