"""The proof that an instance holds the key which it registered with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.security.instance import new_challenge, new_key, prove, verify


def test_only_the_holder_of_the_key_proves() -> None:
    key, challenge = new_key(), new_challenge()
    proof = prove(key, "t1", 7, challenge)
    assert verify(key, "t1", 7, challenge, proof)
    assert not verify(new_key(), "t1", 7, challenge, proof)
    assert not verify(key, "t2", 7, challenge, proof)
    assert not verify(key, "t1", 8, challenge, proof)
    assert not verify(key, "t1", 7, new_challenge(), proof)


@pytest.mark.parametrize("proof", ["", "0" * 64, "\ud800", "é"])
def test_no_proof_is_none(proof: str) -> None:
    assert not verify(new_key(), "t", 1, "c", proof)


def test_without_a_key_nothing_is_proved() -> None:
    assert not verify("", "t", 1, "c", prove("", "t", 1, "c"))


@given(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5))
def test_no_other_name_and_challenge_have_the_same_proof(a: str, b: str, c: str, d: str) -> None:
    assert (prove("k", a, 1, b) == prove("k", c, 1, d)) is ((a, b) == (c, d))


@given(*[st.text(max_size=4)] * 6)
def test_no_other_vouched_address_has_the_same_proof(
    a: str, b: str, vouched: str, c: str, d: str, other: str
) -> None:
    same = (a, b, vouched) == (c, d, other)
    assert (prove("k", a, 1, b, vouched) == prove("k", c, 1, d, other)) is same


def test_who_speaks_for_itself_vouches_for_nobody() -> None:
    key, challenge = new_key(), new_challenge()
    proof = prove(key, "t1", 7, challenge)
    assert not verify(key, "t1", 7, challenge, proof, "h:1")
    assert verify(key, "t1", 7, challenge, prove(key, "t1", 7, challenge, "h:1"), "h:1")


def test_a_teacher_signs_no_long_texts() -> None:
    with pytest.raises(ValueError, match="at most 512"):
        prove(new_key(), "t", 1, "x" * 513)


def test_keys_differ() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert len(new_key()) == 64
