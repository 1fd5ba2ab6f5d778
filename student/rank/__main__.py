"""A student process: `python -m edl.student.rank LINK_FD`, started by its supervisor, ends with it.

It exits with 0 if the job is done, with 75 if it left at a safe point or because a peer is gone,
and else with the code of its error. Before, it reports to the supervisor what happened.
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
from ...runtime.standard_streams import write_whole_lines
from ...runtime.supervise import end_with_parent
from ..job.spec import as_job_error, summary_line, trace_of
from ..link import RankLink
from ..messages import EXIT_AGAIN, Failed, Finished, Inspected, Left, Order, Ready

if TYPE_CHECKING:
    from .reporting import RankReporter
    from .starting import PreparedRank

log = logging.getLogger("edl.student.rank")

#: Seconds in which a rank gives its teachers back after its supervisor has died.
ORPHAN_GRACE_S = 4.0


class Rank:
    """The run of one rank, from its order to its last message."""

    def __init__(self, link: RankLink, order: Order) -> None:
        self._link = link
        self._order = order
        self._reporter: RankReporter | None = None
        self._started = False

    def run(self) -> int:
        """Execute the order, report how it ended, and return the exit code."""
        try:
            return self._inspect() if self._order.inspect else self._train()
        except (PeerLost, GenerationSuperseded) as error:
            return self._left(error)
        except BaseException as error:
            if self._link.lost:
                return self._left(error)
            return self._failed(error)

    def _inspect(self) -> int:
        from .fingerprint import fingerprint_of

        self._link.send(Inspected(fingerprint_of(self._order.settings)))
        return 0

    def _train(self) -> int:
        from .starting import start

        ready = start(self._order, self._link)
        try:
            return self._loop(ready)
        finally:
            ready.shares.close()
            ready.prefetcher.close()

    def _loop(self, ready: PreparedRank) -> int:
        from .loop import Loop
        from .reporting import RankReporter, WaitReporter

        reporter = RankReporter(
            self._order, self._link, ready.saver, ready.evaluation, ready.prefetcher
        )
        reporter.position = ready.position
        self._reporter = reporter
        settings = self._order.settings
        loop = Loop(
            ready.learner,
            ready.prefetcher,
            ready.data,
            ready.shares,
            reporter,
            lambda: self._link.leaving,
            ready.saver.due,
            ready.position,
            settings.steps,
            settings.epochs,
            ready.adapt,
            ready.synchronize,
        )

        def waiting_for() -> str:
            if ready.learner.group.waits_s:
                return "the other ranks"
            return ready.prefetcher.waiting_for() if loop.waits else ""

        position, rows = ready.position, ready.data.source.total_batch or 0
        self._link.send(Ready(position.step, position.epoch, ready.steps or 0, rows))
        self._started = True
        pulse = WaitReporter(waiting_for, reporter.waits_for)
        try:
            ending = loop.run()
        finally:
            pulse.close()
            reporter.close()
        if ending == "left":
            self._link.send(Left(ready.position.step, safe=True, why="as its supervisor asked"))
            return EXIT_AGAIN
        self._link.send(Finished(ready.position.step, reporter.metrics))
        return 0

    def _left(self, error: BaseException) -> int:
        """End because a peer or the supervisor is gone; the job itself has not failed."""
        log.warning("%s; this rank ends, to go on in the next generation", error)
        step = 0 if self._reporter is None else self._reporter.position.step
        self._link.send(Left(step, safe=False, why=str(error)))
        return EXIT_AGAIN

    def _failed(self, error: BaseException) -> int:
        reporter = self._reporter
        error = as_job_error(error, self._order.settings.spec)
        # Errors of EDL explain themselves in one line; for errors of a job, show its code.
        ours = isinstance(error, EdlError) and not isinstance(error, JobError)
        trace = "" if ours else trace_of(error, self._order.settings.spec)
        words = str(error) if isinstance(error, EdlError) else summary_line(error)
        # Until the first step of the job, the user has made a mistake; later errors are retried.
        usage = isinstance(error, UsageError) and (
            not self._started or reporter is None or reporter.position.step == 0
        )
        gave_up = isinstance(error, NoTeacherAvailable)
        if not (usage or gave_up):  # else the command ends with the same message
            log.error("%s", words)
        self._link.send(
            Failed(
                0 if reporter is None else reporter.position.step + 1,
                0 if reporter is None else reporter.position.epoch,
                [] if reporter is None else reporter.positions,
                words,
                trace,
                usage=usage,
                gave_up=gave_up,
            )
        )
        return error.exit_code if isinstance(error, EdlError) else 1


def main(fd: int) -> int:
    end_with_parent(ORPHAN_GRACE_S)
    write_whole_lines()
    from ...runtime.logs import add_log_fields, configure_logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
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
