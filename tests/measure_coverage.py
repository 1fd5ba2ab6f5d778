"""Measure line and branch coverage of both tiers by folder, child processes included.

    python tests/measure_coverage.py [--data FOLDER] [--only-report] [--json FILE]

The tests run slower than usual, so a tier may exceed its target here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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
    """Run both tiers, then report; returns the exit code of the tests."""
    parser = argparse.ArgumentParser(prog="tests/measure_coverage.py", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the raw data; default: a new one")
    parser.add_argument("--only-report", action="store_true", help="run no tests, report --data")
    parser.add_argument("--json", type=Path, help="write the counts of each folder to this file")
    options = parser.parse_args(argv)
    data = options.data or Path(tempfile.mkdtemp(prefix="edl-coverage-"))
    data.mkdir(parents=True, exist_ok=True)
    (data / "config").write_text(CONFIG)
    if not options.only_report:
        for earlier in data.glob(".coverage*"):
            earlier.unlink()
    code = 0 if options.only_report else _run_tiers(data)
    counts = by_folder(data)
    _print(counts)
    if options.json is not None:
        options.json.write_text(json.dumps(counts, indent=1) + "\n")
    if options.data is None:
        shutil.rmtree(data)
    return code


def by_folder(data: Path) -> dict[str, dict[str, int]]:
    """Combine the data of all processes, and sum COUNTS over the files of each top folder."""
    whole = coverage.Coverage(config_file=str(data / "config"), data_file=str(data / "combined"))
    whole.combine([str(path) for path in data.glob(".coverage.*")], keep=True)
    report = data / "report.json"
    whole.json_report(outfile=str(report), ignore_errors=True)
    folders: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
    for file, facts in json.loads(report.read_text())["files"].items():
        parts = Path(os.path.relpath(file, run.ROOT)).parts
        top = parts[0] if len(parts) > 1 else "."
        for folder in (top, "total"):
            for count in COUNTS:
                folders[folder][count] += facts["summary"][count]
    return dict(sorted(folders.items()))


def _run_tiers(data: Path) -> int:
    os.environ["COVERAGE_PROCESS_START"] = str(data / "config")
    os.environ["COVERAGE_FILE"] = str(data / ".coverage")
    return max(run.main([tier]) for tier in ("test", "test-system"))


def _print(counts: dict[str, dict[str, int]]) -> None:
    print(f"{'folder':<16}{'lines':>16}{'branches':>18}")
    for folder, sums in counts.items():
        parts = [
            f"{sums[covered]}/{sums[of]} {sums[covered] / max(1, sums[of]):6.2%}"
            for covered, of in (COUNTS[:2], COUNTS[2:])
        ]
        print(f"{folder:<16}{parts[0]:>20}{parts[1]:>20}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
