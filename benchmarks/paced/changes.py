"""Effects on a student when a teacher is suspended, and when teachers that it lacked join."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from ...distill_reader import DistilReader
from ...mesh.local import LocalMesh, TeacherSpec
from ...runtime.errors import ProcessFailed
from ..report import MIN_ROUNDS, Estimate
from . import FOR_EVER, ROWS, SERVICE, Repeated, batch
from .streams import PacedStudent, ThroughputShare, windows_s
from .teachers import CHEAP, paced, start_teachers

#: Longest time in seconds until the buffer is full: first from the start of the training, then
#: from the end of each suspension.
_FULL_WITHIN_S: Final = 90.0
#: Longest time in seconds until a student has the teachers that it needs.
_ENOUGH_WITHIN_S: Final = 90.0
#: Seconds from the time when the student has these teachers until the measurement begins.
_SETTLED_S: Final = 3.0


def suspended(
    batch_s: float, teachers: int, step_s: float, volume_s: float, stop_s: float, times: int
) -> float:
    """Return the longest wait of a student for a batch from the first suspension on, in seconds.

    Args:
        batch_s: seconds of a batch at each teacher.
        teachers: number of teachers.
        step_s: seconds of a batch at the student.
        volume_s: content of the buffer when a teacher is suspended, in seconds of the student.
        stop_s: duration of a suspension in seconds.
        times: number of suspensions, one teacher after another.

    Raises:
        ProcessFailed: a teacher does not start, or the buffer is not filled in time.
    """
    inputs = batch()
    upper_bytes = round(volume_s / step_s) * inputs.nbytes
    full_bytes = upper_bytes - inputs.nbytes
    student = PacedStudent(step_s)
    suspended_at: list[int] = []  # number of the student's batches at each suspension
    with ExitStack() as stack:
        started = start_teachers(stack, [paced(batch_s)] * teachers)
        reader = stack.enter_context(
            DistilReader(
                Repeated(inputs, count=FOR_EVER),
                service=SERVICE,
                teachers=[address for address, _ in started],
                upper_bytes=upper_bytes,
                lower_bytes=full_bytes,
            )
        )

        def with_suspensions() -> Iterator[object]:
            """Yield the reader's batches; suspend a teacher whenever the buffer is full."""
            resumed_s, deadline_s = 0.0, time.monotonic() + _FULL_WITHIN_S
            for labelled in reader:
                yield labelled
                if (now_s := time.monotonic()) < resumed_s:
                    continue
                if reader.stats.volume_bytes < full_bytes:
                    if now_s > deadline_s:
                        raise ProcessFailed(
                            f"the buffer is not full after {_FULL_WITHIN_S:g} s;"
                            f" {reader.stats.line()}"
                        )
                    continue
                if len(suspended_at) == times:
                    return
                process = started[len(suspended_at) % teachers][1]
                process.send_signal(signal.SIGSTOP)
                timer = threading.Timer(stop_s, process.send_signal, (signal.SIGCONT,))
                stack.callback(timer.join)
                timer.start()
                resumed_s = now_s + stop_s
                deadline_s = resumed_s + _FULL_WITHIN_S
                suspended_at.append(len(student.waited_s))

        student.train(with_suspensions())
    return max(student.waited_s[suspended_at[0] :])


def joined(batch_s: float, needed: int, spares: int, window_s: float) -> ThroughputShare:
    """Measure the throughput of a student after the teachers that it lacked have joined.

    The student begins with two teachers fewer than it needs. The two missing teachers, and spares,
    join a mesh with a coordinator while it trains.

    Args:
        batch_s: seconds of a batch at each teacher.
        needed: n, the number of teachers that the student needs.
        spares: number of teachers beyond n.
        window_s: length of each window in seconds.

    Returns:
        The throughput as a share of that of the student alone.

    Raises:
        ProcessFailed: a teacher does not start, or the student does not get enough of them.
    """
    step_s = batch_s / (needed - 0.2)  # well away from a rounding boundary of n
    per_window, skipped = max(round(window_s / step_s), 5), math.ceil(_SETTLED_S / step_s)
    measured = MIN_ROUNDS * per_window
    alone, student = PacedStudent(step_s), PacedStudent(step_s)
    alone.train(Repeated(batch(), count=measured + 1))
    spec = TeacherSpec(SERVICE, CHEAP, options=paced(batch_s))
    names = [f"t{number}" for number in range(needed + spares)]
    enough_at: list[int] = []
    with LocalMesh() as mesh:
        for name in names[: needed - 2]:
            mesh.add_teacher(name, spec)
        source = Repeated(batch(), count=FOR_EVER)
        with DistilReader(source, service=SERVICE, coordinator=mesh.url) as reader:
            deadline_s = time.monotonic() + _ENOUGH_WITHIN_S

            def with_joining_teachers() -> Iterator[object]:
                """Yield the reader's batches until enough are measured; start the other teachers.

                Raises:
                    ProcessFailed: the student does not get enough teachers in time.
                """
                for labelled in reader:
                    yield labelled
                    count = len(student.took_s)
                    if count == 1:
                        for name in names[needed - 2 :]:
                            mesh.start_teacher(name, spec)
                    if enough_at:
                        if count > enough_at[0] + skipped + measured:
                            return
                    elif (has := len(reader.stats.teachers)) >= needed:
                        enough_at.append(count)
                    elif time.monotonic() > deadline_s:
                        raise ProcessFailed(
                            f"the student has {has} of {needed} teachers after"
                            f" {_ENOUGH_WITHIN_S:g} s; {reader.stats.line()}"
                        )

            student.train(with_joining_teachers())
    since = enough_at[0] + skipped
    alone_s = list(windows_s(alone, 0, per_window))
    distilled_s = list(windows_s(student, since, per_window))[: len(alone_s)]
    part = Estimate.of_ratio(alone_s, distilled_s)
    return ThroughputShare(ROWS / step_s, part, max(student.waited_s[since + 1 :]))
