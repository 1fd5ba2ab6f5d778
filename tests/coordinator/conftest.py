"""What the tests of a service manager's gRPC side share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.tests.coordinator.scripted_manager import Served, served


@pytest.fixture
def mesh() -> Iterator[Served]:
    with served() as mesh:
        yield mesh
