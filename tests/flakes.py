"""Run a tier repeatedly under bad conditions, to find tests that fail only sometimes.

    python tests/flakes.py [--runs N] [--tier TIER] [--busy N] [--stall] [--pause]
                           [--ignore-sigint] [--table FILE] [-- PYTEST ARGUMENTS...]

`--busy` runs that many busy loops beside the tests. `--stall` repeatedly stops a random process of
the run for 0.3-3 s (SIGSTOP, SIGCONT). `--pause` pauses threads at random calls of the product, one
call in 1,000 for up to 0.05 s, in all processes; in those of the tests not the main thread. A run
takes about six times as long then. Each run has its own seed and prints a line with its result.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil

from edl.tests import run

#: sitecustomize.py, which each Python process with its folder on the path imports at its start.
PAUSING = """
import os, random, sys, threading, time
chance = random.Random(os.getpid() ^ int(os.environ.get("EDL_TEST_SEED", 0)))
def called(frame, event, argument):
    file = frame.f_code.co_filename
    if "/edl/" in file and "/edl/tests/" not in file and chance.random() < 0.001:
        time.sleep(chance.uniform(0.0, 0.05))
threading.settrace(called)
if not any(word in " ".join(sys.orig_argv) for word in ("pytest", "stdin.readline")):
    sys.settrace(called)
"""
STALL_S = (0.3, 3.0)
BETWEEN_STALLS_S = (0.5, 3.0)
HEADER = "| tier | conditions | seed | seconds | result |\n|---|---|---|---|---|\n"


def main(argv: list[str]) -> int:
    """Run the tier as `argv` says; return 1 if any run failed."""
    parser = argparse.ArgumentParser(prog="tests/flakes.py", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--tier", choices=run.TIERS, default="test")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="busy loops")
    parser.add_argument("--stall", action="store_true", help="stop random processes for a while")
    parser.add_argument("--pause", action="store_true", help="pause threads at random calls")
    parser.add_argument("--ignore-sigint", action="store_true", help="start with SIGINT ignored")
    parser.add_argument("--table", type=Path, help="append a line for each run to this file")
    parser.add_argument("arguments", nargs="*", help="of pytest, behind --")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failures = 0
    for number in range(options.runs):
        line, passed = one_run(options)
        failures += not passed
        print(f"run {number + 1} of {options.runs}: {line}", flush=True)
        if options.table is not None:
            with options.table.open("a") as table:
                table.write((HEADER if table.tell() == 0 else "") + line + "\n")
    print(f"{options.runs - failures} of {options.runs} runs passed")
    return int(failures > 0)


def one_run(options: argparse.Namespace) -> tuple[str, bool]:
    """Run the tier once; return its line of the table, and whether it passed."""
    conditions = [f"{options.busy} busy loops"] if options.busy else []
    conditions += ["stalls"] if options.stall else []
    conditions += ["pauses"] if options.pause else []
    conditions += ["SIGINT ignored"] if options.ignore_sigint else []
    seed = random.SystemRandom().randrange(2**32)
    command = [sys.executable, "-P", str(Path(run.__file__)), options.tier, *options.arguments]
    log = Path(tempfile.gettempdir()) / f"edl-flakes-{options.tier}-{seed}.log"
    began = time.monotonic()
    environment = {**os.environ, "EDL_TEST_SEED": str(seed)}
    with contextlib.ExitStack() as stack, log.open("wb") as output:
        stack.enter_context(_busy_loops(options.busy))
        if options.pause:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-flakes-"))
            Path(folder, "sitecustomize.py").write_text(PAUSING)
            before = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join([folder, *([before] if before else [])])
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
            if options.ignore_sigint
            else None,
        )
        stack.callback(_end, process)
        if options.stall:
            stack.enter_context(_stalls(process.pid, random.Random(seed)))
        code = process.wait()
    took_s = time.monotonic() - began
    if code == 0:
        log.unlink()
    result = "passed" if code == 0 else f"failed ({_summary(log)})"
    under = ", ".join(conditions) or "quiet"
    return f"| {options.tier} | {under} | {seed} | {took_s:.0f} | {result} |", code == 0


def _summary(log: Path) -> str:
    """Return the names of failed tests, or of the log file; print the end of the log."""
    lines = log.read_text(errors="replace").splitlines()
    failed = [
        line.partition(" ")[2].partition(" - ")[0]
        for line in lines
        if line.startswith(("FAILED ", "ERROR "))
    ]
    print("\n".join(lines[-200:]), file=sys.stderr)
    return ", ".join(sorted(set(failed))) or f"see {log.name}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a run that is still going when this program ends, and all its descendants."""
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            with contextlib.suppress(psutil.Error):  # the process has ended
                child.kill()


@contextlib.contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def _stalls(root: int, rng: random.Random) -> Iterator[None]:
    """Stop random descendants of the process `root`, one at a time, while the body runs."""
    done = threading.Event()

    def inject() -> None:
        while not done.wait(rng.uniform(*BETWEEN_STALLS_S)):
            _stall_one(root, rng, done)

    thread = threading.Thread(target=inject)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _stall_one(root: int, rng: random.Random, done: threading.Event) -> None:
    with contextlib.suppress(psutil.Error):  # the process has ended
        victims = [
            process
            for process in psutil.Process(root).children(recursive=True)
            if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        ]
        if victims:
            victim = rng.choice(victims)
            victim.suspend()
            done.wait(rng.uniform(*STALL_S))
            victim.resume()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
