"""Teachers of a mesh, in the test's process, whose pace the test commands, and what they tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from edl.proto import tensors
from edl.proto.arena import Array
from edl.tests.ground.programs import wait_for
from edl.tests.scripted_teacher import ScriptedTeacher, label
from edl.tests.system import foreign


class PacedTeacher(ScriptedTeacher):
    """One device, which works on one request after the other and makes up for no idle time.

    Args:
        batch_s: seconds for a batch of `foreign.ROWS` rows.
    """

    def __init__(self, batch_s: float) -> None:
        super().__init__(self._label)
        self._lock = threading.Lock()
        self._free_at_s = 0.0
        self.pace(batch_s)

    def pace(self, batch_s: float, told: float = 1.0) -> None:
        """Take so long from the next request on.

        Args:
            batch_s: as above.
            told: the part of it that answers state: less than all where it is held up by something
                besides its device.
        """
        self._batch_s = batch_s
        self.seconds = told * batch_s

    def _label(self, request: tensors.InferRequest) -> dict[str, Array]:
        rows = len(request.inputs["x"])
        with self._lock:
            began_s = max(self._free_at_s, time.monotonic())
            self._free_at_s = end_s = began_s + self._batch_s * rows / foreign.ROWS
        time.sleep(max(end_s - time.monotonic(), 0.0))
        return label(request)


@contextmanager
def paced_teachers(url: str, count: int, batch_s: float) -> Iterator[list[PacedTeacher]]:
    """So many, registered with the coordinator at `url` for the service `foreign.SERVICE`."""
    with ExitStack() as ending:
        teachers = []
        for _ in range(count):
            teacher = PacedTeacher(batch_s)
            ending.callback(teacher.stop)
            teachers.append(teacher)
        # Its tests take a row of the device's time, once.
        tests = ("--input", "x:FP32:-1,6", "--rows", 1, "--test-every", 600)
        for teacher in teachers:
            ending.enter_context(foreign.sidecar(url, teacher.address, *tests, ready=False))
        wait_for(lambda: len(foreign.registered(url)) == count, foreign.START_S)
        yield teachers
