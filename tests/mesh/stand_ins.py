"""A report that nothing was trained for, to draw and print."""

from __future__ import annotations

from pathlib import Path

from edl.distill_reader import ReaderStats
from edl.mesh.demo.churn import Event
from edl.mesh.demo.cores import Cores
from edl.mesh.demo.edl_dist import EdlDistResult, Moment
from edl.mesh.demo.modes import Mode, ModeResult
from edl.mesh.demo.report import DemoReport
from edl.mesh.demo.settings import DemoSettings
from edl.mesh.demo.stream_check import StreamFacts
from edl.mesh.demo.teacher_model import TeacherModel


def stream(sha256: str = "aa", duplicates: int = 0, out_of_order: int = 0) -> StreamFacts:
    return StreamFacts(40, 4000, duplicates, out_of_order, sha256)


def report(
    edl_stream: StreamFacts | None = None,
    *,
    starved_s: float = 0.0,
    seeds: int = 2,
    cores: Cores | None = None,
) -> DemoReport:
    edl = ModeResult(
        "edl_dist",
        (0.94, 0.95)[:seeds],
        10.0,
        8.0,
        edl_stream or stream(),
        teacher_core_s=4.0,
        other_core_s=2.0,
        starved_s=starved_s,
        resends=2,
    )
    results: dict[Mode, ModeResult] = {
        "n_training": ModeResult("n_training", (0.90, 0.92)[:seeds], 8.0, 8.0, stream("00")),
        "online": ModeResult("online", (0.94, 0.95)[:seeds], 20.0, 8.0, stream(), 12.0),
        "edl_dist": edl,
    }
    timeline = tuple(Moment(float(at), 1024 * at % 4096, 3 - at % 2) for at in range(10))
    events = (
        Event("kill", "teacher-2", 13, 3.0),
        Event("resent", "teacher-2", 14, 3.1),
        Event("start", "teacher-4", 26, 6.0),
        Event("join", "teacher-4", 33, 8.0),
    )
    reader = ReaderStats(yielded=40, delivered=40, upper_bytes=4096, lower_bytes=1024, resends=2)
    return DemoReport(
        DemoSettings(seeds=seeds, steps=20),
        cores or Cores(frozenset({0}), frozenset({1})),
        TeacherModel(Path("teacher"), 0.985, cached=True),
        results,
        EdlDistResult(edl, reader, timeline, events, killed=1, added=1),
        seconds=60.0,
    )
