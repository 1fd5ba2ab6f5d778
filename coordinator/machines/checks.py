"""What both machine boards check of what they are given."""

from __future__ import annotations

from ...errors import LeaseSuperseded, UsageError


def check_ttl(ttl_s: float) -> int:
    """A time to live in milliseconds."""
    if not 0.001 <= ttl_s <= 86_400:
        raise UsageError(f"a machine's time to live is 0.001 to 86400 seconds, not {ttl_s!r}")
    return round(ttl_s * 1000)


def check_incarnation(incarnation: int) -> int:
    """Raise UsageError unless it is one that a script counts exactly."""
    if not 0 <= incarnation < 1 << 53:
        raise UsageError(f"an incarnation is 0 to 2**53, not {incarnation!r}")
    return incarnation


def superseded(machine_id: str) -> LeaseSuperseded:
    """The error of an agent whose machine has a newer one."""
    return LeaseSuperseded(
        f"another agent runs as machine {machine_id}, and began later: end one of the two, or name "
        "them apart with --machine"
    )
