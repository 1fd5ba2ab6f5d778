"""The door of a teacher for callers on its host: how it is told of, and what passes through it.

A call of gRPC's takes longer than all else about a batch that need not travel. So whoever shares
memory with a teacher is invited, in the answer to the registration, to come by a Unix socket: it
says its ticket, is welcomed, and says its requests. What passes then are the messages of
`ModelStreamInfer`, each behind its length.

The socket has an abstract name, so that no file is left by whoever dies. Every user of the host may
see such a name, and take it once it is free: so each side looks at which user the other runs as.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from . import stream_answers

#: Trailing metadata of `SystemSharedMemoryRegister`.
INVITATION: Final = "edl-door"
#: The length of a message, in bytes, before it.
LENGTH: Final = struct.Struct("<I")
#: A ticket, as it is said, has so many bytes.
TICKET_BYTES: Final = 32
#: What a ticket that is good is answered with.
WELCOME: Final = b"edl1"


@dataclass(frozen=True, slots=True)
class Invitation:
    """Where a door is, and what opens it.

    Attributes:
        name: of the socket.
        ticket: stands for the credentials that its bearer has shown.
    """

    name: str
    ticket: str

    @property
    def address(self) -> str:
        """What a Unix socket connects to."""
        return f"\0{self.name}"

    @classmethod
    def to(cls, name: str) -> Self:
        """A new one, to the door `name`."""
        return cls(name, secrets.token_hex(TICKET_BYTES // 2))

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((INVITATION, f"{self.name} {self.ticket}"),)

    @classmethod
    def among(cls, metadata: Iterable[Sequence[str | bytes]]) -> Self | None:
        """The one in a call's metadata; None: nobody was invited."""
        for key, value in metadata:
            if key == INVITATION and isinstance(value, str):
                name, _, ticket = value.partition(" ")
                return cls(name, ticket)
        return None


def before(nbytes: int) -> bytes:
    """What stands before a serialised `ModelInferResponse` of so many bytes that passes."""
    about = stream_answers.before(nbytes)
    return LENGTH.pack(len(about) + nbytes) + about


def user_behind(connection: socket.socket) -> int:
    """The user that the other side of a Unix socket runs as; -1 where the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return -1
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(said)[1])


#: Process, user, group.
_CREDENTIALS: Final = struct.Struct("3i")
