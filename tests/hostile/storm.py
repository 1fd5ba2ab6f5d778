"""Draws thousands of hostile inputs and hits with them, many at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

AT_ONCE = 50

_T = TypeVar("_T")


def _counts(often: int) -> list[Any]:
    nightly = [pytest.mark.nightly, pytest.mark.timeout(3600)]
    return [often, pytest.param(40 * often, marks=nightly)]


#: At each of two planes: 5,000 inputs in all with each `make test`, 200,000 with `make nightly`.
MESSAGES, FRAMES = _counts(1750), _counts(750)


def storm(inputs: st.SearchStrategy[_T], count: int, hit: Callable[[list[_T]], None]) -> int:
    """Hit with `count` inputs, some at once; how many it were."""
    done = 0

    @settings(
        max_examples=count // AT_ONCE,
        phases=[Phase.generate],  # what fails shows its input; to shrink it would take minutes
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(inputs, min_size=AT_ONCE, max_size=AT_ONCE))
    def strike(batch: list[_T]) -> None:
        nonlocal done
        hit(batch)
        done += len(batch)

    with warnings.catch_warnings():
        # Good clients draw their pauses from `random` meanwhile, in threads of their own.
        warnings.filterwarnings("ignore", message="Do not use the `random` module inside strat")
        strike()
    return done
