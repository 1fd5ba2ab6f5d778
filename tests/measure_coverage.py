"""Measure line and branch coverage of both tiers by folder, child processes included.

    python tests/measure_coverage.py [--data FOLDER]

The tests run slower than usual, so a tier may exceed its target here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import coverage

from edl.tests import run

#: Child processes run in other folders, so every path is absolute.
CONFIG = f"""[run]
branch = true
parallel = true
source = {run.ROOT}
omit =
    */tests/*
    */.venv*/*
    */.interop/*
    */docs/*
    */build/*
    *_pb2*
concurrency = thread,multiprocessing
patch = subprocess,_exit,execv
sigterm = true
disable_warnings = no-data-collected,module-not-measured,couldnt-parse
"""
COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def main(argv: list[str]) -> int:
    """Run both tiers, then report; return the exit code of the tests."""
    parser = argparse.ArgumentParser(prog="tests/measure_coverage.py", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that keeps the data of all processes")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="edl-coverage-") as temporary:
        data = options.data or Path(temporary)
        data.mkdir(parents=True, exist_ok=True)
        (data / "config").write_text(CONFIG)
        os.environ["COVERAGE_PROCESS_START"] = str(data / "config")
        os.environ["COVERAGE_FILE"] = str(data / ".coverage")
        code = max(run.main([tier]) for tier in ("test", "test-system"))
        report(data)
    return code


def report(data: Path) -> None:
    """Combine the data of all processes, and print sums for each top folder."""
    whole = coverage.Coverage(config_file=str(data / "config"), data_file=str(data / "combined"))
    whole.combine([str(path) for path in data.glob(".coverage.*")], keep=True)
    whole.json_report(outfile=str(data / "report.json"), ignore_errors=True)
    folders: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
    for file, facts in json.loads((data / "report.json").read_text())["files"].items():
        parts = Path(os.path.relpath(file, run.ROOT)).parts
        for folder in (parts[0] if len(parts) > 1 else ".", "total"):
            for count in COUNTS:
                folders[folder][count] += facts["summary"][count]
    print(f"{'folder':<16}{'lines':>16}{'branches':>18}")
    for folder, sums in sorted(folders.items()):
        lines, branches = (
            f"{sums[covered]}/{sums[of]} {sums[covered] / max(1, sums[of]):6.2%}"
            for covered, of in (COUNTS[:2], COUNTS[2:])
        )
        print(f"{folder:<16}{lines:>20}{branches:>20}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
