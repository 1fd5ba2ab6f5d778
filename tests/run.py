"""Run one tier of the tests, and report how long it took.

    python tests/run.py test|test-system|nightly|gpu|interop [PYTEST ARGUMENTS...]

`test` has fast tests; they may use a shared Valkey and a reader's engine process, and one of them
starts a short mesh. `test-system` has the others, and repeats the property tests with more
examples. Tests marked `forks` run in a process that has no threads of other tests. A tier prints
whether it took longer than its target; with CI=true it fails above twice the target. Targets are
for the reference machine of `edl.benchmarks.report`: on one that is half as fast, for example
because its host is busy, they are twice as long.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edl.benchmarks.report import REFERENCE_SPEED_S, speed_program_s

ROOT = Path(__file__).resolve().parents[1]
NO_TESTS = 5  # pytest's exit code for "nothing was selected"
TIMED_OUT = 124  # exit code, as of timeout(1)
SLOWEST = 10  # number of slowest tests that a run prints
CI_FACTOR = 2.0  # a tier that takes longer than this multiple of its target fails in CI
ENVIRONMENTS = "edl.tests.interop.environments"  # module that makes environments
HANG_FACTOR = 5.0  # a tier that takes longer than this multiple of its target is killed
MEASURE_EVERY_S = 60.0
#: The order of tests decides, not the size of groups: `conftest.py` puts long tests first.
SPREAD = ("--dist", "loadgroup", "--no-loadscope-reorder")


@dataclass(frozen=True)
class Tier:
    """A selection of tests."""

    parts: tuple[str, ...]  # pytest's `-m` expressions, run one after another
    target_s: float  # target for its duration on two idle cores
    workers: int  # number of xdist workers; 1: without xdist
    paths: tuple[str, ...] = ()  # folders with the tests; empty: all
    environments: tuple[str, ...] = ()  # environments of third-party programs to make first


TIERS = {
    "test": Tier(("not system and not nightly and not interop",), 5 * 60, workers=2),
    "test-system": Tier(
        (
            "system and forks and not nightly and not interop",
            "(system or hypothesis) and not forks and not nightly and not interop",
        ),
        15 * 60,
        workers=4,
    ),
    "nightly": Tier(("not interop and forks", "not interop and not forks"), 6 * 3600, workers=4),
    "gpu": Tier(("not nightly",), 10 * 60, workers=1, paths=("tests/gpu",)),
    "interop": Tier(
        ("not nightly",), 30 * 60, workers=4, paths=("tests/interop",), environments=("all",)
    ),
}


class SpeedMeter:
    """Measures in a thread how fast this machine is, as long as the context lasts."""

    def __init__(self) -> None:
        self._measured_s = [speed_program_s()]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def slowness(self) -> float:
        """How many times slower than the reference machine this one was; 1 if it was faster."""
        return max(1.0, statistics.median(self._measured_s) / REFERENCE_SPEED_S)

    def _measure(self) -> None:
        while not self._end.wait(MEASURE_EVERY_S):
            self._measured_s.append(speed_program_s())


def main(argv: list[str]) -> int:
    """Run the tier named first in `argv`; return the exit code."""
    if not argv or argv[0] not in TIERS:
        print(f"usage: python tests/run.py {'|'.join(TIERS)} [PYTEST ARGUMENTS...]")
        return 2
    name, *rest = argv
    tier = TIERS[name]
    began = time.monotonic()
    if tier.environments and (code := _python(ENVIRONMENTS, *tier.environments)):
        return code
    codes = []
    with SpeedMeter() as meter:
        for part in tier.parts:
            alone = tier.workers == 1 or (" forks" in part and "not forks" not in part)
            spread = [] if alone else ["-n", str(tier.workers), *SPREAD]
            left_s = began + HANG_FACTOR * tier.target_s - time.monotonic()
            codes.append(_pytest([part, *spread, *tier.paths, *rest], name, left_s))
    took_s = time.monotonic() - began
    return _report_time(name, tier.target_s, took_s, meter.slowness) or _exit_code(codes)


def _report_time(name: str, target_s: float, took_s: float, slowness: float) -> int:
    """Print the time of a tier; return 1 if it is too long for CI."""
    print(f"tier {name}: {took_s:.0f} s (target {target_s:.0f} s)", flush=True)
    if slowness > 1.0:
        print(f"this machine was {slowness:.1f} times slower than the reference", flush=True)
    target_s *= slowness
    limit_s = CI_FACTOR * target_s
    if took_s <= target_s:
        return 0
    print(f"tier {name} is slower than its target", file=sys.stderr)
    if os.environ.get("CI") != "true" or took_s <= limit_s:
        return 0
    print(f"tier {name} took longer than CI allows: {limit_s:.0f} s", file=sys.stderr)
    return 1


def _exit_code(codes: list[int]) -> int:
    """Combine the exit codes of all parts; some parts may be without tests, but not all."""
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(codes)


def _pytest(arguments: list[str], tier: str, limit_s: float) -> int:
    words = (f"--durations={SLOWEST}", "-m", *arguments)
    return _python("pytest", *words, limit_s=limit_s, EDL_TEST_TIER=tier)


def _python(module: str, *arguments: str, limit_s: float | None = None, **variables: str) -> int:
    command = [sys.executable, "-P", "-m", module, *arguments]
    environment = {**os.environ, **variables}
    # Without bytecode files, each program that a test starts would compile all modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        # The limit is here, because pytest cannot interrupt all hanging tests.
        return subprocess.run(
            command, cwd=ROOT, env=environment, check=False, timeout=limit_s
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{module} {' '.join(arguments)}: ended after {limit_s:.0f} s", file=sys.stderr)
        return TIMED_OUT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
