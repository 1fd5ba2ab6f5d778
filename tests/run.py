"""Runs one tier of the tests, says how long it took, and fails when that was too long.

    python tests/run.py test|nightly|interop [PYTEST ARGUMENTS...]

Tests marked `serial` measure time: they run first, one after another, alone. Those marked `forks`
follow, in a process that has no threads of other tests. All others are spread over four processes,
as they wait for others most of their time. A test that needs an
environment of third-party programs makes it, unless it is there; in a tier in which nearly all do,
those are made first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 4  # on two cores
NO_TESTS = 5  # pytest's exit code for "nothing was selected"
PATIENCE = 1.5  # times the limit of a tier: what runs for longer hangs, and is ended
OVERRUN = 124  # its exit code then, as that of timeout(1)


@dataclass(frozen=True)
class Tier:
    """A selection of tests.

    Attributes:
        marks: pytest's `-m` expression.
        limit_s: seconds that the tier may take, on two cores.
        profile: the hypothesis profile of tests/conftest.py.
        paths: folders to which it is confined; none: all tests.
        environments: of third-party programs that are made first, by their names in
            `tests/interop/environments.py`.
    """

    marks: str
    limit_s: float
    profile: str = "test"
    paths: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()


TIERS = {
    "test": Tier("not nightly and not interop", 21.5 * 60),
    "nightly": Tier("not interop", 6 * 3600, "nightly"),
    "interop": Tier("not nightly", 30 * 60, paths=("tests/interop",), environments=("all",)),
}


def main(argv: list[str]) -> int:
    """Run the tier named first in `argv`; returns the exit code."""
    if not argv or argv[0] not in TIERS:
        print(f"usage: python tests/run.py {'|'.join(TIERS)} [PYTEST ARGUMENTS...]")
        return 2
    name, *rest = argv
    tier = TIERS[name]
    began = time.monotonic()
    spread = ["-n", str(WORKERS), "--dist", "worksteal"]
    if tier.environments and (code := _make(tier.environments)):
        return code
    codes = []
    for marks, how in (("serial", []), ("forks", []), ("not serial and not forks", spread)):
        left_s = began + PATIENCE * tier.limit_s - time.monotonic()
        arguments = [f"({tier.marks}) and {marks}", *how, *tier.paths, *rest]
        codes.append(_pytest(arguments, tier, left_s))
    took_s = time.monotonic() - began
    print(f"tier {name}: {took_s:.0f} s of {tier.limit_s:.0f} s", flush=True)
    if took_s > tier.limit_s:
        print(f"tier {name} took longer than its limit", file=sys.stderr)
        return 1
    return _worst(codes)


def _worst(codes: list[int]) -> int:
    """One exit code for all parts; a part may be empty, but not all."""
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    if failed:
        return failed[0]
    return NO_TESTS if all(code == NO_TESTS for code in codes) else 0


def _make(environments: tuple[str, ...]) -> int:
    return _python("edl.tests.interop.environments", *environments)


def _pytest(arguments: list[str], tier: Tier, limit_s: float) -> int:
    return _python("pytest", "-m", *arguments, limit_s=limit_s, EDL_TEST_PROFILE=tier.profile)


def _python(module: str, *arguments: str, limit_s: float | None = None, **variables: str) -> int:
    command = [sys.executable, "-P", "-m", module, *arguments]
    environment = {**os.environ, **variables}
    # Whoever starts a thousand programs does not want each of them to compile all of its modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        # A test that hangs where pytest cannot interrupt it must not hang the caller, too.
        return subprocess.run(
            command, cwd=ROOT, env=environment, check=False, timeout=limit_s
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{module} {' '.join(arguments)}: ended, as it hangs", file=sys.stderr)
        return OVERRUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
