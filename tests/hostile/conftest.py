"""Both planes, open to everyone on loopback, each on a port of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.tests.hostile.planes import ControlPlane
from edl.tests.teacher.bench import Bench


@pytest.fixture
def control() -> Iterator[ControlPlane]:
    plane = ControlPlane()
    yield plane
    plane.close()


@pytest.fixture
def data() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()
