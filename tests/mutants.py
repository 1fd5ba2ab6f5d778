"""Check that tests notice changes: seeded mutants of the ledger and of flow control.

    python tests/mutants.py [--count N] [--seed N] [--root CHECKOUT]

cosmic-ray changes one operator, constant or branch at a time in a copy of the checkout. A mutant is
killed if `TESTS` fail with it. Equal checkouts and seeds give equal mutants, so two versions of the
tests can be compared (`--root`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from edl.tests.run import ROOT

SUBJECTS = ("scheduler/ledger", "scheduler/flow.py")
#: Tests of the subjects, fast ones first: a run ends with the first failure.
TESTS = (
    "tests/scheduler/ledger",
    "tests/scheduler/test_flow*.py",
    "tests/properties/test_ledger_machine.py",
    "tests/properties/test_flow_machine.py",
    "tests/properties/test_mesh_machine.py",
    "tests/properties/test_simulated_flow.py",
)
TIMEOUT_S = 240.0
SHARDS = 2  # copies that run side by side
CONFIG = """[cosmic-ray]
module-path = {modules}
timeout = {timeout}
excluded-modules = []
test-command = "{command}"
[cosmic-ray.distributor]
name = "local"
"""


def main(argv: list[str]) -> int:
    """Run the mutants and print the share that the tests kill."""
    parser = argparse.ArgumentParser(prog="tests/mutants.py", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to test")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="edl-mutants-") as folder:
        copies = [Path(folder) / str(number) for number in range(SHARDS)]
        with ThreadPoolExecutor(SHARDS) as pool:
            runs = [
                pool.submit(_shard, copy, number, options) for number, copy in enumerate(copies)
            ]
            results = [result for run in runs for result in run.result()]
    for mutant, is_killed in results:
        if not is_killed:
            print(f"survived: {mutant}")
    killed = sum(is_killed for _, is_killed in results)
    print(f"{killed} of {len(results)} mutants killed ({killed / len(results):.1%})")
    return 0


def _shard(copy: Path, number: int, options: argparse.Namespace) -> list[tuple[str, bool]]:
    """Run every SHARDS-th sampled mutant in a copy; return their names and whether killed."""
    from cosmic_ray.work_db import use_db

    subprocess.run(["git", "clone", "-q", str(options.root), str(copy)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "EDL_TEST_SEED": "1"}
    tests = [str(path.relative_to(copy)) for glob in TESTS for path in sorted(copy.glob(glob))]
    command = f"{sys.executable} -P -m pytest -x -q -p no:cacheprovider {' '.join(tests)}"
    config, session = copy / "mutants.toml", copy / "mutants.sqlite"
    config.write_text(
        CONFIG.format(modules=json.dumps(SUBJECTS), timeout=TIMEOUT_S, command=command)
    )

    def cosmic_ray(*arguments: str) -> None:
        program = str(Path(sys.executable).with_name("cosmic-ray"))
        subprocess.run([program, *arguments], cwd=copy, env=environment, check=True)

    if subprocess.run(command.split(), cwd=copy, env=environment, check=False).returncode:
        raise SystemExit("the tests fail without any mutant")
    cosmic_ray("init", config.name, session.name)
    with use_db(session) as database:
        items = {_name(item): item for item in database.work_items if _changes_behaviour(item)}
        names = random.Random(options.seed).sample(sorted(items), options.count)[number::SHARDS]
        database.clear()
        database.add_work_items([items[name] for name in names])
    cosmic_ray("exec", config.name, session.name)
    with use_db(session) as database:
        job_names = {items[name].job_id: name for name in names}
        return [(job_names[job], result.is_killed) for job, result in database.results]


def _name(item: Any) -> str:
    (mutation,) = item.mutations
    line, column = mutation.start_pos
    operator = mutation.operator_name.removeprefix("core/")
    return f"{mutation.module_path}:{line}:{column} {operator} {mutation.occurrence}"


def _changes_behaviour(item: Any) -> bool:
    """Return False for mutants of `|`, which joins types in annotations."""
    return "ReplaceBinaryOperator_BitOr" not in item.mutations[0].operator_name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
