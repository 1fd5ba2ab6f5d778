"""A teacher that stops or is slow holds nobody up, and is named to operators."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edl.benchmarks.pacing import SERVICE, Repeated, batch
from edl.benchmarks.pacing.student import PacedStudent
from edl.benchmarks.pacing.teachers import CHEAP, paced
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.supervise import Process, python_command, start
from edl.tests.distill_reader.test_reader import Batches as Numbered
from edl.tests.distill_reader.test_reader import check_epoch
from edl.tests.ground.programs import wait_for

BATCH_S = 0.05
#: An operator has to see the name of a straggler within so long.
NAMED_S = 30.0
SLOWER = 10
#: Batches of the slow teacher until it is measured, and of which that is done.
SETTLED, MEASURED = 6, 16


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def paced_teacher(stack: ExitStack) -> tuple[Process, str]:
    command = python_command("teacher", "edl.tests.scripted_teacher", "--seconds", str(BATCH_S))
    process = start(command)
    stack.callback(process.stop, 0.0)
    return process, process.expect(r"^ready on (\S+)$", 20.0)[1]


@pytest.mark.serial
def test_a_stopped_teacher_is_asked_past_ejected_and_let_in_again(stack: ExitStack) -> None:
    """Its connection holds, and there is no coordinator that could see its lease end."""
    teachers = [paced_teacher(stack) for _ in range(3)]
    addresses = [address for _, address in teachers]
    source = Numbered(220)
    batches, longest_s = [], 0.0
    with DistilReader(
        source, service="s", teachers=addresses, upper_bytes=40 * 400, lower_bytes=39 * 400
    ) as reader:
        iterator = iter(reader)
        batches += [next(iterator) for _ in range(60)]
        wait_for(lambda: reader.stats.state == "blocked")
        teachers[0][0].send_signal(signal.SIGSTOP)
        for _ in range(100):
            asked_at = time.monotonic()
            batches.append(next(iterator))
            longest_s = max(longest_s, time.monotonic() - asked_at)
            time.sleep(BATCH_S)  # a training step
        assert reader.stats.hedges > 0
        assert reader.stats.ejected == (addresses[0],)
        teachers[0][0].send_signal(signal.SIGCONT)
        wait_for(lambda: reader.stats.ejected == (), timeout_s=20.0)
        batches += iterator
        assert reader.stats.ejections >= 1
    check_epoch(source, batches)
    assert longest_s < 1.5


def told_by_status(url: str) -> str:
    """What `edl status` prints."""
    command = [sys.executable, "-P", "-m", "edl", "status", "--coordinator", url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.serial
def test_one_of_four_that_is_ten_times_slower_adds_its_part_and_is_named(tmp_path: Path) -> None:
    """Batches come in order, so in bursts with each of the slow one's: it is counted by those."""
    per_burst = 3 * SLOWER + 1
    student = PacedStudent(0.0)
    source = Repeated(batch(), count=(SETTLED + MEASURED) * per_burst + 1)
    with LocalMesh(log_dir=tmp_path) as mesh:
        for name, batch_s in {
            "a": BATCH_S,
            "b": BATCH_S,
            "c": BATCH_S,
            "d": SLOWER * BATCH_S,
        }.items():
            mesh.start_teacher(name, TeacherSpec(SERVICE, CHEAP, options=paced(batch_s)))
        for name in mesh.teachers:
            mesh.wait_ready(name)
        began_s = time.monotonic()
        with DistilReader(
            source, service=SERVICE, coordinator=mesh.url, teachers_min=4, teachers_max=4
        ) as reader:
            student.train(reader)
            line = "teacher d is a straggler to job/0"
            wait_for(lambda: line in told_by_status(mesh.url), began_s + NAMED_S - time.monotonic())
            assert reader.stats.stragglers == ("d",)
    bursts_s = student.took_s[SETTLED * per_burst :: per_burst]
    nominal_s = MEASURED * SLOWER * BATCH_S
    assert nominal_s / (bursts_s[-1] - bursts_s[0]) >= 0.95
