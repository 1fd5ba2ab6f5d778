"""Who calls by gRPC, or comes by the door, as the gate and the limits tell callers apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from ...proto.security import Gate
from ..shared_memory.visitors import Visitor

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a call has shown of its caller, to be held against the gate again later.

    A token that is withdrawn counts no more then; of a certificate only the name is looked at.

    Attributes:
        metadata: of the call.
        identities: of its connection.
        peer: where that comes from.
        uid: the user behind the Unix socket that it is used by; None: it is used by TCP.
    """

    metadata: Iterable[tuple[str, str | bytes]] | None
    identities: Mapping[str, Any] | None
    peer: str
    uid: int | None = None

    @classmethod
    def by(cls, context: _Context) -> Shown:
        """What the caller of `context` has shown."""
        identities: Any = context.auth_context()
        return cls(context.invocation_metadata(), identities, str(context.peer()))


class Callers:
    """Admits callers.

    Args:
        gate: who may ask.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def anybody(self, context: _Context) -> None:
        """Let everybody in: the call is one that needs no credential."""
        self._gate.called(str(context.peer()))

    def known(self, shown: Shown) -> Visitor:
        """Who has shown this.

        Raises:
            AccessError: a credential is missing or unknown.
        """
        return self._admitted(shown, "")

    def student(self, shown: Shown) -> Visitor:
        """The student that has shown this.

        Raises:
            AccessError: a credential is missing or unknown, or is not that of a student.
        """
        return self._admitted(shown, "student")

    def is_student(self, shown: Shown) -> bool:
        """Whether a student has shown this; who has not is not counted as refused."""
        return self._gate.admit(shown.metadata, shown.identities, shown.peer).may("student")

    def _admitted(self, shown: Shown, role: str) -> Visitor:
        caller = self._gate.admit(shown.metadata, shown.identities, shown.peer)
        if role:
            self._gate.require(caller, role)
        return Visitor.of_peer(caller.principal, shown.peer, shown.uid)
