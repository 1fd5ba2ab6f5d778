"""Which command an error names where an optional dependency is missing."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

from edl.runtime import extras
from edl.runtime.extras import install_command

PYPROJECT = extras.ROOT / "pyproject.toml"
CALL = re.compile(r"install_command\(['\"]([\w-]+)['\"]\)")


def test_in_a_checkout_the_command_names_the_checkout() -> None:
    command = install_command("onnx")
    assert command == f"{sys.executable} -m pip install -e '{extras.ROOT}[onnx]'"


def test_from_a_wheel_the_command_names_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda name: [
            "numpy>=1.26",
            'starlette>=0.46; extra == "http"',
            'edl-dist[http,fs]; extra == "onnx"',
            'onnxruntime>=1.20; extra == "onnx"',
            "fsspec ; python_version < '3.12' and extra == 'fs'",
        ],
    )
    packages = "'starlette>=0.46' 'fsspec; python_version < '\"'\"'3.12'\"'\"'' 'onnxruntime>=1.20'"
    assert install_command("onnx") == f"{sys.executable} -m pip install {packages}"
    # Without metadata it names the extra.
    monkeypatch.setattr(metadata, "requires", Mock(side_effect=metadata.PackageNotFoundError("x")))
    assert install_command("onnx") == f"{sys.executable} -m pip install 'edl-dist[onnx]'"


def test_every_extra_that_an_error_names_exists() -> None:
    known = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    named = {
        name
        for path in extras.ROOT.iterdir()
        if path.name[0] != "." and path.name not in ("tests", "src", "build")
        for file in (path.rglob("*.py") if path.is_dir() else [path])
        if file.suffix == ".py"
        for name in CALL.findall(file.read_text())
    }
    assert named | set(extras.EXTRA_BY_PACKAGE.values()) <= set(known)
