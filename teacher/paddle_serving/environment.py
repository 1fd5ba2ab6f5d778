"""Creates an environment for Paddle Serving: `python -m ...environment FOLDER [--gpu]`.

Its packages pin releases of grpcio and MarkupSafe without wheels for any current Python, and its
generated code needs protobuf 3.20. So they cannot be installed beside our packages, nor with their
declared dependencies. This module installs the packages that they really import, and then the
packages themselves without dependencies. Upstream's code runs unchanged, with other versions than
it pins.

Two more things are needed. The server imports the client, which has wheels only up to Python 3.9.
Its Python files are copied from such a wheel, without the binary of 176 MB, which only the client
of the C++ server loads. And `sitecustomize` restores names that have moved out of `collections`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...runtime import supervise
from ...runtime.errors import EdlError, ProcessFailed, UsageError

#: Seconds for one step of pip; Paddle for GPUs has hundreds of megabytes.
_STEP_S: Final = 1800.0
#: File that marks our environments. It holds the recipe of a complete one, else it is empty.
_STAMP: Final = "edl-paddle-serving.json"
_CLIENT: Final = "paddle_serving_client"
_CLIENT_WHEEL: Final = "paddle-serving-client==0.9.0"
_CHECK: Final = (
    "import paddle_serving_client.httpclient, paddle_serving_app.local_predict;"
    "from paddle_serving_server import pipeline"
)
#: Packages that upstream's code imports; it imports pytest to check its own installation.
_IMPORTED: Final = (
    "protobuf==3.20.3", "grpcio", "func-timeout", "pyyaml", "six", "flask<3", "requests", "pytest",
)  # fmt: skip
_SITECUSTOMIZE: Final = '''"""Paddle Serving 0.9 takes names from collections that have moved."""

import collections
import collections.abc

for name in ("Callable", "Hashable", "Iterable", "Iterator", "Mapping", "Sequence"):
    setattr(collections, name, getattr(collections.abc, name))
'''


class Recipe(NamedTuple):
    """The packages of an environment.

    Attributes:
        dependencies: packages that are installed with their dependencies.
        alone: packages that are installed without dependencies.
    """

    dependencies: tuple[str, ...]
    alone: tuple[str, ...]

    @property
    def stamp(self) -> str:
        """Content of the file that marks a complete environment."""
        return json.dumps([*self, _CLIENT_WHEEL, _SITECUSTOMIZE])


def recipe(gpu: bool = False) -> Recipe:
    """Return the recipe for CPUs, or for NVIDIA's GPUs."""
    if gpu:
        # The newest release on PyPI; it was built for numpy 1.
        paddle: tuple[str, ...] = ("paddlepaddle-gpu==2.6.2", "numpy<2")
        server = "paddle-serving-server-gpu==0.9.0.post1028"
    else:
        paddle = ("paddlepaddle==3.3.1",)
        server = "paddle-serving-server==0.9.0"
    return Recipe((*paddle, *_IMPORTED), (server, "paddle-serving-app==0.9.0"))


def make(folder: Path, recipe: Recipe, on_progress: Callable[[str], None]) -> Path:
    """Create the environment in `folder` unless it is complete; return its interpreter.

    Args:
        folder: a new folder, or one that this function created; an incomplete one is created again.
        recipe: what to install.
        on_progress: called with progress, in words.

    Raises:
        UsageError: the folder holds something else.
        ProcessFailed: a step failed, and the message holds its last lines; or it took too long.
    """
    folder = folder.absolute()
    python = folder / "bin" / "python"
    stamp = folder / _STAMP
    if stamp.is_file() and stamp.read_text() == recipe.stamp and python.exists():
        on_progress(f"{folder} is up to date")
        return python
    if folder.exists():
        _check_replaceable(folder)
        shutil.rmtree(folder)
    on_progress(f"making {folder}")
    folder.mkdir(parents=True)
    stamp.touch()
    _run("venv", sys.executable, "-m", "venv", str(folder))
    on_progress(f"installing {', '.join(recipe.dependencies)}")
    _pip(python, *recipe.dependencies)
    on_progress(f"installing {', '.join(recipe.alone)} without the dependencies that they declare")
    _pip(python, "--no-deps", *recipe.alone)
    on_progress(f"installing the Python files of {_CLIENT_WHEEL}")
    _install_client(python)
    (_site_packages(python) / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    with tempfile.TemporaryDirectory() as scratch:  # upstream writes files when it is imported
        _run("check", str(python), "-c", _CHECK, cwd=Path(scratch))
    stamp.write_text(recipe.stamp)
    on_progress(f"Paddle Serving runs by {python}")
    return python


def _check_replaceable(folder: Path) -> None:
    """Raise UsageError for a folder that this module did not create, unless it is empty."""
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / _STAMP).exists()):
        raise UsageError(f"{folder} holds something else: name a new folder, or remove it")


def _pip(python: Path, *arguments: str) -> None:
    _run(
        "pip", str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        *arguments,
    )  # fmt: skip


def _install_client(python: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wheel = ("--target", scratch, "--python-version", "39", "--only-binary=:all:")
        _pip(python, "--no-deps", *wheel, _CLIENT_WHEEL)
        shutil.copytree(
            Path(scratch) / _CLIENT,
            _site_packages(python) / _CLIENT,
            ignore=shutil.ignore_patterns("*.so", "__pycache__"),
            dirs_exist_ok=True,
        )


def _site_packages(python: Path) -> Path:
    (folder,) = (python.parent.parent / "lib").glob("python3*/site-packages")
    return folder


def _run(name: str, *argv: str, cwd: Path | None = None) -> None:
    process = supervise.start(supervise.Command(name, argv, cwd=cwd, guard=True))
    code = process.wait(_STEP_S)
    if code is None:
        process.stop()
        raise ProcessFailed(f"{name} took longer than {_STEP_S:g} s and was ended")
    if code:
        output = "\n".join(process.tail(5))
        raise ProcessFailed(f"{name} {supervise.describe_exit(code)}: {output}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m edl.teacher.paddle_serving.environment",
        description="Make an environment in which Paddle Serving runs.",
    )
    parser.add_argument("folder", type=Path, help="a new folder, or one made by this command")
    parser.add_argument("--gpu", action="store_true", help="for NVIDIA's GPUs, with Paddle 2.6")
    options = parser.parse_args(arguments)
    try:
        make(options.folder, recipe(options.gpu), lambda text: print(text, flush=True))
    except EdlError as error:
        print(f"edl: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
