"""What the tests of a teacher share: a model exported by Paddle, and fakes that need none."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of a real model of two outputs, exported once."""
    from edl.tests.teacher.networks import export

    return export(tmp_path_factory.mktemp("model"))
