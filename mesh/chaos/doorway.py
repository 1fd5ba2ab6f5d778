"""Several gates to one place, told as one."""

from __future__ import annotations

from .gate import Gate


class Doorway:
    """What a teacher is reached through: whatever happens on the way happens at every gate.

    Args:
        grpc: before its gRPC.
        transport: before its transport.
    """

    def __init__(self, grpc: Gate, transport: Gate) -> None:
        self._gates = (grpc, transport)

    @property
    def struck(self) -> int:
        """As of `Gate`, at both."""
        return sum(gate.struck for gate in self._gates)

    def silence(self) -> None:
        """As of `Gate`."""
        for gate in self._gates:
            gate.silence()

    def delay(self, seconds: float) -> None:
        """As of `Gate`."""
        for gate in self._gates:
            gate.delay(seconds)

    def heal(self) -> None:
        """As of `Gate`."""
        for gate in self._gates:
            gate.heal()

    def cut(self) -> None:
        """As of `Gate`."""
        for gate in self._gates:
            gate.cut()
