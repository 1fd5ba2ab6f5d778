"""The runner of a fleet: has the queue, sees what operators want, tells what becomes of it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from typing import Any, Final

from ...coordinator.jobs import JobBoard
from ...coordinator.queue import QueueBoard, QueuedJob, Reservation
from ...coordinator.store import Leads
from ...coordinator.store.facts import Facts
from ...errors import EdlError, LeaseSuperseded, UsageError
from ...lifecycle import Periodic, Stop
from ..cores import pin_process
from .account import Account
from .carrying import Carrying
from .fleet import Fleet
from .spec import JobSpec

log = logging.getLogger(__name__)

TICK_S: Final = 0.25
_BEATS_PER_TTL: Final = 5.0
#: So many lines of a job are handed on, so often.
_LINES: Final = 20
_LINES_S: Final = 0.5


class FleetRunner:
    """See the module; its thread is the caller's.

    Args:
        queue: of jobs.
        board: where trainings tell how far they are.
        fleet: what it has.
    """

    def __init__(self, queue: QueueBoard, board: JobBoard, fleet: Fleet) -> None:
        self._queue, self._fleet = queue, fleet
        self._carrying = Carrying(fleet, board, self._say)
        self._accounts: dict[str, Account] = {}
        self._reservations: Sequence[Reservation] = ()
        self._away = False
        self._ahead_ms = 0.0  # of the queue's clock before the monotonic one
        self._fence: Leads  # once the queue is taken
        self._beaten_s = self._lines_s = float("-inf")
        self._facts_told: Facts = {}
        self._own_cores = {core for cores in fleet.cores for core in cores}

    def run(self, stop: Stop) -> None:
        """Run jobs until `stop` is requested; then their nodes leave, and the jobs wait.

        Raises:
            LeaseSuperseded: another runner has taken the queue.
            EdlError: Redis cannot be reached at the start.
        """
        if not self._take(stop):
            return
        self._ahead_ms = self._queue.time_ms() - time.monotonic() * 1000
        slots, host = len(self._fleet.cores), self._fleet.host
        self._note("runner", runner=self._fleet.runner_id, host=host, slots=slots)
        log.info("runs jobs on %d slots of %s; logs in %s", slots, host, self._fleet.folder)
        try:
            while not stop.wait(TICK_S):
                self._turn()
        finally:
            self._close()

    def _turn(self) -> None:
        now_s = time.monotonic()
        self._hear(now_s)
        accounts = list(self._accounts.values())
        self._carrying.reap(accounts, now_s)
        kept = self._carrying.slots.keep(self._reservations)
        self._stay_off_kept_cores()
        if self._away:  # jobs go on as they are
            return
        for name in kept:
            slots = self._carrying.slots.kept[name]
            log.info("reservation %s has slots %s", name, slots)
            self._note("kept", reservation=name, slots=slots)
        self._carrying.look(accounts, now_s)
        self._carrying.share(accounts, self._reservations, now_s)
        self._tell(now_s)

    def _stay_off_kept_cores(self) -> None:
        """What is kept for a service is not for this process either."""
        slots = self._carrying.slots
        kept = {slot for held in slots.kept.values() for slot in held}
        own = {core for slot, cores in enumerate(slots.cores) if slot not in kept for core in cores}
        if own and own != self._own_cores:
            pin_process(own)
            self._own_cores = own

    # --- the queue

    def _take(self, stop: Stop) -> bool:
        """Wait until this runner has the queue; False: `stop` came first."""
        waits = False
        while (fence := self._take_queue(self._facts())) is None:
            other = self._queue.runner()
            if other is not None and not waits:
                waits = True
                host = other.facts.get("host", "?")
                log.info("%s on %s has the queue: waits in reserve", other.runner_id, host)
            if stop.wait(TICK_S):
                return False
        self._fence = fence
        return True

    def _take_queue(self, facts: Facts) -> Leads | None:
        return self._queue.take(self._fleet.runner_id, facts, self._fleet.ttl_s)

    def _hear(self, now_s: float) -> None:
        """Beat, and see what operators want; while Redis is away that stays as it was."""
        try:
            self._beat(now_s)
            self._read()
        except LeaseSuperseded:
            raise
        except EdlError as error:
            if not self._away:
                log.warning("jobs go on without Redis: %s", error)
            self._away = True
            return
        if self._away:
            log.info("Redis answers again")
        self._away = False

    def _beat(self, now_s: float) -> None:
        facts = self._facts()
        if (
            now_s - self._beaten_s < self._fleet.ttl_s / _BEATS_PER_TTL
            and facts == self._facts_told
        ):
            return
        fence = self._take_queue(facts)
        if fence is None:
            other = self._queue.runner()
            raise LeaseSuperseded(
                f"runner {other.runner_id if other else '?'} has taken the queue, as this one was"
                f" not heard of for {self._fleet.ttl_s:g} s; its nodes leave, and it ends"
            )
        self._fence, self._beaten_s, self._facts_told = fence, now_s, facts

    def _facts(self) -> Facts:
        """What operators, and those who keep slots, see of this runner."""
        slots = self._carrying.slots
        return {
            "host": self._fleet.host,
            "pid": os.getpid(),
            "slots": len(slots.cores),
            "cores": [list(cores) for cores in slots.cores],
            "taken": sorted(slots.taken),
            "kept": {name: list(kept) for name, kept in slots.kept.items()},
            "mode": self._fleet.config.mode,
        }

    def _read(self) -> None:
        """What operators want now."""
        self._reservations = self._queue.reservations()
        jobs = {job.name: job for job in self._queue.jobs()}
        known = [one for one in self._accounts.values() if not one.replaced]
        if lost := [one for one in known if one.name not in jobs]:
            self._submit_again(lost)
            jobs = {job.name: job for job in self._queue.jobs()}
        for job in jobs.values():
            account = self._accounts.get(job.name)
            if account is None:
                if not job.progress.ended:
                    self._add(job)
            elif job.spec != account.job.spec and job.submitted_ms > account.job.submitted_ms:
                account.replaced = True  # Redis had lost the one before
            else:
                if job.submitted_ms != account.job.submitted_ms:  # it has an older copy of what is
                    account.told = None
                account.job = job

    def _submit_again(self, lost: Sequence[Account]) -> None:
        """Redis has lost its memory; jobs come in their former order."""
        for account in lost:
            log.warning("the queue has lost job %s: it is submitted again", account.name)
            self._queue.submit(account.name, account.job.spec)
            self._queue.wish(account.name, account.job.wish)
            account.told = None

    def _add(self, job: QueuedJob) -> None:
        folder = self._fleet.folder / f"{job.name}-{job.submitted_ms}"
        try:
            spec = JobSpec.from_json(job.spec)
        except UsageError as error:  # of another version, or a stranger's
            account = Account(job, JobSpec(job.name, command="none", retries=0), folder, 0.0, 1)
            account.failed_to_start(str(error), 0.0)
        else:
            submitted_s = (job.submitted_ms - self._ahead_ms) / 1000
            nodes = sum(1 for _ in folder.glob("node-*.log"))
            account = Account(job, spec, folder, submitted_s, nodes + 1)
        self._accounts[job.name] = account
        self._say(account, "its runner was lost" if job.progress.first_ms else "was submitted")

    # --- what is told

    def _tell(self, now_s: float) -> None:
        """What has changed, to the queue; jobs that have ended are forgotten here."""
        now_ms = int(now_s * 1000 + self._ahead_ms)
        prints = now_s - self._lines_s >= _LINES_S
        if prints:
            self._lines_s = now_s
        try:
            for account in list(self._accounts.values()):
                self._tell_of(account, now_ms, prints)
        except EdlError as error:
            log.debug("not told: %s", error)  # a later turn does

    def _tell_of(self, account: Account, now_ms: int, prints: bool) -> None:
        if account.replaced:
            if not account.crew.nodes:
                del self._accounts[account.name]
            return
        progress = account.progress(now_ms)
        if (prints or progress.ended) and (lines := account.crew.lines(_LINES)):
            self._queue.log(self._fence, account.name, lines)
        if progress == account.told:
            return
        if not self._queue.tell(self._fence, account.name, account.job.number, progress):
            return  # the queue is another's by now, or has lost the job: the next beat sees to that
        if account.told is None or account.told.state != progress.state:
            self._say(account, f"{progress.state}: {progress.reason}")
        account.told = progress
        if progress.ended:
            del self._accounts[account.name]

    def _say(self, account: Account, what: str) -> None:
        log.info("job %s: %s", account.name, what)
        self._note("job", job=account.name, what=what)

    def _note(self, kind: str, **more: Any) -> None:
        try:
            self._queue.note({"kind": kind, **more})
        except EdlError as error:
            log.debug("not noted in the timeline, %s: %s", error, more)

    def _close(self) -> None:
        """All nodes leave, each at a safe point; their jobs wait for the next runner."""
        accounts = list(self._accounts.values())
        for account in accounts:
            account.wait("the fleet was ended: it waits for the next 'edl fleet jobs'")
        self._tell(time.monotonic())
        beating = Periodic("edl-fleet-beats", self._fleet.ttl_s / _BEATS_PER_TTL, self._hold)
        beating.start()  # lest another one start nodes beside those that have not left yet
        try:
            self._carrying.close(accounts)
        finally:
            beating.stop()
        try:
            if (fence := self._take_queue(self._facts())) is not None:
                self._fence = fence
                self._lines_s = float("-inf")
                self._tell(time.monotonic())
                self._queue.resign(self._fleet.runner_id)
        except EdlError as error:
            log.warning("the queue was not told that this runner ends: %s", error)

    def _hold(self) -> None:
        with contextlib.suppress(EdlError):  # the next beat may be heard
            self._take_queue(self._facts())
