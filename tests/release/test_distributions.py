"""A wheel and an sdist hold the package and nothing else, and work where nothing else is.

The steps of the image build the wheel and install it: once, for all that is looked at here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import edl
from edl.tests.deploy.container_file import Build, ContainerFile
from edl.tests.deploy.test_containers import (
    FILE,
    QUICK,
    ROOT,
    files,
    machine,
    run,
    works_as_coordinator,
)
from edl.tests.scripted_teacher import ScriptedTeacher

#: What a checkout has besides what is in the repository.
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".interop", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info",
    "__pycache__", "site",
)  # fmt: skip
#: Files that are no Python and that the package cannot do without, one of each kind.
NEEDED = (
    "edl/py.typed",
    "edl/proto/coordinator.proto",
    "edl/proto/inference_pb2.pyi",
    "edl/coordinator/store/lua/beat.lua",
    "edl/coordinator/web/static/page.js",
)
#: A reader of a numpy source, in an environment that has nothing but what the wheel asks for.
READER = """
import sys
import numpy as np
from edl.distill_reader import DistilReader

x = np.arange(40, dtype=np.float32).reshape(10, 2, 2)
with DistilReader(list(zip(x)), service="s", teachers=sys.argv[1:], feeds=[0]) as reader:
    for (given, soft), sent in zip(reader, x, strict=True):
        expected = np.outer(sent.sum(axis=1), np.arange(1, 11))
        assert np.array_equal(given, sent) and np.allclose(soft, expected), (given, soft)
print("read", reader.stats.delivered)
"""


def built(folder: Path, *options: str) -> Path:
    """The folder of what `python -m build` makes of this checkout."""
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=LEFT_OUT)
    # In this environment, which has the build backend: isolation would fetch it once more.
    command = (sys.executable, "-P", "-m", "build", "--no-isolation", *options)
    where = ("--outdir", folder / "dist", folder / "source")
    done = subprocess.run((*command, *where), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "dist"


def test_what_is_released_is_the_package_alone_and_works_in_its_image(tmp_path: Path) -> None:
    """Without extras; with the build backend of this environment, not one that is fetched."""
    image = Build(
        ContainerFile.read(FILE), ROOT, tmp_path / "image", {"EXTRAS": ""}, machine() | QUICK
    )
    image.folder.mkdir()
    root = image.stage("cpu")
    assert {"apt-get", "libgomp1", "tini", "useradd", "65532"} <= set(image.noted)
    assert (root / "var/lib/edl").stat().st_mode & 0o7777 == 0o1777
    (wheel,) = image.folder.glob("stages/wheel/wheels/*.whl")
    packed = holds_the_package_alone(wheel)
    (sdist,) = built(tmp_path / "release", "--sdist").iterdir()
    holds_what_the_wheel_is_made_of(sdist, packed)
    before = files(root)
    assert run(image, "--version").strip() == f"edl-dist {edl.__version__}"
    helps_examines_and_reads(image)
    works_as_coordinator(image)
    assert files(root) == before, "something was written where a read-only root lets nothing be"


def holds_the_package_alone(path: Path) -> list[str]:
    """What the package consists of, in the one version that there is; the names of its files."""
    info = f"edl_dist-{edl.__version__}.dist-info/"
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        assert f"\nVersion: {edl.__version__}\n" in wheel.read(f"{info}METADATA").decode()
    latest = re.search(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest is not None
    assert latest[1] == edl.__version__
    assert [name for name in names if not name.startswith(("edl/", info))] == []
    assert [name for name in names if "/tests/" in name or "/docs/" in name] == []
    assert [name for name in NEEDED if name not in names] == []
    listing = ("git", "ls-files", "*.py", "*.lua", "*.proto", "*.pyi")
    tracked = subprocess.check_output(listing, cwd=ROOT, text=True).split()
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    packaged = [n for n in tracked if "/" not in n or n.split("/")[0] in folders - {"deploy"}]
    assert [name for name in packaged if f"edl/{name}" not in names] == []
    return [name for name in names if name.startswith("edl/")]


def holds_what_the_wheel_is_made_of(path: Path, packed: list[str]) -> None:
    top = f"edl_dist-{edl.__version__}/"
    with tarfile.open(path) as sdist:
        names = [name.removeprefix(top) for name in sdist.getnames() if name != top.rstrip("/")]
    beside = ("src", "PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "setup.cfg")
    odd = [name for name in names if not name.startswith("src/") and name not in beside]
    assert [name for name in odd if name != "MANIFEST.in"] == []
    assert [n for n in names if n.startswith("src/") and "/tests/" in n] == []
    assert [name for name in packed if f"src/{name}" not in names] == []


def helps_examines_and_reads(image: Build) -> None:
    """The words of help that the image begins with, `edl doctor`, a reader of numpy's arrays."""
    help_text = run(image, *image.file.last("cpu", "CMD").argv)
    assert "coordinator" in help_text
    assert "teacher" in help_text
    nobody = run(image, "doctor", "--redis", "redis://127.0.0.1:1", code=1)
    assert "redis://127.0.0.1:1" in nobody
    teacher = ScriptedTeacher()
    try:
        assert run(image, "-c", READER, teacher.address, program="python") == "read 10\n"
    finally:
        teacher.stop()
    # What a reader needs is no web server, no framework, no dashboard.
    absent = ("paddle", "torch", "starlette", "kopf", "kubernetes")
    found = f"from importlib.util import find_spec; print(*filter(find_spec, {absent}))"
    assert run(image, "-c", found, program="python") == "\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a release has it: from an sdist."""
    (found,) = built(tmp_path_factory.mktemp("release")).glob("*.whl")
    return found


@pytest.mark.nightly  # minutes: pip fetches large wheels to look into them
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_extra_can_be_installed(wheel: Path, version: str, tmp_path: Path) -> None:
    """Pip finds a set of wheels for each extra on each Python; nothing is installed."""
    for_it = ("--python-version", version, "--only-binary", ":all:", "--target", str(tmp_path))
    options = ("--quiet", "--dry-run", "--ignore-installed", *for_it)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = [name for name in opened.namelist() if name.endswith("/METADATA")]
        extras = re.findall(r"^Provides-Extra: (.+)$", opened.read(metadata).decode(), re.MULTILINE)
    assert "paddle" in extras
    # Not gpu, whose wheels are on an index of their own; dev and mutants are for a checkout, and
    # what mutants needs is no wheel in part.
    for extra in sorted(set(extras) - {"gpu", "dev", "mutants"}):
        pip = (sys.executable, "-P", "-m", "pip", "install", *options, f"{wheel}[{extra}]")
        done = subprocess.run(pip, capture_output=True, text=True, env=clean, timeout=900)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
