"""Environments of third-party programs, each made once from its pinned list and kept.

    python -m edl.tests.interop.environments all|NAME...

makes them in `.interop/` at the root, which git ignores. An environment is made again when its list
or the Python that it is for has changed. Processes that want one at the same time wait for each
other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edl.runtime.errors import EdlError
from edl.teacher.paddle_serving.environment import make, recipe

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".interop"
LISTS = Path(__file__).with_name("requirements")
STAMP = ".made-of"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment for one program, made of the list of its name in `requirements/`."""

    name: str
    newest: int  # minor version of Python 3 that its packages are made for
    with_requirements: bool = True  # its packages' own requirements are installed, too

    def program(self, name: str) -> Path:
        """A program of its packages, such as `python`."""
        return FOLDER / self.name / "bin" / name

    def make(self) -> None:
        """Make it, unless it is there as its list wants it.

        Raises:
            RuntimeError: there is no Python for it, or pip failed.
        """
        folder, requirements = FOLDER / self.name, LISTS / f"{self.name}.txt"
        with _locked(self.name):
            base = self._base_python()
            wanted = f"{base}\n{hashlib.sha256(requirements.read_bytes()).hexdigest()}\n"
            stamp = folder / STAMP
            if stamp.is_file() and stamp.read_text() == wanted:
                return
            _say(f"making {folder} from {requirements.name} ...")
            shutil.rmtree(folder, ignore_errors=True)
            log = FOLDER / f"{self.name}.log"
            log.unlink(missing_ok=True)
            _run(log, base, "-m", "venv", str(folder))
            pip = (str(self.program("python")), "-m", "pip", "install", "-r", str(requirements))
            _run(log, *pip, *(() if self.with_requirements else ("--no-deps",)))
            stamp.write_text(wanted)

    def _base_python(self) -> str:
        """The interpreter that ours was made with, or an older one where that is too new."""
        if sys.version_info[:2] <= (3, self.newest):
            return str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
        for minor in range(self.newest, 10, -1):
            if found := shutil.which(f"python3.{minor}"):
                return found
        raise RuntimeError(
            f"the environment of {self.name} needs Python 3.11 to 3.{self.newest}, and this is "
            f"3.{sys.version_info.minor}: put python3.{self.newest} on PATH"
        )


def _run(log: Path, *argv: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    with log.open("a") as output:
        ended = subprocess.run(argv, stdout=output, stderr=output, env=environment)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {ended.returncode}: see {log}")


TRITON = Environment("triton", 12)
MLSERVER = Environment("mlserver", 12)
KSERVE = Environment("kserve", 13)
ENVOY = Environment("envoy", 13)
TORCH_HUBS = Environment("torch-hubs", 13)
PADDLECLAS = Environment("paddleclas", 13, with_requirements=False)


def serving_python() -> Path:
    """The interpreter of Paddle Serving's environment, made if it is not there; ~1 min, 0.9 GB."""
    with _locked("paddle-serving"):
        return make(FOLDER / "paddle-serving", recipe(), _say)


MAKERS: dict[str, Callable[[], object]] = {
    **{made.name: made.make for made in (TRITON, MLSERVER, KSERVE, ENVOY, TORCH_HUBS, PADDLECLAS)},
    "paddle-serving": serving_python,
}


@contextmanager
def _locked(name: str) -> Iterator[None]:
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(words: str) -> None:
    print(f"interop: {words}", file=sys.__stderr__, flush=True)


def main(names: list[str]) -> int:
    wanted = list(MAKERS) if names == ["all"] else names
    if not wanted or not set(wanted) <= set(MAKERS):
        _say(f"name some of {', '.join(MAKERS)}, or all; not {names}")
        return 2
    for name in wanted:
        try:
            MAKERS[name]()
        except (RuntimeError, EdlError) as error:
            _say(str(error))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
