"""How a teacher says by gRPC that it speaks the protocol over HTTP as well, and where.

A large batch is cheaper over HTTP: it goes by one `sendmsg` without a copy in user space, and comes
into the memory that it stays in. So the answers of `ServerMetadata` and `ModelMetadata` bear an
offer. Between the two sides may be a proxy, or a host that maps ports: the offer is for a caller
that has dialled the very port it names, and that has heard its mark over HTTP.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

#: Trailing metadata of the calls that tell of it; and the header of HTTP's `/v2/health/live` that
#: says the mark.
OFFER: Final = "edl-http"
#: The header of an error that names gRPC's status for it.
STATUS: Final = "edl-status"

_MARK_BYTES: Final = 8
_OFFER: Final = re.compile(rf"(\d{{1,5}}) (\d{{1,5}}) ([0-9a-f]{{{2 * _MARK_BYTES}}})", re.ASCII)


def new_mark() -> str:
    """Of a server that starts: no other says the same."""
    return secrets.token_hex(_MARK_BYTES)


@dataclass(frozen=True, slots=True)
class HttpOffer:
    """Where the protocol is spoken over HTTP, on the host and by the credentials of gRPC.

    Attributes:
        grpc_port: that the teacher has bound.
        http_port: that it has bound too.
        mark: of this start of this teacher, as `new_mark` makes it.
    """

    grpc_port: int
    http_port: int
    mark: str

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((OFFER, f"{self.grpc_port} {self.http_port} {self.mark}"),)

    @classmethod
    def among(cls, metadata: Iterable[Sequence[str | bytes]]) -> Self | None:
        """The one in a call's metadata; None: there is none that can be read."""
        for key, value in metadata:
            if key == OFFER and isinstance(value, str) and (said := _OFFER.fullmatch(value)):
                return cls(int(said[1]), int(said[2]), said[3])
        return None
