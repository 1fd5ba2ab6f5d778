"""Offers of the transport, and the proofs that both sides know one."""

from __future__ import annotations

import pytest

from edl.proto.transport.offer import OFFER, Offer, same

SESSION, SECRET = "0123456789abcdef" * 2, "0123456789abcdef" * 4


@pytest.mark.parametrize("unix_name", ["", "edl-teacher-00ff"])
def test_an_offer_there_and_back(unix_name: str) -> None:
    offer = Offer.new(50051, 8502, unix_name)
    assert Offer.among([("other", b"\0"), *offer.metadata()]) == offer
    assert Offer.among([]) is None
    assert offer.secret.hex() not in repr(offer)
    assert Offer.new(50051, 8502, unix_name).session != offer.session


@pytest.mark.parametrize(
    "said",
    [
        "",
        f"1 2 - {SESSION}",
        f"1 2 - {SESSION[1:]} {SECRET}",
        f"1 2 - {SESSION} {SECRET[1:]}",
        f"1 2 - {SESSION.upper()} {SECRET}",
        f"1 123456 - {SESSION} {SECRET}",
        f"\u0661 2 - {SESSION} {SECRET}",
        f"1 2 a/b {SESSION} {SECRET}",
        f"1 2 - {SESSION} {SECRET}\n",
        f"1 2 - {SESSION} {SECRET}".encode(),
    ],
)
def test_what_is_no_offer_is_none(said: str | bytes) -> None:
    assert Offer.among([(OFFER, said)]) is None


def test_proofs_differ_by_side_challenge_and_secret() -> None:
    offer, other = Offer.new(1, 2, ""), Offer.new(1, 2, "")
    a, b = bytes(16), bytes([1] * 16)
    proofs = [
        offer.teachers_proof(a, b),
        offer.readers_proof(a, b),
        offer.teachers_proof(b, a),
        other.teachers_proof(a, b),
    ]
    assert len(set(proofs)) == len(proofs)
    assert same(proofs[0], offer.teachers_proof(a, b))
    assert not same(proofs[0], proofs[1])
