"""When a run that has no end in time is given up, as nothing happens in it any more."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from .cast import Student, Teacher
from .scenario import Scenario

#: Virtual seconds without a trained batch that any run is given.
LEAST_S: Final = 600.0
#: And so many times as long as a batch takes.
TIMES: Final = 20.0


def patience_s(
    scenario: Scenario, students: Iterable[Student], teachers: Iterable[Teacher], now: float
) -> float:
    """Seconds without a trained batch after which none is to be expected any more.

    Args:
        scenario: that is run.
        students: of it; those that are there count.
        teachers: of it; likewise.
        now: virtual seconds.
    """
    there = [student for student in students if student.is_there]
    batch = max((student.group.batch for student in there), default=0)
    step_s = max((one.step_s(now, one.group.teachers_max) for one in there), default=0.0)
    source_s = max((student.group.source_s for student in there), default=0.0)
    device_s = max((one.device_s(now, batch) for one in teachers if one.works), default=0.0)
    own = (*(one.link for one in scenario.students), *(one.link for one in scenario.teachers))
    links = [scenario.link, *(link for link in own if link is not None)]
    slowest = min(link.bandwidth_bytes_per_s or inf for link in links)
    nbytes = max((student.group.batch_bytes for student in there), default=0)
    sent_s = nbytes / slowest + 2 * max(link.latency_s for link in links)
    return max(LEAST_S, TIMES * (step_s + source_s + device_s + sent_s))
