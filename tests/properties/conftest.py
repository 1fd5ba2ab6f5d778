"""Property tests may take longer than others: nightly runs draw thousands of examples."""

from __future__ import annotations

from pathlib import Path

import pytest

TIMEOUT_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
