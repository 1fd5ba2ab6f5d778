"""Small programs that stand for the parts of a mesh."""

from __future__ import annotations

import sys
from textwrap import dedent

from edl.mesh.local import COORDINATOR_READY, TEACHER_READY
from edl.mesh.up.members import Member
from edl.scheduler.mesh_startup import Part

SERVES = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(sys.argv[1], flush=True)
    time.sleep(600)
"""
COORDINATOR = "coordinator ready: redis://r:1 manager h:1"
TEACHER = "teacher ready: t s on h:2"


def member(part: Part, code: str, *args: str, ready: str = "") -> Member:
    words = (sys.executable, "-P", "-u", "-c", dedent(code), *args)
    return Member(part, part.service or part.name, words, ours=False, ready=ready)


def coordinator() -> Member:
    part = Part("coordinator", "coordinator")
    return member(part, SERVES, COORDINATOR, ready=COORDINATOR_READY)


def teacher(code: str = SERVES) -> Member:
    return member(Part("t", "teacher", "s"), code, TEACHER, ready=TEACHER_READY)


def student(code: str, *args: str, retries: int = 1) -> Member:
    return member(Part("u", "student", retries=retries), code, *args)
