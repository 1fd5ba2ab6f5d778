"""Runner of `edl agent jobs`: leads the queue, runs its jobs, and reports their progress."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ...coordinator.job_queue import ENDED_KEPT, JobProgress, QueueBoard, QueuedJob, Reservation
from ...coordinator.jobs import JobBoard
from ...coordinator.store.records import Facts, Leads
from ...runtime.errors import EdlError, LeaseSuperseded, UsageError
from ...runtime.lifecycle import Periodic, Stop
from ..cores import pin_process
from .job_run import JobRun, next_node
from .node_scaler import JobRunnerConfig, NodeScaler
from .spec import QueuedJobSpec

log = logging.getLogger(__name__)

#: Seconds between two decisions.
TICK_S: Final = 0.25
_BEATS_PER_TTL: Final = 5.0
#: Maximum number of lines of a job's output that are sent to the queue at a time.
_LINES_PER_PIECE: Final = 20
#: Seconds between two such pieces of output.
_PIECES_S: Final = 0.5


class JobRunner:
    """Runs the jobs of a queue in the caller's thread.

    Args:
        queue: the queue.
        board: board with the reports of trainings.
        config: slots and settings.
    """

    def __init__(self, queue: QueueBoard, board: JobBoard, config: JobRunnerConfig) -> None:
        self._queue, self._config = queue, config
        self._scaler = NodeScaler(config, board, self._log)
        self._jobs: dict[str, JobRun] = {}
        # How jobs have ended, by name and time of submission: Redis may come back with older data.
        self._ended: dict[tuple[str, int], JobProgress] = {}
        self._reservations: Sequence[Reservation] = ()
        self._redis_down = False
        self._clock_offset_ms = 0.0  # the queue's clock minus the monotonic clock
        self._fence: Leads  # without it, Redis refuses progress and logs; set by `_lead`
        self._last_beat_s = self._last_piece_s = float("-inf")
        self._sent_facts: Facts = {}
        self._own_cores = {core for cores in config.cores for core in cores}

    def run(self, stop: Stop) -> None:
        """Run jobs until `stop` is requested; then end their nodes, but keep the jobs queued.

        Raises:
            LeaseSuperseded: another runner has taken over the queue.
            EdlError: Redis cannot be reached at the start.
        """
        if not self._wait_for_leadership(stop):
            return
        self._clock_offset_ms = self._queue.time_ms() - time.monotonic() * 1000
        slots, host = len(self._config.cores), self._config.host
        self._add_event("runner", runner=self._config.runner_id, host=host, slots=slots)
        log.info("runs jobs on %d slots of %s; logs in %s", slots, host, self._config.folder)
        try:
            while not stop.wait(TICK_S):
                self._reconcile()
        finally:
            self._close()

    def _reconcile(self) -> None:
        now_s = time.monotonic()
        self._sync(now_s)
        jobs = list(self._jobs.values())
        self._scaler.reap(jobs, now_s)
        reserved = self._scaler.slots.reserve(self._reservations)
        self._leave_reserved_cores()
        if self._redis_down:  # jobs continue with their present nodes
            return
        for name in reserved:
            slots = self._scaler.slots.reserved[name]
            log.info("reservation %s has slots %s", name, slots)
            self._add_event("kept", reservation=name, slots=slots)
        self._scaler.update_progress(jobs, now_s)
        self._scaler.rescale(jobs, self._reservations, now_s)
        self._report(now_s)

    def _leave_reserved_cores(self) -> None:
        """Keep this process off the cores of reserved slots."""
        reserved, slots = self._scaler.slots.reserved_slots, self._config.cores
        own = {core for slot, cores in enumerate(slots) if slot not in reserved for core in cores}
        if own and own != self._own_cores:
            self._own_cores = own
            with contextlib.suppress(OSError):  # the system has taken these cores away
                pin_process(own)

    # --- the queue

    def _wait_for_leadership(self, stop: Stop) -> bool:
        """Wait until this runner leads the queue; return False if `stop` is requested before."""
        is_waiting = False
        while True:
            try:
                if self._lead():
                    return True
                leader = self._queue.runner()
            except EdlError as error:
                if not is_waiting:
                    raise
                if not self._redis_down:
                    log.warning("standing by without Redis: %s", error)
                self._redis_down = True
            else:
                self._redis_down = False
                if leader is not None and not is_waiting:
                    is_waiting = True
                    host = leader.facts.get("host", "?")
                    log.info("runner %s on %s leads the queue: standing by", leader.runner_id, host)
            if stop.wait(TICK_S):
                return False

    def _lead(self) -> bool:
        """Become or stay leader of the queue; return whether this runner leads."""
        facts = self._facts()
        fence = self._queue.lead(self._config.runner_id, facts, self._config.ttl_s)
        if fence is not None:
            self._fence, self._last_beat_s, self._sent_facts = fence, time.monotonic(), facts
        return fence is not None

    def _sync(self, now_s: float) -> None:
        """Send a heartbeat if it is due, and read the queue; record whether Redis answers."""
        try:
            self._beat(now_s)
            self._read_queue()
        except LeaseSuperseded:
            raise
        except EdlError as error:
            if not self._redis_down:
                log.warning("jobs go on without Redis: %s", error)
            self._redis_down = True
            return
        if self._redis_down:
            log.info("Redis answers again")
        self._redis_down = False

    def _beat(self, now_s: float) -> None:
        is_due = now_s - self._last_beat_s >= self._config.ttl_s / _BEATS_PER_TTL
        if (is_due or self._facts() != self._sent_facts) and not self._lead():
            leader = self._queue.runner()
            raise LeaseSuperseded(
                f"runner {leader.runner_id if leader else '?'} took over the queue after"
                f" {self._config.ttl_s:g} s without a heartbeat of this runner; ending its nodes"
            )

    def _facts(self) -> Facts:
        """Return the facts of this runner that commands show."""
        slots = self._scaler.slots
        return {
            "host": self._config.host,
            "pid": os.getpid(),
            "slots": len(slots.cores),
            "cores": [list(cores) for cores in slots.cores],
            "taken": sorted(slots.used),
            "kept": {name: list(reserved) for name, reserved in slots.reserved.items()},
            "mode": self._config.elastic.mode,
        }

    def _read_queue(self) -> None:
        """Read reservations and jobs; submit jobs, or report ends, that Redis has lost."""
        self._reservations = self._queue.reservations()
        jobs = {job.name: job for job in self._queue.jobs()}
        current = [run for run in self._jobs.values() if not run.replaced]
        if lost := [run for run in current if run.name not in jobs]:
            self._submit_again(lost)
            jobs = {job.name: job for job in self._queue.jobs()}
        for job in jobs.values():
            run = self._jobs.get(job.name)
            if run is None:
                ended = self._ended.get((job.name, job.submitted_ms))
                if ended is not None and not job.progress.ended:
                    log.warning("the queue has lost that job %s is %s", job.name, ended.state)
                    self._queue.write_progress(self._fence, job.name, job.number, ended)
                elif not job.progress.ended:
                    self._add(job)
            elif job.spec != run.job.spec and job.submitted_ms > run.job.submitted_ms:
                run.replaced = True  # Redis had lost this job, and a new job was submitted
            else:
                # The job was submitted again, or Redis was restored from a backup.
                if job.submitted_ms != run.job.submitted_ms:
                    run.reported = None
                run.job = job

    def _submit_again(self, lost: Sequence[JobRun]) -> None:
        """Submit jobs that Redis has lost, in their former order.

        They keep their times of submission, which are part of their folders' names, so that a later
        runner finds their checkpoints.
        """
        for run in lost:
            log.warning("the queue has lost job %s: it is submitted again", run.name)
            run.reported = None
            # This has no effect if a user has submitted a new job of this name meanwhile.
            self._queue.submit(run.name, run.job.spec, run.job.submitted_ms, run.job.desired)

    def _add(self, job: QueuedJob) -> None:
        folder = self._config.folder / f"{job.name}-{job.submitted_ms}"
        try:
            spec = QueuedJobSpec.from_json(job.spec)
        except UsageError as error:  # the spec is of another version
            run = JobRun(job, QueuedJobSpec(job.name, command="none", retries=0), folder, 0.0, 1)
            run.record_failed_start(str(error), 0.0)
        else:
            submitted_s = (job.submitted_ms - self._clock_offset_ms) / 1000
            run = JobRun(job, spec, folder, submitted_s, next_node(folder))
        self._jobs[job.name] = run
        what = "was taken over from a former runner" if job.progress.first_ms else "was submitted"
        checkpoints = folder / "checkpoints"
        earlier = sorted(self._config.folder.glob(f"{job.name}-{'[0-9]' * 13}/checkpoints"))
        if earlier and not checkpoints.exists() and str(checkpoints) in run.spec.arguments(folder):
            what += f"; with --checkpoint {earlier[-1]} in train it would go on from the last job"
        self._log(run, what)

    # --- reports

    def _report(self, now_s: float) -> None:
        """Send changes and output of jobs to the queue; forget jobs that have ended."""
        now_ms = int(now_s * 1000 + self._clock_offset_ms)
        with_lines = now_s - self._last_piece_s >= _PIECES_S
        if with_lines:
            self._last_piece_s = now_s
        try:
            for run in list(self._jobs.values()):
                self._report_job(run, now_ms, with_lines)
        except EdlError as error:
            log.debug("the progress of jobs was not reported and will be sent again: %s", error)

    def _report_job(self, run: JobRun, now_ms: int, with_lines: bool) -> None:
        if run.replaced:
            if not run.nodes.all:
                del self._jobs[run.name]
            return
        progress = run.progress(now_ms)
        if with_lines or progress.ended:
            write = partial(self._queue.append_log, self._fence, run.name)
            run.nodes.pass_lines(_LINES_PER_PIECE, write)
        if progress == run.reported:
            return
        if not self._queue.write_progress(self._fence, run.name, run.job.number, progress):
            return  # another runner leads, or Redis has lost the job: the next sync handles both
        if run.reported is None or run.reported.state != progress.state:
            self._log(run, f"{progress.state}: {progress.reason}")
        run.reported = progress
        if progress.ended:
            del self._jobs[run.name]
            self._ended[run.name, run.job.submitted_ms] = progress
            if len(self._ended) > ENDED_KEPT:
                del self._ended[next(iter(self._ended))]

    def _log(self, run: JobRun, what: str) -> None:
        log.info("job %s: %s", run.name, what)
        self._add_event("job", job=run.name, what=what)

    def _add_event(self, kind: str, **more: Any) -> None:
        try:
            self._queue.add_event({"kind": kind, **more})
        except EdlError as error:
            log.debug("an event is missing in the timeline, %s: %s", error, more)

    def _close(self) -> None:
        """End all nodes at safe points; their jobs wait for the next runner."""
        jobs = list(self._jobs.values())
        for run in jobs:
            run.target = 0
            run.reason = "the fleet was ended: the job waits for the next 'edl agent jobs'"
        self._report(time.monotonic())
        beat_s = self._config.ttl_s / _BEATS_PER_TTL
        heartbeats = Periodic("edl-fleet-beats", beat_s, self._renew_leadership)
        heartbeats.start()  # else another runner could start nodes before these nodes have ended
        try:
            self._scaler.close(jobs)
        finally:
            heartbeats.stop()
        try:
            if self._lead():
                self._last_piece_s = float("-inf")
                self._report(time.monotonic())
                self._queue.resign(self._config.runner_id)
        except EdlError as error:
            log.warning("the end of this runner was not written to the queue: %s", error)

    def _renew_leadership(self) -> None:
        with contextlib.suppress(EdlError):  # the next heartbeat may succeed
            self._lead()
