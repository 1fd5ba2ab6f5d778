"""How a teacher offers the transport by gRPC, and how both sides prove that they know the offer."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

#: Metadata of `ModelMetadata`: in the call it asks for an offer, beside the answer it is the offer.
OFFER: Final = "edl-transport"
WANTED: Final = ((OFFER, "1"),)
#: What both sides begin with; the last byte is the version.
MAGIC: Final = b"EDL\x01"
ID_BYTES: Final = 16
CHALLENGE_BYTES: Final = 16
PROOF_BYTES: Final = hashlib.sha256().digest_size
#: From the reader: MAGIC, the session, a challenge. From the teacher: a challenge, its proof. From
#: the reader: its proof.
HELLO_BYTES: Final = len(MAGIC) + ID_BYTES + CHALLENGE_BYTES
REPLY_BYTES: Final = CHALLENGE_BYTES + PROOF_BYTES
_OFFER: Final = re.compile(
    r"(\d{1,5}) (\d{1,5}) (-|[\w-]{1,64}) ([0-9a-f]{32}) ([0-9a-f]{64})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Offer:
    """Where one teacher takes frames, for one caller.

    Attributes:
        grpc_port: that the teacher has bound: who dialled another one is behind something that
            maps ports, and cannot use the offer.
        port: of TCP.
        unix_name: of a Unix socket in the abstract namespace; empty: there is none.
        session: names the caller's credentials; not secret.
        secret: known to both sides, and never sent over the connection.
    """

    grpc_port: int
    port: int
    unix_name: str
    session: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls, grpc_port: int, port: int, unix_name: str) -> Self:
        """An offer with a session and a secret of its own."""
        return cls(
            grpc_port, port, unix_name, secrets.token_bytes(ID_BYTES), secrets.token_bytes(32)
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes beside the answer of gRPC."""
        name = self.unix_name or "-"
        said = f"{self.grpc_port} {self.port} {name} {self.session.hex()} {self.secret.hex()}"
        return ((OFFER, said),)

    @classmethod
    def among(cls, metadata: Iterable[Sequence[str | bytes]]) -> Self | None:
        """The offer in a call's metadata; None: there is none that can be read."""
        for key, value in metadata:
            if key == OFFER and isinstance(value, str) and (said := _OFFER.fullmatch(value)):
                name = "" if said[3] == "-" else said[3]
                session, secret = bytes.fromhex(said[4]), bytes.fromhex(said[5])
                return cls(int(said[1]), int(said[2]), name, session, secret)
        return None

    def teachers_proof(self, readers: bytes, teachers: bytes) -> bytes:
        """The teacher's answer to the reader's challenge, bound to its own challenge."""
        return _proof(self.secret, b"teacher", readers, teachers)

    def readers_proof(self, readers: bytes, teachers: bytes) -> bytes:
        """The reader's answer to the teacher's challenge, bound to its own challenge."""
        return _proof(self.secret, b"reader", readers, teachers)


def same(proof: bytes, expected: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(proof, expected)


def _proof(secret: bytes, who: bytes, readers: bytes, teachers: bytes) -> bytes:
    return hmac.new(secret, who + readers + teachers, hashlib.sha256).digest()
