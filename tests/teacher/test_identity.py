"""Which instance answers, and how it proves that it is the one."""

from __future__ import annotations

import pytest

from edl.errors import RequestRefused, WrongInstance
from edl.proto.security.instance import verify
from edl.teacher.identity import CHALLENGE, INSTANCE, Identity


def test_each_start_has_a_key_of_its_own_that_is_not_shown() -> None:
    one, other = Identity("s", "t1", 41), Identity("s", "t1", 41)
    assert one.key != other.key
    assert one.key not in repr(one)


def test_a_challenge_is_answered_by_who_holds_the_key() -> None:
    identity = Identity("s", "t1", 41)
    proof = dict(identity.proof({CHALLENGE: "c", INSTANCE: "t1"}))
    assert proof["edl-incarnation"] == "41"
    assert verify(identity.key, "t1", 41, "c", proof["edl-proof"])
    assert not verify(Identity("s", "t1", 41).key, "t1", 41, "c", proof["edl-proof"])
    assert not verify(identity.key, "t1", 41, "another", proof["edl-proof"])


def test_nobody_asks_nothing_is_proved() -> None:
    assert Identity("s", "t1", 41).proof({"user-agent": "x"}) == ()


def test_a_challenge_for_another_teacher_or_of_any_length_is_refused() -> None:
    identity = Identity("s", "t1", 41)
    with pytest.raises(WrongInstance):
        identity.proof({CHALLENGE: "c", INSTANCE: "t2"})
    with pytest.raises(RequestRefused, match="edl-challenge"):
        identity.proof({CHALLENGE: "c" * 5000})
