"""An offer of HTTP says as much to who reads it as to who made it, and nothing else is one."""

from __future__ import annotations

import pytest

from edl.proto.http_offer import OFFER, HttpOffer, new_mark

MARK = "00112233445566ff"


def test_an_offer_there_and_back() -> None:
    offer = HttpOffer(50051, 1, new_mark())
    assert HttpOffer.among([("other", b"\0"), *offer.metadata()]) == offer
    assert offer.metadata() == ((OFFER, f"50051 1 {offer.mark}"),)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "1 2",
        f"1 2 {MARK[:-1]}",
        f"1 2 {MARK}0",
        f"1 2 {MARK[:-1]}G",
        f"1  2 {MARK}",
        f"-1 2 {MARK}",
        f"1 123456 {MARK}",
        f"\u0661 2 {MARK}",
        f"1 2 {MARK}\n",
        f"1 2 {MARK}".encode(),
    ],
)
def test_what_is_no_offer_is_none(said: str | bytes) -> None:
    assert HttpOffer.among([(OFFER, said)]) is None
    assert HttpOffer.among([]) is None
