"""Which version of the control plane's messages we speak, and which ones of a peer we take."""

from __future__ import annotations

from ..errors import VersionMismatch

#: Raised by a change that an older peer would misread; new fields alone do not raise it.
PROTOCOL_VERSION = 1
#: The oldest version that we still understand.
OLDEST_VERSION = 1


def check_version(peer: int) -> None:
    """Take a peer's version, or refuse it.

    Args:
        peer: what the peer's message says; 0 when it says nothing.

    Raises:
        VersionMismatch: too old or too new; the message names the version that is needed.
    """
    if peer < OLDEST_VERSION:
        said = f"protocol version {peer}" if peer > 0 else "no protocol version"
        raise VersionMismatch(
            f"the peer speaks {said}; at least {OLDEST_VERSION} is needed: update the peer"
        )
    if peer > PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the peer speaks protocol version {peer}; this side needs at most {PROTOCOL_VERSION}: "
            "update this side"
        )
