"""Pin the packages that machines of a mesh install: `make constraints`.

    python deploy/constraints/update.py

Writes `constraints.txt`, with a version for each package that edl-dist with `EXTRAS` needs, and
`licenses.md`, with their licences. A dry run of pip resolves the versions, so nothing is installed.
The files name no package index. Licences are read from the installed packages.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent
ROOT: Final = FOLDER.parents[1]
CONSTRAINTS: Final = FOLDER / "constraints.txt"
LICENSES: Final = FOLDER / "licenses.md"
#: Extras that machines of a mesh install. torch and GPU builds are left out, because their versions
#: depend on the driver.
EXTRAS: Final = ("paddle", "onnx", "embedded", "events", "fs", "store", "http", "dashboard", "k8s")
_HEAD: Final = """\
# Versions for the machines of a mesh, written by `make constraints`. A test compares them with
# pyproject.toml.
# pip install --constraint constraints.txt 'edl-dist[...]'
"""
_TITLE: Final = """\
# Licences of the pinned packages

Written by `make constraints`; the packages are those of [constraints.txt](constraints.txt).

| package | version | licence |
|---|---|---|
"""


def main() -> int:
    """Write both files."""
    packages = sorted(resolved(ROOT, EXTRAS), key=lambda package: package["name"])
    pins = [f"{package['name']}=={package['version']}\n" for package in packages]
    CONSTRAINTS.write_text(_HEAD + "".join(pins))
    rows = [
        f"| {package['name']} | {package['version']} | {licence(package['name'])} |\n"
        for package in packages
    ]
    LICENSES.write_text(_TITLE + "".join(rows))
    print(f"{len(packages)} packages in {CONSTRAINTS.name} and {LICENSES.name}")
    return 0


def resolved(project: Path, extras: Iterable[str]) -> list[dict[str, Any]]:
    """Return core metadata of all packages that a project with these extras needs, except edl-dist.

    Raises:
        subprocess.CalledProcessError: pip cannot resolve the packages.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        requirement = f"{project}[{','.join(extras)}]"
        options = ("--quiet", "--dry-run", "--ignore-installed", "--report", str(report))
        subprocess.run([sys.executable, "-m", "pip", "install", *options, requirement], check=True)
        packages = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    return [
        {**package, "name": package["name"].lower().replace("_", "-")}
        for package in packages
        if package["name"] != "edl-dist"
    ]


def licence(name: str) -> str:
    """Return the licence of an installed package.

    It is the licence expression, else the classifiers, else the start of the licence text.

    Raises:
        PackageNotFoundError: the package is not installed; run `make install`.
    """
    metadata = importlib.metadata.metadata(name)
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classified = [
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get_all("Classifier") or ()
        if classifier.startswith("License :: ") and not classifier.endswith("OSI Approved")
    ]
    text = metadata["License"].strip() if "License" in metadata else ""
    return ", ".join(classified) or (text.splitlines()[0][:60] if text else "not stated")


if __name__ == "__main__":
    sys.exit(main())
