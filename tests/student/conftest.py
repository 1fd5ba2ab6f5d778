"""Fixtures of the student's tests: Paddle, and job files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl.teacher.backends.paddle import import_paddle


@pytest.fixture(scope="session")
def paddle() -> Any:
    return import_paddle()


@pytest.fixture
def write_job(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Writes a job file; its folder and modules are forgotten after the test."""
    path, modules = list(sys.path), set(sys.modules)

    def write(text: str, name: str = "job.py") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
