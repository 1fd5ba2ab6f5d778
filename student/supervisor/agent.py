"""The supervisor of one node: its loop, its part in each generation, and how it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ...coordinator.jobs import Generation, JobBoard
from ...runtime.errors import CheckpointUnavailable, EdlError, NoTeacherAvailable, UsageError
from ...runtime.lifecycle import Stop
from ...scheduler.students.failures import RankFailure
from ...scheduler.students.fingerprint import (
    Fingerprint,
    data_order,
    differences,
    differences_in_words,
    optimizer_changes,
    since_checkpoint,
)
from ...scheduler.students.saving import CheckpointHistory
from ...scheduler.students.world import (
    GATHER_S,
    RecallWorld,
    WorldLimits,
    expected_fingerprint,
    has_members,
)
from ..checkpoint import Checkpoint
from ..launch import free_endpoints
from ..link import ShardServer
from ..messages import FromRank, Order, Progress, Ready, Saved, Scaled
from ..settings import TrainSettings
from .checkpoints import (
    CheckpointManager,
    FinalSnapshotWriter,
    NewestCheckpoint,
    raise_if_unreachable,
)
from .rendezvous import TTL_S, RendezvousLeader, RendezvousSession, RendezvousView
from .ui import NodeReporter, report_of
from .workers import RANK_MODULE, RankProcess, RunResult, WorkerGroup, WorkerRun, inspect

log = logging.getLogger(__name__)

_POLL_S: Final = 0.05
#: Longest wait, in seconds, of a leaving node for the others to continue without it.
_LEAVE_S: Final = 15.0
#: Seconds for which ranks may still run after the job is done.
_FINISH_S: Final = 60.0
#: Seconds for which a leaving node tries to write the last snapshot, a starting node waits for its
#: checkpoint, and a leader tries to read the newest one.
CHECKPOINT_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class NodeDependencies:
    """What a supervisor runs, and its time limits; only tests change more than `environment`.

    Attributes:
        module: module that each rank runs.
        environment: variables that ranks get in addition to those of this process.
        ttl_s: seconds without a heartbeat after which a node is lost.
        gather_s: seconds to wait for further nodes after a node has joined.
        checkpoint_timeout_s: see `CHECKPOINT_TIMEOUT_S`.
    """

    module: str = RANK_MODULE
    environment: Mapping[str, str] = field(default_factory=dict)
    ttl_s: float = TTL_S
    gather_s: float = GATHER_S
    checkpoint_timeout_s: float = CHECKPOINT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """How the job ended for this node: `kind` is "finished", or "left" if the node left before."""

    kind: str
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


class Supervisor:
    """Trains with the ranks of this node in each generation that includes it, until the job ends.

    Args:
        settings: settings of the job.
        board: job board of its nodes.
        node: id of this node, new at each start.
        host: address of this node's ranks for other nodes.
        reporter: shows what happens.
        dependencies: see `NodeDependencies`; None: its defaults.
    """

    def __init__(
        self,
        settings: TrainSettings,
        board: JobBoard,
        node: str,
        host: str,
        reporter: NodeReporter,
        dependencies: NodeDependencies | None = None,
    ) -> None:
        self._settings, self._board, self._node, self._host = settings, board, node, host
        self._reporter, self._dependencies = reporter, dependencies or NodeDependencies()
        self._checkpoints = CheckpointManager(
            settings.checkpoint,
            settings.keep,
            board,
            settings.job,
            alone=settings.coordinator is None,
        )
        limits = WorldLimits(
            *settings.nodes,
            gather_s=self._dependencies.gather_s,
            ranks=settings.ranks_per_node,
            rows=settings.total_batch or 0,
            hang_s=settings.hang_s,
        )
        self._final_writer = FinalSnapshotWriter(
            self._checkpoints, self._dependencies.checkpoint_timeout_s
        )
        self._leader = RendezvousLeader(
            board, settings.job, limits, self._newest_for_leader, self._publish_facts
        )
        self._session = RendezvousSession(
            board, settings.job, node, self._leader.step, self._dependencies.ttl_s
        )
        self._generation: Generation | None = None  # the last one that includes this node
        self._newest_number = 0  # number of the newest known generation
        self._worker_run: WorkerRun | None = None
        self._starting_since_s = 0.0  # when this node began to wait for a checkpoint; 0: no wait
        self._leaving_since_s = 0.0  # when this node began to leave; 0: it does not
        self._unreadable_since_s = 0.0  # when this node, as the leader, failed to read checkpoints
        self._unreadable: CheckpointUnavailable | None = None  # why, if it has failed for too long
        self._ended_since_s = 0.0  # when its ranks, or the job, ended; 0: not yet
        self._finished = False  # the ranks of this node have finished the job
        self._fingerprint: Fingerprint = {}
        #: The final failure of this node's ranks, if the node joined a running job and they failed
        #: before their first step. The node leaves with this error; the job continues.
        self._final_failure: RankFailure | None = None

    def run(self, stop: Stop) -> NodeOutcome:
        """Train until the job ends, or until `stop` is requested and the ranks have left.

        Raises:
            UsageError: the job file or a setting is wrong, or differs from the job's.
            NoTeacherAvailable: no teacher came in the time that the job allows.
            CheckpointUnavailable: checkpoints cannot be read when the node or a generation starts,
                or a snapshot cannot be written.
            EdlError: the job failed or continues without this node, or the job board does not
                answer at the start.
        """
        try:
            self._session.update_facts(
                host=self._host, endpoints=free_endpoints(self._host, self._settings.ranks_per_node)
            )
            self._newest(self._session.read_board())  # raises early if the checkpoints are unusable
            fingerprint = self._inspect(stop)
            if fingerprint is None:
                return NodeOutcome("left")
            self._fingerprint = fingerprint
            if not self._check_settings(self._session.read_board(), stop):
                return NodeOutcome("left")
            self._session.update_facts(fingerprint=fingerprint)
            self._session.start()
            self._session.add_event({"kind": "joined", "generation": 0, "node": self._node})
            while (outcome := self._poll(stop)) is None:
                pass
            self._session.add_event(
                {"kind": "left", "generation": self._newest_number, "node": self._node}
            )
            return outcome
        finally:
            self._close()

    def _inspect(self, stop: Stop) -> Fingerprint | None:
        """Return the fingerprint of the job on this node; None if `stop` was requested."""
        self._reporter.waiting("the functions of the job file")
        shard_server = ShardServer(self._board, self._settings.job, 1, local=True)
        order = Order(self._settings, node=self._node, inspect=True)
        workers = self._start_workers([order], shard_server)
        return inspect(workers, self._settings.hang_s, self._reporter.on_rank_message, stop)

    def _start_workers(self, orders: Sequence[Order], shard_server: ShardServer) -> WorkerGroup:
        return WorkerGroup(
            orders,
            shard_server,
            self._reporter.line,
            self._dependencies.module,
            self._dependencies.environment,
        )

    def _check_settings(self, view: RendezvousView, stop: Stop) -> bool:
        """Raise UsageError if this node's settings differ from those of the job.

        If no node trains the job, they are compared with those of the checkpoint to resume from.

        Returns:
            False if `stop` was requested.
        """
        self._check_fits_job(view)
        if view.generation is not None and has_members(view.generation.world, view.members):
            return True
        while (newest := self._newest(view)) is None:
            if stop.requested:
                return False
            self._reporter.waiting("the newest checkpoint to be verified")
        if newest.checkpoint is not None:
            self._check_fits_checkpoint(newest.checkpoint)
        return True

    def _newest(self, view: RendezvousView) -> NewestCheckpoint | None:
        """Return the checkpoint from which a generation would start now.

        None while that checkpoint is being verified.
        """
        number = view.generation.number if view.generation else 0
        return self._checkpoints.verifier.newest(number, view.history)

    def _newest_for_leader(
        self, number: int, history: CheckpointHistory
    ) -> NewestCheckpoint | None:
        """Return the newest checkpoint; if it stays unavailable, `_poll` raises the error."""
        try:
            newest = self._checkpoints.verifier.newest(number, history)
        except CheckpointUnavailable as error:
            self._unreadable_since_s = self._unreadable_since_s or time.monotonic()
            failing_s = time.monotonic() - self._unreadable_since_s
            if failing_s > self._dependencies.checkpoint_timeout_s:
                self._unreadable = error
            raise
        if newest is not None:
            self._unreadable_since_s = 0.0
        return newest

    def _check_fits_checkpoint(self, newest: Checkpoint) -> None:
        saved, accepted = newest.provenance.fingerprint, self._settings.accept_changes
        if not saved:
            log.warning(
                "the checkpoint %s has no fingerprint, as an older version wrote it: it is"
                " not checked whether the settings have changed",
                newest.location,
            )
        changes = since_checkpoint(saved, self._fingerprint)
        if refused := [change for change in changes if change.field not in accepted]:
            options = " ".join(f"--accept-change {change.field}" for change in refused)
            raise UsageError(
                f"the checkpoint {newest.location} was trained with other settings:"
                f" {differences_in_words(refused, 'in the checkpoint')}."
                f" Use those settings, give an empty --checkpoint, or allow the change: {options}"
            )
        if changes:
            self._reporter.say(
                f"accepted changes: {differences_in_words(changes, 'in the checkpoint')}"
            )

    def _check_fits_job(self, view: RendezvousView) -> None:
        world = view.generation.world if view.generation else None
        self._check_equal(expected_fingerprint(world, view.members), "in the job")

    def _check_equal(self, expected: Fingerprint, where: str) -> None:
        if changes := differences(expected, self._fingerprint):
            raise UsageError(
                f"node {self._node} is refused, as its settings are not those of the other nodes"
                f" of job {self._settings.job}: {differences_in_words(changes, where)}."
                " Start it with the job's settings, or another job with --job NAME"
            )

    def _close(self) -> None:
        try:
            if self._worker_run is not None:
                self._worker_run.close()
        finally:
            self._session.stop()
            self._checkpoints.close()
            self._reporter.close()

    def _poll(self, stop: Stop) -> NodeOutcome | None:
        if self._worker_run is not None:
            if (result := self._worker_run.poll(_POLL_S)) is not None:
                self._report_result(result)
        else:
            time.sleep(_POLL_S)
        view = self._session.view
        if self._unreadable is not None:
            raise self._unreadable
        self._show(view)
        if view.outcome is not None:
            return self._job_ended(view.outcome)
        if stop.requested and not self._leaving_since_s:
            self._leave()
        if self._generation is None:
            self._check_fits_job(view)
        self._follow(view)
        if self._leaving_since_s and self._may_leave(view):
            if (failure := self._final_failure) is not None:
                raise _error_of(failure.error, failure.usage, failure.gave_up)
            if not self._last_written(follows_generations=True):
                return None
            return NodeOutcome("left", max(self._checkpoints.saved, self._checkpoints.snapshot, 0))
        return None

    # --- generations

    def _follow(self, view: RendezvousView) -> None:
        """Follow the board: begin a new generation, or end the ranks of a recalled one."""
        generation = view.generation
        if generation is not None and generation.number > self._newest_number:
            self._newest_number = generation.number
            self._begin(generation)
        elif self._starting_since_s and self._generation is not None:
            self._try_start(self._generation)
        for recall in [facts.recall for facts in view.facts.values() if facts.recall]:
            if self._generation is None or recall.number != self._generation.number:
                continue
            if self._worker_run is None and self._starting_since_s:  # no ranks were started yet
                self._starting_since_s = 0.0
                self._report_result(RunResult("left"))
            elif self._worker_run is not None and recall.at_once:
                self._worker_run.end(recall.reason, recall.hung)
            elif self._worker_run is not None:
                self._worker_run.leave(recall.reason)

    def _begin(self, generation: Generation) -> None:
        if self._worker_run is not None:
            log.warning(
                "generation %d began before this node had ended its ranks", generation.number
            )
            self._worker_run.close()
            self._worker_run = None
        self._starting_since_s = self._unreadable_since_s = 0.0
        world = generation.world
        if self._node in world.barred:
            raise EdlError(f"the job goes on without node {self._node}: {world.reason}")
        takes_part = self._node in world.nodes
        if takes_part:
            expected = {**world.fingerprint, **world.data_order}
            self._check_equal(expected, f"in generation {world.number}")
        self._reporter.generation(generation, takes_part)
        self._checkpoints.begin(generation, writes=world.keeper == self._node)
        self._session.update_facts(
            phase="running" if takes_part else "waiting",
            generation=generation.number,
            failures=(),
            ending="",
            snapshot=self._checkpoints.snapshot,
            saved=0,
        )
        if takes_part:
            self._generation, self._starting_since_s = generation, time.monotonic()
            self._try_start(generation)

    def _try_start(self, generation: Generation) -> None:
        """Start the ranks if the checkpoint of the generation is available.

        If it stays unavailable, raise an error, or report that the start failed.
        """
        checkpoint: Checkpoint | None = None
        unreadable: CheckpointUnavailable | None = None
        step, is_missing = generation.world.restored_step, False
        if generation.world.origin is not None:
            if not self._checkpoints.search_due:
                return
            try:
                history = (self._session.view.generation or generation).history
                checkpoint = self._checkpoints.find(generation.world.origin, history)
                is_missing = checkpoint is None and not generation.world.keeper
            except CheckpointUnavailable as error:
                log.warning("%s; the next attempt follows", error)
                unreadable = error
            if checkpoint is None:
                waited_s = time.monotonic() - self._starting_since_s
                if waited_s > self._dependencies.checkpoint_timeout_s:
                    facts = self._session.view.facts.items()
                    nodes = [
                        node
                        for node, info in facts
                        if info.generation == generation.number and info.saved >= step
                        if unreadable is None
                    ]
                    raise_if_unreachable(self._checkpoints, step, waited_s, self._node, nodes)
                    if unreadable is not None:
                        raise unreadable
                    if is_missing:  # it was removed or damaged after the leader had verified it
                        place = self._checkpoints.url
                        why = f"no node sees the checkpoint of step {step} at {place} any more"
                        self._report_failed_start(generation, why)
                return
            self._session.update_facts(saved=step)
        self._starting_since_s = 0.0
        self._ended_since_s = 0.0
        self._checkpoints.set_provenance(checkpoint, self._fingerprint)
        orders = self._orders(generation, checkpoint)
        local = len(generation.world.nodes) == 1
        shard_server = ShardServer(self._board, self._settings.job, generation.number, local)
        try:
            workers = self._start_workers(orders, shard_server)
        except EdlError as error:
            self._report_failed_start(generation, str(error))
            return
        self._worker_run = WorkerRun(workers, step, self._on_rank_message)
        if self._leaving_since_s:
            self._worker_run.leave("this node leaves")

    def _report_failed_start(self, generation: Generation, why: str) -> None:
        self._starting_since_s = 0.0
        rank, step = generation.first_rank(self._node), generation.world.restored_step
        failure = RankFailure(generation.number, self._node, rank, error=why, restored=step)
        self._report_result(RunResult("failed", (failure,)))

    def _orders(self, generation: Generation, checkpoint: Checkpoint | None) -> list[Order]:
        first = generation.first_rank(self._node)
        saved = checkpoint.provenance.fingerprint if checkpoint else {}
        order_of_data = {**data_order(self._fingerprint, saved), **generation.world.data_order}
        return [
            Order(
                self._settings,
                generation=generation.number,
                rank=first + local,
                world=len(generation.endpoints),
                local_rank=local,
                node=self._node,
                endpoints=generation.endpoints,
                restore=checkpoint.location if checkpoint else "",
                snapshot=() if local else self._checkpoints.keys,
                restarts_epoch=order_of_data["restarts_epoch"],
                optimizer_changes=optimizer_changes(self._fingerprint, saved),
            )
            for local in range(self._settings.ranks_per_node)
        ]

    def _report_result(self, result: RunResult) -> None:
        """Report how the ranks of this node ended."""
        if self._worker_run is not None:
            self._worker_run.close()
            self._worker_run = None
        for failure in result.failures:
            self._reporter.failed(failure)
        self._ended_since_s = time.monotonic()
        self._finished = result.ending == "finished"
        world = self._generation.world if self._generation else None
        spared = [failure for failure in result.failures if world and world.spares_others(failure)]
        if spared:
            self._final_failure, self._leaving_since_s = spared[0], self._ended_since_s
        self._session.update_facts(
            leaving=bool(self._leaving_since_s),
            phase="ended",
            ending=result.ending,
            failures=result.failures,
            result=result.result,
            snapshot=self._checkpoints.snapshot,
            endpoints=free_endpoints(self._host, self._settings.ranks_per_node),
        )

    # --- messages of ranks and of the leader

    def _on_rank_message(self, rank: RankProcess, message: FromRank) -> None:
        number = rank.order.generation
        match message:
            case Saved():
                self._session.update_facts(snapshot=message.step)
                # The first node of a generation writes its checkpoints.
                if self._generation and self._generation.world.nodes[0] == self._node:
                    self._checkpoints.persister.wake()
            case Scaled() if rank.number == 0:
                self._session.add_event({"kind": "scaled", "generation": number, **asdict(message)})
            case Ready() | Progress():
                self._session.report(number, rank.number, report_of(rank))
        self._reporter.on_rank_message(rank, message)

    def _publish_facts(self, recall: RecallWorld | None, waiting_for: str) -> None:
        self._session.update_facts(recall=recall, says=waiting_for)

    def _show(self, view: RendezvousView) -> None:
        """Show what the node waits for."""
        problem = self._checkpoints.persister.problem
        self._reporter.leader_waits(
            next((facts.says for facts in view.facts.values() if facts.says), "")
        )
        if self._worker_run is not None:
            self._reporter.waiting(self._worker_run.shard_server.waiting)
        elif self._starting_since_s and self._generation is not None:
            why = f": {problem}" if problem else ""
            step = self._generation.world.restored_step
            self._reporter.waiting(f"the checkpoint of step {step}{why}")
        elif self._final_writer.is_writing and problem:
            self._reporter.waiting(f"the last checkpoint to be written: {problem}")
        else:
            self._reporter.waiting(
                "the end of the job" if self._finished else "the next generation"
            )

    # --- the end

    def _leave(self) -> None:
        """Begin to leave: ask the ranks to leave at a safe point."""
        self._leaving_since_s = time.monotonic()
        self._reporter.say("leaving at the next safe point; another signal ends this node at once")
        self._session.update_facts(leaving=True)
        if self._worker_run is not None:
            self._worker_run.leave("this node leaves")

    def _may_leave(self, view: RendezvousView) -> bool:
        """Whether this leaving node may go: none needs it, the board is away, or time is up."""
        if self._worker_run is not None or self._starting_since_s:
            return False
        if self._generation is None or self._session.away:
            return True
        others = [
            name for name, facts in view.facts.items() if name != self._node and not facts.leaving
        ]
        since_s = max(self._ended_since_s, self._leaving_since_s)
        timed_out = time.monotonic() - since_s > _LEAVE_S
        return not others or self._newest_number > self._generation.number or timed_out

    def _job_ended(self, outcome: Mapping[str, Any]) -> NodeOutcome | None:
        """Return how the job ended; None until the ranks have ended and the snapshot is written."""
        failed = outcome.get("kind") == "failed"
        if self._worker_run is not None:
            if failed:
                self._worker_run.end("the job ended")
            elif not self._ended_since_s:
                self._ended_since_s = time.monotonic()
            elif time.monotonic() - self._ended_since_s > _FINISH_S:
                self._worker_run.end("the job ended")
            return None
        try:
            if not self._last_written(follows_generations=False):
                return None
        except CheckpointUnavailable as error:
            if not failed:
                raise
            log.error("%s", error)  # below, raise the error that ended the job
        if failed:
            usage, gave_up = bool(outcome.get("usage")), bool(outcome.get("gave_up"))
            raise _error_of(str(outcome.get("report")), usage, gave_up)
        return NodeOutcome("finished", int(outcome.get("step", 0)), outcome.get("metrics", {}))

    def _last_written(self, *, follows_generations: bool) -> bool:
        """Whether the newest snapshot is safe without this node; see `_final_writer.may_leave`."""
        if self._settings.checkpoint is None or self._generation is None:
            return True
        first = self._generation.world.nodes[0]
        writer_is_there = first != self._node and first in self._session.view.facts
        return self._final_writer.may_leave(writer_is_there, follows_generations)


def _error_of(report: str, usage: bool, gave_up: bool) -> EdlError:
    """Return the error of the command after a final failure of the job or of this node."""
    if gave_up:
        return NoTeacherAvailable(report)
    return UsageError(report) if usage else EdlError(report)
