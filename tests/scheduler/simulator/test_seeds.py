"""A simulation does not depend on the order of names in a set, which differs between processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

PROGRAM = """
import random, sys
from edl.scheduler.simulator import Fault, Scenario, StudentGroup, TeacherGroup, simulate
faults = tuple(Fault(1.0 + n, "t", kind, 2) for n, kind in enumerate(("crash", "hang", "drain")))
teachers = TeacherGroup("t", 0.05, count=8, jitter=0.5, back_after_s=1.0, start_s=1.0)
students = StudentGroup("s", 0.02, batch=4, count=3, jitter=0.3)
scenario = Scenario((students,), (teachers,), batches=100, faults=faults)
print(simulate(scenario, random.Random, sys.argv[1]).trace_hash)
"""


@pytest.mark.parametrize("plane", ["exact", "fluid"])
def test_another_process_runs_the_same(plane: str) -> None:
    hashes = {
        subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, plane],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (trace_hash,) = hashes
    assert len(trace_hash.strip()) == 16
