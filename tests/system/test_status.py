"""`edl status` names a teacher that a student has put out of its pool, and says why."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import Batches
from edl.tests.system.slow_network import MODEL

#: Of the teachers: the coordinator takes nobody away while the test lasts.
LONG_S = 60.0
PACE_S = 0.02 / 8


def status(url: str, *options: str) -> str:
    command = [sys.executable, "-P", "-m", "edl", "status", "--coordinator", url, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def student_of(url: str) -> dict[str, Any]:
    (service,) = json.loads(status(url, "--json"))["services"]
    (student,) = service["students"]
    return dict(student)


def test_who_says_nothing_is_named_as_ejected_until_it_is_let_in_again(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    set_pace(PACE_S)
    for name in ("a", "b", "stuck"):
        mesh.start_teacher(name, TeacherSpec("slow", MODEL, ttl_s=LONG_S))
    for name in ("a", "b", "stuck"):
        mesh.wait_ready(name)
    enough = threading.Event()
    with DistilReader(
        Batches(), service="slow", coordinator=mesh.url, teachers_min=3, teachers_max=3
    ) as reader:

        def train() -> None:
            for _ in reader:
                if enough.is_set():
                    return

        loop = threading.Thread(target=train)
        loop.start()
        try:
            wait_for(lambda: "stuck" in dict(reader.stats.served), timeout_s=30.0)
            mesh.suspend("stuck")
            line = "teacher stuck is ejected by job/0: it says nothing while others answer"
            wait_for(lambda: line in status(mesh.url), timeout_s=30.0)
            told: dict[str, Any] = {}

            def is_the_only_one() -> bool:  # another one may have been out for a moment
                told.update(student_of(mesh.url))
                return (told["ejected"], told["ejected_for"]) == (["stuck"], ["silent"])

            wait_for(is_the_only_one, timeout_s=30.0)
            assert told["hedges"] > 0
            assert told["starved_seconds"] > 0, "it does nothing but wait for labels"
            mesh.resume("stuck")
            wait_for(lambda: "ejected" not in status(mesh.url), timeout_s=30.0)
            assert student_of(mesh.url)["ejections"] >= 1
        finally:
            mesh.resume("stuck")
            enough.set()
            loop.join(30.0)
