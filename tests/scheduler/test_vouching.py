"""Who vouches for a foreign server: when it looks, when it registers, when it takes it back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.vouching import (
    Found,
    Look,
    Patience,
    Step,
    Vouching,
    looked,
    next_look,
    not_taken,
)

PATIENCE = Patience(every_s=1.0, test_every_s=15.0, strikes=2, retry_s=10.0)
FOUND: st.SearchStrategy[Found] = st.sampled_from(["well", "silent", "wrong"])


@dataclass
class Case:
    """One server, and a clock."""

    patience: Patience = PATIENCE
    now: float = 100.0
    vouching: Vouching = field(default_factory=Vouching)
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def look(self, found: Found, took_s: float = 0.0) -> tuple[Look, Step]:
        look, wait_s = next_look(self.vouching, self.now, self.patience)
        assert wait_s >= 0
        self.now += wait_s + took_s
        self.vouching, step = looked(self.vouching, look, found, self.now, self.patience, self.rng)
        return look, step


def test_only_a_test_lets_a_server_in() -> None:
    case = Case()
    assert case.look("well") == ("test", "register")
    assert case.look("well") == ("ask", "stay")


def test_the_first_look_is_at_once_and_the_later_ones_in_their_time() -> None:
    case = Case()
    assert next_look(case.vouching, case.now, PATIENCE) == ("test", 0.0)
    case.look("well")
    looks = [case.look("well") for _ in range(40)]
    assert case.now == 140.0
    assert [number for number, (look, _) in enumerate(looks) if look == "test"] == [14, 29]


def test_one_that_the_registry_could_not_take_is_tested_again_soon() -> None:
    case = Case()
    case.look("well")
    case.vouching = not_taken(case.now, PATIENCE)
    before = case.now
    assert case.look("well") == ("test", "register")
    assert case.now == before + PATIENCE.every_s


@pytest.mark.parametrize("found", ["silent", "wrong"])
def test_one_that_never_answers_well_is_never_registered_and_looked_at_rarely(found: Found) -> None:
    case = Case()
    waits = []
    for _ in range(30):
        before = case.now
        assert case.look(found) == ("test", "stay")
        waits.append(case.now - before)
    assert waits[0] == 0.0
    assert max(waits) <= PATIENCE.retry_s
    assert sum(waits[-5:]) > sum(waits[1:6])


def test_silence_is_borne_once() -> None:
    case = Case()
    case.look("well")
    assert case.look("silent") == ("ask", "stay")
    assert case.look("well") == ("ask", "stay")
    assert case.look("silent") == ("ask", "stay")
    assert case.look("silent") == ("ask", "withdraw")
    assert case.look("silent") == ("test", "stay")
    assert case.look("well") == ("test", "register")


def test_a_wrong_answer_is_not_borne() -> None:
    case = Case()
    case.look("well")
    for _ in range(14):
        case.look("well")
    assert case.look("wrong") == ("test", "withdraw")
    assert case.look("well") == ("test", "register"), "its operator has mended it"


def test_one_that_is_ready_and_labels_nothing_is_put_out() -> None:
    case = Case()
    case.look("well")
    for _ in range(14):
        assert case.look("well")[0] == "ask"
    assert case.look("silent", took_s=10.0) == ("test", "stay")
    assert case.look("silent", took_s=10.0) == ("test", "withdraw")


@given(st.lists(st.tuples(FOUND, st.floats(0, 60)), max_size=60), st.integers(1, 4))
def test_laws(script: list[tuple[Found, float]], strikes: int) -> None:
    """Whatever is found: in by a test alone, out by silence that lasts or a wrong answer alone."""
    case = Case(Patience(strikes=strikes))
    registered, silent = False, 0
    for found, took_s in script:
        began = case.now
        look, step = case.look(found, took_s)
        assert case.now - began - took_s <= max(PATIENCE.retry_s, PATIENCE.every_s)
        silent = silent + 1 if found == "silent" and registered else 0
        if step == "register":
            assert (registered, look, found) == (False, "test", "well")
        if step == "withdraw":
            assert registered
            assert found == "wrong" or silent == strikes
        assert not (registered and found == "wrong" and step == "stay")
        assert silent < strikes or step == "withdraw"
        registered = {"register": True, "withdraw": False, "stay": registered}[step]
        assert case.vouching.registered is registered


@pytest.mark.parametrize(
    "odd", [{"every_s": 0.0}, {"test_every_s": -1.0}, {"strikes": 0}, {"retry_s": 0.0}]
)
def test_impatience_that_makes_no_sense_is_refused(odd: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Patience(**odd)  # type: ignore[arg-type]
