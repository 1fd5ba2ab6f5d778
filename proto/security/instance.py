"""How an instance proves that it is the one which registered, and no other on its address.

A teacher makes a key when it starts and writes it beside its other facts, where only managers read
it. A manager sends a challenge to the registered address, and who answers with the right proof
holds the key. The key itself never travels between them. What the proof does not say: that nobody
stands between both; that is for TLS.

A foreign server knows nothing of this. Whoever has registered it answers in its place, at an
address of its own, and proves at once for which address of the server it vouches.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

_PURPOSE = "edl-instance-v1"
_KEY_BYTES = 32
#: More than any honest challenge or name; whoever signs longer ones works for others.
_MAX_CHARS = 512


def new_key() -> str:
    """A key for one start of one instance."""
    return secrets.token_hex(_KEY_BYTES)


def new_challenge() -> str:
    """What nobody can have an answer to yet."""
    return secrets.token_hex(_KEY_BYTES)


def prove(
    key: str, teacher_id: str, incarnation: int, challenge: str, attested_address: str = ""
) -> str:
    """HMAC-SHA256 of who answers and of the challenge, in hex.

    Args:
        key: of this start.
        teacher_id: who registered.
        incarnation: as which start.
        challenge: what was asked.
        attested_address: address of the server that it speaks for; empty: it speaks for itself.

    Raises:
        ValueError: the challenge is too long to be one.
    """
    if len(challenge) > _MAX_CHARS:
        raise ValueError(f"a challenge of {len(challenge)} characters; at most {_MAX_CHARS}")
    # Lengths before the texts: no other names and challenge give the same bytes.
    parts = [_PURPOSE, teacher_id, str(incarnation), challenge]
    if attested_address:
        parts.append(attested_address)
    said = "".join(f"{len(part)}:{part}" for part in parts)
    return hmac.new(key.encode(), said.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def verify(
    key: str,
    teacher_id: str,
    incarnation: int,
    challenge: str,
    proof: str,
    attested_address: str = "",
) -> bool:
    """Whether `proof` was made with `key`, of just this."""
    if not key:
        return False
    expected = prove(key, teacher_id, incarnation, challenge, attested_address)
    return hmac.compare_digest(expected.encode(), proof.encode("utf-8", "surrogatepass"))
