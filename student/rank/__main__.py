"""The process of a rank: `python -m edl.student.rank LINK_FD`. It ends when its supervisor ends.

It reports to the supervisor how it ended. Its exit code is 0 if it has carried out its order, and
75 if the job may continue in a newer generation: it left at a safe point, a peer or the supervisor
is gone, it got no valid order, or a newer generation exists. Otherwise it is the code of its error.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from ...runtime.errors import (
    EdlError,
    GenerationSuperseded,
    JobError,
    NoTeacherAvailable,
    PeerLost,
    UsageError,
)
from ...runtime.lifecycle import Periodic
from ...runtime.standard_streams import write_whole_lines
from ...runtime.supervise import end_with_parent
from ..job.spec import as_job_error, summary_line, trace_of
from ..link import RankLink
from ..messages import EXIT_AGAIN, Failed, Finished, Inspected, Left, Order

if TYPE_CHECKING:
    from .loop import Loop

log = logging.getLogger("edl.student.rank")

#: Seconds for which a rank may run after its supervisor has died, to release its teachers.
ORPHAN_GRACE_S = 4.0


class Rank:
    """Executes the order of one rank, and reports how the rank ended."""

    def __init__(self, link: RankLink, order: Order) -> None:
        self._link = link
        self._order = order
        self._loop: Loop | None = None  # None until the rank is ready for its first step

    def run(self) -> int:
        """Execute the order, report how it ended, and return the exit code."""
        try:
            return self._inspect() if self._order.inspect else self._train()
        except (PeerLost, GenerationSuperseded) as error:
            return self._report_left(error)
        except BaseException as error:
            if self._link.lost:
                return self._report_left(error)
            return self._report_failed(error)

    def _inspect(self) -> int:
        from .fingerprint import fingerprint_of

        self._link.send(Inspected(fingerprint_of(self._order.settings)))
        return 0

    def _train(self) -> int:
        from .reporting import EVERY_S
        from .starting import start

        loop, ready = start(self._order, self._link)
        self._loop = loop
        wait_reports = Periodic("edl-rank-wait-reports", EVERY_S, loop.report_wait)
        try:
            self._link.send(ready)
            wait_reports.start()
            ending = loop.run()
            step = loop.position.step
            if ending == "left":
                self._link.send(Left(step, safe=True, why="as its supervisor asked"))
                return EXIT_AGAIN
            self._link.send(Finished(step, loop.reporter.metrics))
            return 0
        finally:
            wait_reports.stop()
            loop.close()

    def _report_left(self, error: BaseException) -> int:
        """Report that this rank cannot go on, but the job has not failed.

        A peer or the supervisor is gone, or a newer generation has begun.
        """
        log.warning("%s; this rank ends, and the next generation starts a new one", error)
        step = 0 if self._loop is None else self._loop.position.step
        self._link.send(Left(step, safe=False, why=str(error)))
        return EXIT_AGAIN

    def _report_failed(self, error: BaseException) -> int:
        loop = self._loop
        error = as_job_error(error, self._order.settings.job_file)
        # Errors of EDL explain themselves in one line; errors of a job need the traceback.
        is_explained = isinstance(error, EdlError) and not isinstance(error, JobError)
        trace = "" if is_explained else trace_of(error, self._order.settings.job_file)
        message = str(error) if isinstance(error, EdlError) else summary_line(error)
        # A UsageError while the rank starts, or in the job's first step, is a mistake of the user:
        # it is not retried.
        usage = isinstance(error, UsageError) and (loop is None or loop.position.step == 0)
        gave_up = isinstance(error, NoTeacherAvailable)
        if not (usage or gave_up):  # else the command ends with the same message
            log.error("%s", message)
        self._link.send(
            Failed(
                step=0 if loop is None else loop.position.step + 1,
                epoch=0 if loop is None else loop.position.epoch,
                positions=[] if loop is None else loop.reporter.positions,
                error=message,
                traceback=trace,
                usage=usage,
                gave_up=gave_up,
            )
        )
        return error.exit_code if isinstance(error, EdlError) else 1


def main(fd: int) -> int:
    end_with_parent(ORPHAN_GRACE_S)
    write_whole_lines()
    from ...runtime.logs import add_log_fields, configure_logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles Ctrl-C
    configure_logging()
    link = RankLink(fd)
    try:
        order = link.order()
    except EdlError as error:
        log.error("%s", error)
        return EXIT_AGAIN
    add_log_fields(job=order.settings.job, student=f"{order.settings.job}/{order.rank}")
    return Rank(link, order).run()


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit would wait: Paddle's process group for peers that are gone, and gRPC's threads
    # for teachers that do not answer.
    os._exit(code)
