"""Which of its teachers a deterministic reader may ask, by what makes the bits of their labels."""

from __future__ import annotations

from collections.abc import Iterable

from ...scheduler import pinning
from .outcomes import Peer


class Numerics:
    """Carries out what `scheduler.pinning` decides, for one member. Used by the engine's thread.

    Args:
        matter: the reader is deterministic; else nobody is barred.

    Attributes:
        matter: as given.
        pinned: what labels come from; empty while that is open.
    """

    def __init__(self, matter: bool) -> None:
        self.matter = matter
        self.pinned = ""
        self._told: dict[str, str] = {}  # by teachers that the registry does not describe

    def barred(self, peers: Iterable[Peer]) -> frozenset[str]:
        """Those of the peers that must not label; one that is not known yet may be asked."""
        if not self.matter:
            return frozenset()
        peers = [*peers]
        for gone in self._told.keys() - {peer.teacher_id for peer in peers}:
            del self._told[gone]
        known = {
            peer.teacher_id: peer.numerics_id if peer.incarnation else self._told[peer.teacher_id]
            for peer in peers
            if peer.incarnation or peer.teacher_id in self._told
        }
        self.pinned = pinning.pinned(self.pinned, known.values())
        return frozenset(
            name for name, told in known.items() if not pinning.admits(self.pinned, told)
        )

    def admits(self, numerics_id: str) -> bool:
        """Whether labels of these numerics may stand in the stream."""
        return not self.matter or pinning.admits(self.pinned, numerics_id)

    def hear(self, teacher: str, numerics_id: str) -> bool:
        """A teacher has answered: whether its labels may be used."""
        if not self.matter:
            return True
        self._told[teacher] = numerics_id
        self.pinned = pinning.pinned(self.pinned, [numerics_id])
        return pinning.admits(self.pinned, numerics_id)
