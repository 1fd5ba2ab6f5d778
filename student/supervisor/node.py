"""The supervisor of one node: takes part in each generation that names it, until the job ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from ...coordinator.jobs import JobBoard
from ...errors import CheckpointUnavailable, EdlError, NoTeacherAvailable, UsageError
from ...lifecycle import Stop
from ...scheduler.students.failures import RankFailure
from ...scheduler.students.saving import CheckpointHistory
from ...scheduler.students.world import (
    Fingerprint,
    WorldLimits,
    data_order,
    differences,
    differences_in_words,
    expected_fingerprint,
    has_members,
    since_checkpoint,
)
from ..checkpoint import Checkpoint
from ..settings import TrainSettings
from ..words import FromRank, Order, Progress, Ready, Saved, Scaled
from .checkpoints import CheckpointManager, NewestCheckpoint, check_room, write_last
from .dependencies import NodeDependencies, NodeOutcome
from .launch import free_endpoints
from .rendezvous import Generation, RendezvousSession, RendezvousView
from .rendezvous_leader import LeaderOrders, RendezvousLeader
from .reporter import NodeReporter
from .worker_run import RunResult, ShardServer, WorkerRun
from .workers import RankProcess, WorkerGroup, inspect, report_of

log = logging.getLogger(__name__)

_TURN_S: Final = 0.05
#: A node that leaves waits so long for the others to go on without it.
_FAREWELL_S: Final = 15.0
#: When the job is done, ranks that still run have so long.
_FINISH_S: Final = 60.0


class Supervisor:
    """See the module.

    Args:
        settings: of the job.
        board: where its nodes meet.
        node: this node's id, another with each start.
        host: where other nodes reach this one's ranks.
        teller: shows what happens.
        means: see there.
    """

    def __init__(
        self,
        settings: TrainSettings,
        board: JobBoard,
        node: str,
        host: str,
        teller: NodeReporter,
        means: NodeDependencies | None = None,
    ) -> None:
        self._settings, self._board, self._node, self._host = settings, board, node, host
        self._teller, self._means = teller, means or NodeDependencies()
        self._keeping = CheckpointManager(
            settings.checkpoint,
            settings.keep,
            board,
            settings.job,
            alone=settings.coordinator is None,
        )
        limits = WorldLimits(
            *settings.nodes,
            self._means.gather_s,
            settings.ranks_per_node,
            settings.total_batch or 0,
            settings.hang_s,
        )
        self._leading = RendezvousLeader(
            board, settings.job, limits, self._keeping.judge.newest, self._said
        )
        self._seat = RendezvousSession(
            board, settings.job, node, self._leading.step, self._means.ttl_s
        )
        self._generation: Generation | None = None  # that this node is, or was last, a part of
        self._seen = 0  # number of the newest generation that was looked at
        self._term: WorkerRun | None = None
        self._starting_since_s = 0.0  # waiting for the checkpoint of a generation; 0: not
        self._leaving_since_s = 0.0
        self._ended_since_s = 0.0
        self._finished = False  # the ranks of this node have nothing left to train
        self._fingerprint: Fingerprint = {}
        #: Of this node, which had joined a job that goes on without it.
        self._final_failure: RankFailure | None = None

    def run(self, stop: Stop) -> NodeOutcome:
        """Train until the job ends, or `stop` is requested and the ranks have left.

        Raises:
            UsageError: the job cannot work, whoever tries.
            NoTeacherAvailable: no teacher came in the time that the job allows.
            CheckpointUnavailable: the last snapshot could not be written.
            EdlError: the job failed, or goes on without this node.
        """
        try:
            self._seat.tell(
                host=self._host, endpoints=free_endpoints(self._host, self._settings.ranks_per_node)
            )
            self._newest(self._seat.look())  # which says at once what is wrong
            fingerprint = self._inspect(stop)
            if fingerprint is None:
                return NodeOutcome("left")
            self._fingerprint = fingerprint
            if not self._check_settings(self._seat.look(), stop):
                return NodeOutcome("left")
            self._seat.tell(fingerprint=fingerprint)
            self._seat.start()
            self._seat.note({"kind": "joined", "generation": 0, "node": self._node})
            while (outcome := self._turn(stop)) is None:
                pass
            self._seat.note({"kind": "left", "generation": self._seen, "node": self._node})
            return outcome
        finally:
            self._close()

    def _inspect(self, stop: Stop) -> Fingerprint | None:
        """The fingerprint of the job as this node has it; None: `stop` was requested."""
        self._teller.waiting("the functions of the job file")
        desk = ShardServer(self._board, self._settings.job, 1, local=True)
        order = Order(self._settings, node=self._node, inspect=True)
        crew = WorkerGroup(
            [order], desk, self._teller.line, self._means.module, self._means.environment
        )
        return inspect(crew, self._settings.hang_s, self._teller.heard, stop)

    def _check_settings(self, view: RendezvousView, stop: Stop) -> bool:
        """Raise UsageError where this node's settings are not those of the job.

        Where no node trains it: those of the checkpoint that it resumes from.

        Returns:
            False: `stop` was requested.
        """
        self._check_fits_job(view)
        if view.generation is not None and has_members(view.generation.world, view.members):
            return True
        while (newest := self._newest(view)) is None:
            if stop.requested:
                return False
            self._teller.waiting("the newest checkpoint to be verified")
        if newest.checkpoint is not None:
            self._check_fits_checkpoint(newest.checkpoint)
        return True

    def _newest(self, view: RendezvousView) -> NewestCheckpoint | None:
        """The checkpoint that the next generation begins with; None: it is being verified."""
        generation = view.generation
        if generation is None:
            return self._keeping.judge.newest(0, CheckpointHistory())
        return self._keeping.judge.newest(generation.number, generation.history)

    def _check_fits_checkpoint(self, newest: Checkpoint) -> None:
        saved, accepted = newest.provenance.fingerprint, self._settings.accept_changes
        if not saved:
            log.warning(
                "the checkpoint %s has no fingerprint, as an older version wrote it: whether it"
                " was trained with the present settings is not checked",
                newest.location,
            )
        changes = since_checkpoint(saved, self._fingerprint)
        if refused := [change for change in changes if change.field not in accepted]:
            options = " ".join(f"--accept-change {change.field}" for change in refused)
            raise UsageError(
                f"the checkpoint {newest.location} was trained with other settings:"
                f" {differences_in_words(refused, 'in the checkpoint')}."
                f" Start with these, give an empty --checkpoint, or allow the change with {options}"
            )
        if changes:
            self._teller.say(
                f"accepted changes: {differences_in_words(changes, 'in the checkpoint')}"
            )

    def _check_fits_job(self, view: RendezvousView) -> None:
        world = view.generation.world if view.generation else None
        self._check_equal(expected_fingerprint(world, view.members), "in the job")

    def _check_equal(self, expected: Fingerprint, there: str) -> None:
        if changes := differences(expected, self._fingerprint):
            raise UsageError(
                f"node {self._node} is refused, as its settings are not those of the other nodes"
                f" of job {self._settings.job}: {differences_in_words(changes, there)}."
                " Start it with the job's settings, or another job with --job NAME"
            )

    def _check_shared(self, generation: Generation) -> None:
        """Raise UsageError where others have found the checkpoint that this node does not see."""
        restored = generation.world.restored
        found = [
            node
            for node, facts in self._seat.view.facts.items()
            if facts.generation == generation.number and facts.saved >= restored
        ]
        if found:
            raise UsageError(
                f"node {self._node} does not see the checkpoint of step {restored}, which node"
                f" {found[0]} sees: the newest one at {self._settings.checkpoint} is"
                f" {self._keeping.newest_in_words()}. Nodes share their checkpoints: start all of"
                " them with a --checkpoint that they reach"
            )

    def _close(self) -> None:
        try:
            if self._term is not None:
                self._term.close()
        finally:
            self._seat.stop()
            self._keeping.close()
            self._teller.close()

    def _turn(self, stop: Stop) -> NodeOutcome | None:
        if self._term is not None:
            if (conclusion := self._term.turn(_TURN_S)) is not None:
                self._concluded(conclusion)
        else:
            time.sleep(_TURN_S)
        view = self._seat.view
        self._show(view)
        if view.outcome is not None:
            return self._job_ended(view.outcome)
        if stop.requested and not self._leaving_since_s:
            self._leave()
        if self._generation is None:
            self._check_fits_job(view)
        self._follow(view)
        if self._leaving_since_s and self._may_go(view):
            if (failure := self._final_failure) is not None:
                raise _error_of(failure.error, failure.usage, failure.gave_up)
            self._write_last()
            return NodeOutcome("left", max(self._keeping.saved, self._keeping.snapshot, 0))
        return None

    # --- generations

    def _follow(self, view: RendezvousView) -> None:
        """Do what the board says about generations."""
        generation = view.generation
        if generation is not None and generation.number > self._seen:
            self._seen = generation.number
            self._begin(generation)
        elif self._starting_since_s and self._generation is not None:
            self._try_start(self._generation)
        for recall in [facts.recall for facts in view.facts.values() if facts.recall]:
            if self._generation is None or recall.number != self._generation.number:
                continue
            if self._term is None and self._starting_since_s:  # there is nothing to end yet
                self._starting_since_s = 0.0
                self._concluded(RunResult("left"))
            elif self._term is not None and recall.at_once:
                self._term.end(recall.reason, recall.hung)
            elif self._term is not None:
                self._term.leave(recall.reason)

    def _begin(self, generation: Generation) -> None:
        if self._term is not None:
            log.warning("generation %d began without this node's word", generation.number)
            self._term.close()
            self._term = None
        self._starting_since_s = 0.0
        world = generation.world
        if self._node in world.barred:
            raise EdlError(f"the job goes on without node {self._node}: {world.reason}")
        ours = self._node in world.nodes
        if ours:
            expected = {**world.fingerprint, **world.data_order}
            self._check_equal(expected, f"in generation {world.number}")
        self._teller.generation(generation, ours)
        self._keeping.begin(generation, writes=world.keeper == self._node)
        self._seat.tell(
            phase="running" if ours else "waiting",
            generation=generation.number,
            failures=(),
            ending="",
            snapshot=self._keeping.snapshot,
        )
        if ours:
            self._generation, self._starting_since_s = generation, time.monotonic()
            self._try_start(generation)

    def _try_start(self, generation: Generation) -> None:
        """Start the ranks as soon as the checkpoint is there that all begin with."""
        checkpoint: Checkpoint | None = None
        restored = generation.world.restored
        if generation.world.origin is not None:
            try:
                history = (self._seat.view.generation or generation).history
                checkpoint = self._keeping.find(generation.world.origin, history)
            except CheckpointUnavailable as error:
                log.warning("%s; it is tried again", error)
            if checkpoint is None:
                waited_s = time.monotonic() - self._starting_since_s
                check_room(self._keeping, waited_s, self._means.room_s)
                if waited_s > self._means.room_s:
                    self._check_shared(generation)
                return
            self._seat.tell(saved=restored)
        self._starting_since_s = 0.0
        self._ended_since_s = 0.0
        self._keeping.trains(checkpoint, self._fingerprint)
        orders = self._orders(generation, checkpoint)
        local = len(generation.world.nodes) == 1
        desk = ShardServer(self._board, self._settings.job, generation.number, local)
        try:
            crew = WorkerGroup(
                orders, desk, self._teller.line, self._means.module, self._means.environment
            )
        except EdlError as error:
            self._concluded(_not_started(orders[0], restored, str(error)))
            return
        self._term = WorkerRun(orders, crew, desk, restored, self._heard)
        if self._leaving_since_s:
            self._term.leave("this node leaves")

    def _orders(self, generation: Generation, checkpoint: Checkpoint | None) -> list[Order]:
        first = generation.first_rank(self._node)
        saved = checkpoint.provenance.fingerprint if checkpoint else {}
        order = {**data_order(self._fingerprint, saved), **generation.world.data_order}
        return [
            Order(
                self._settings,
                generation.number,
                first + local,
                len(generation.endpoints),
                local,
                self._node,
                generation.endpoints,
                checkpoint.location if checkpoint else "",
                checkpoint.world if checkpoint else 0,
                self._keeping.keys,
                order["restarts_epoch"],
            )
            for local in range(self._settings.ranks_per_node)
        ]

    def _concluded(self, conclusion: RunResult) -> None:
        """The ranks of this node have ended."""
        if self._term is not None:
            self._term.close()
            self._term = None
        for failure in conclusion.failures:
            self._teller.failed(failure)
        self._ended_since_s = time.monotonic()
        self._finished = conclusion.ending == "finished"
        final = [failure for failure in conclusion.failures if failure.is_final]
        if final and self._generation and self._node in self._generation.world.untried:
            self._final_failure, self._leaving_since_s = final[0], self._ended_since_s
        self._seat.tell(
            leaving=bool(self._leaving_since_s),
            phase="ended",
            ending=conclusion.ending,
            failures=conclusion.failures,
            result=conclusion.result,
            snapshot=self._keeping.snapshot,
            saved=self._keeping.saved,
            endpoints=free_endpoints(self._host, self._settings.ranks_per_node),
        )

    # --- what ranks say

    def _heard(self, rank: RankProcess, word: FromRank) -> None:
        number = rank.order.generation
        match word:
            case Saved():
                self._seat.tell(snapshot=word.step)
                if self._is_first():
                    self._keeping.write()
            case Scaled() if rank.number == 0:
                self._seat.note({"kind": "scaled", "generation": number, **asdict(word)})
            case Ready() | Progress():
                self._seat.report(number, rank.number, report_of(rank))
        self._teller.heard(rank, word)

    def _is_first(self) -> bool:
        """Whether this node, of its generation, is the one that writes checkpoints."""
        return self._generation is not None and self._generation.world.nodes[0] == self._node

    def _said(self, orders: LeaderOrders) -> None:
        self._seat.tell(recall=orders.recall, says=orders.says)

    def _show(self, view: RendezvousView) -> None:
        """Tell what is waited for."""
        self._teller.leader_says(
            next((facts.says for facts in view.facts.values() if facts.says), "")
        )
        if self._term is not None:
            self._teller.waiting(self._term.desk.waiting)
        elif self._starting_since_s and self._generation is not None:
            problem = f": {self._keeping.problem}" if self._keeping.problem else ""
            step = self._generation.world.restored
            self._teller.waiting(f"the checkpoint of step {step}{problem}")
        else:
            self._teller.waiting("the end of the job" if self._finished else "the next generation")

    # --- the end

    def _leave(self) -> None:
        """Go with all that was trained: the ranks first, at a safe point."""
        self._leaving_since_s = time.monotonic()
        self._teller.say("leaving at the next safe point; once more, and it ends at once")
        self._seat.tell(leaving=True)
        if self._term is not None:
            self._term.leave("this node leaves")

    def _may_go(self, view: RendezvousView) -> bool:
        """Whether a node that wants to leave is not needed any more."""
        if self._term is not None or self._starting_since_s:
            return False
        if self._generation is None or self._seat.away:
            return True
        others = [
            name for name, facts in view.facts.items() if name != self._node and not facts.leaving
        ]
        since_s = max(self._ended_since_s, self._leaving_since_s)
        late = time.monotonic() - since_s > _FAREWELL_S
        return not others or self._seen > self._generation.number or late

    def _job_ended(self, told: Mapping[str, Any]) -> NodeOutcome | None:
        """Let the ranks end, write what is not written; then say how the job ended."""
        failed = told.get("kind") == "failed"
        if self._term is not None:
            if failed:
                self._term.end("the job ended")
            elif not self._ended_since_s:
                self._ended_since_s = time.monotonic()
            elif time.monotonic() - self._ended_since_s > _FINISH_S:
                self._term.end("the job ended")
            return None
        try:
            self._write_last()
        except CheckpointUnavailable as error:
            if not failed:
                raise
            log.error("%s", error)  # what ended the job is what its user has to hear
        if failed:
            usage, gave_up = bool(told.get("usage")), bool(told.get("gave_up"))
            raise _error_of(str(told.get("report")), usage, gave_up)
        return NodeOutcome("finished", int(told.get("step", 0)), told.get("metrics", {}))

    def _write_last(self) -> None:
        """Have the newest snapshot on the disk. Raises CheckpointUnavailable where it cannot be."""
        if self._settings.checkpoint is None or self._generation is None:
            return
        first = self._generation.world.nodes[0]
        write_last(
            self._keeping,
            self._teller,
            self._means.room_s,
            None if self._is_first() else lambda: first in self._seat.view.facts,
        )


def _error_of(report: str, usage: bool, gave_up: bool) -> EdlError:
    """What the command ends with, where the job or this node has failed for good."""
    if gave_up:
        return NoTeacherAvailable(report)
    return UsageError(report) if usage else EdlError(report)


def _not_started(order: Order, restored: int, why: str) -> RunResult:
    failure = RankFailure(
        order.generation, order.node, order.rank, "crash", error=why, restored=restored
    )
    return RunResult("failed", (failure,))
