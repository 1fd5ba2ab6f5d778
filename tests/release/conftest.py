"""The distributions as a release has them: an sdist, and the wheel that is built from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What a checkout has besides what is in the repository.
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".interop", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info",
    "__pycache__", "site",
)  # fmt: skip


def built(folder: Path, *options: str) -> Path:
    """The folder of what `python -m build` makes of this checkout."""
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=_LEFT_OUT)
    # In this environment, which has the build backend: isolation would fetch it once more.
    command = (sys.executable, "-P", "-m", "build", "--no-isolation", *options)
    done = subprocess.run(
        (*command, "--outdir", folder / "dist", folder / "source"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "dist"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a release has it: from an sdist."""
    (found,) = built(tmp_path_factory.mktemp("release")).glob("*.whl")
    return found
