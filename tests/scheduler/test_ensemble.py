"""What the labels of several services are mixed of, and when one is done without."""

from __future__ import annotations

from math import fsum, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.ensemble import Ensemble, Mixture, mixture

WAITS = Ensemble({"a": 0.7, "b": 0.3})
TOLERATES = Ensemble({"a": 0.7, "b": 0.3}, "tolerate", after_s=5.0)


def test_weights_are_normalised() -> None:
    assert Ensemble({"a": 7, "b": 3}).shares == pytest.approx({"a": 0.7, "b": 0.3})
    assert Ensemble({"a": 1e308, "b": 1e308}).shares == {"a": 0.5, "b": 0.5}


def test_a_batch_that_all_have_labelled_is_mixed_of_all() -> None:
    for ensemble in (WAITS, TOLERATES):
        assert mixture(ensemble, {"a", "b"}, {"b": 0.0}, 99.0) == Mixture(ensemble.shares, 1.0)


def test_one_that_is_missing_is_waited_for() -> None:
    assert mixture(WAITS, {"a"}, {"b": 0.0}, 1e9) is None


def test_or_tolerated_after_a_while_and_the_weight_is_told() -> None:
    assert mixture(TOLERATES, {"a"}, {"b": 100.0}, 104.9) is None
    assert mixture(TOLERATES, {"a"}, {"b": 100.0}, 105.0) == Mixture({"a": 1.0}, 0.7)


def test_one_that_is_slow_is_not_missing() -> None:
    assert mixture(TOLERATES, {"a"}, {}, 1e9) is None


def test_without_any_label_there_is_nothing_to_mix() -> None:
    assert mixture(TOLERATES, set(), {"a": 0.0, "b": 0.0}, 1e9) is None


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": -1.0}, {"a": nan}, {"a": inf}])
def test_weights_are_checked(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Ensemble(weights)


def test_the_policy_is_checked() -> None:
    with pytest.raises(ValueError, match="missing"):
        Ensemble({"a": 1.0}, "ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="after 0 s or more"):
        Ensemble({"a": 1.0}, after_s=-1.0)


@given(
    weights=st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-6, 1e6), min_size=1),
    labelled=st.sets(st.sampled_from("abcdef")),
    alone=st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 10)),
)
def test_shares_add_up_to_one_in_proportion(
    weights: dict[str, float], labelled: set[str], alone: dict[str, float]
) -> None:
    found = mixture(Ensemble(weights, "tolerate"), labelled, alone, 10.0)
    if found is None:
        slow = {name for name in weights if 10.0 - alone.get(name, 10.0) < 5.0}
        assert not labelled & weights.keys() or slow - labelled
        return
    assert set(found.shares) == labelled & weights.keys()
    assert fsum(found.shares.values()) == pytest.approx(1.0, abs=1e-12)
    assert 0 < found.weight <= 1 + 1e-12
    for name, share in found.shares.items():
        assert share * found.weight * fsum(weights.values()) == pytest.approx(weights[name])
