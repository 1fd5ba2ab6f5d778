"""Servers that speak HTTP besides gRPC."""

from __future__ import annotations

from functools import partial

import pytest

from edl.tests.teacher.bench import Bench, Make


@pytest.fixture
def make(make: Make) -> Make:
    return partial(make, http="0")


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()
