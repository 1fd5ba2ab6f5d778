"""Stores that do not wait."""

from __future__ import annotations

import pytest


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that are opened now hardly wait for the locks of others."""
    monkeypatch.setattr("edl.distill_reader.store.database.BUSY_S", 0.05)
