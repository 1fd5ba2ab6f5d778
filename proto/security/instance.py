"""Proof that a server at an address is the instance that registered there.

A teacher creates a key when it starts and writes the key to the registry. There, managers and the
Redis users of the service's teachers and of agents can read it. A manager sends a challenge to the
registered address; only an owner of the key can answer with the right proof. The key itself is not
sent to that address. The proof does not exclude a relay between manager and teacher; TLS does.

A foreign server does not know this scheme. Its sidecar answers instead, at its own address, and the
proof includes the address of the server that the sidecar attests.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

#: Metadata keys of a call of `ServerMetadata`: the manager's challenge, and the id of the teacher
#: that it expects.
CHALLENGE: Final = "edl-challenge"
TEACHER_ID: Final = "edl-instance"
#: Metadata keys of the answer: the teacher's proof and its incarnation.
PROOF: Final = "edl-proof"
INCARNATION: Final = "edl-incarnation"

_PURPOSE = "edl-instance-v1"
_KEY_BYTES = 32
#: Longest challenge that is answered.
_MAX_CHARS = 512


def new_key() -> str:
    """Create the key for one incarnation of a teacher."""
    return secrets.token_hex(_KEY_BYTES)


def new_challenge() -> str:
    """Create a random text for which no proof exists yet."""
    return secrets.token_hex(_KEY_BYTES)


def prove(
    key: str, teacher_id: str, incarnation: int, challenge: str, attested_address: str = ""
) -> str:
    """Return the HMAC-SHA256 of a teacher's incarnation and the challenge, in hex.

    Args:
        key: the key of this incarnation, from `new_key`.
        teacher_id: id of the teacher.
        incarnation: number of the incarnation.
        challenge: the challenge of the manager.
        attested_address: address of the foreign server that a sidecar attests; empty: the teacher
            proves its own identity.

    Raises:
        ValueError: the challenge is too long.
    """
    if len(challenge) > _MAX_CHARS:
        raise ValueError(f"a challenge of {len(challenge)} characters; at most {_MAX_CHARS}")
    # Lengths precede the texts, so that no other values give the same bytes.
    parts = [_PURPOSE, teacher_id, str(incarnation), challenge]
    if attested_address:
        parts.append(attested_address)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hmac.new(key.encode(), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def verify(
    key: str,
    teacher_id: str,
    incarnation: int,
    challenge: str,
    proof: str,
    attested_address: str = "",
) -> bool:
    """Return whether `proof` was made with `key` for exactly these values."""
    if not key:
        return False
    expected = prove(key, teacher_id, incarnation, challenge, attested_address)
    return hmac.compare_digest(expected.encode(), proof.encode("utf-8", "surrogatepass"))
