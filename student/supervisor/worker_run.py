"""One generation on this node: its ranks run until they are done, fail, or are to end.

Ranks ask for shards of an epoch. Where all ranks of a world are on one node, the shards are in the
supervisor's own memory, so that a Redis that is away holds up nobody. Otherwise a question is asked
again until Redis is back. Questions have numbers: one whose answer was lost on its way is answered
by the same shard again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...coordinator.jobs import JobBoard
from ...coordinator.store.memory_store import MemoryStore
from ...errors import GenerationSuperseded, UnavailableError
from ...scheduler.students import failures
from ...scheduler.students.failures import FailureKind, RankFailure
from ...scheduler.students.shards import Shard
from ...scheduler.students.world import Ending
from ..words import EXIT_AGAIN, Ask, Failed, Finished, FromRank, Left, Order
from .workers import RankProcess, WorkerGroup

log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.5
_OWN: Final = "own"


class ShardServer:
    """Answers of one generation, until `close`.

    Args:
        board: where the shards are.
        job: its name there.
        generation: in whose name it is asked.
        local: all ranks are on this node: `board` is not asked.
    """

    def __init__(self, board: JobBoard, job: str, generation: int, local: bool) -> None:
        self._board, self._job, self._generation = board, job, generation
        self._closed = threading.Event()
        self._away = ""
        if local:
            self._board = own = JobBoard(MemoryStore())
            fence = own.lead(job, _OWN, 3600.0)
            assert fence is not None  # nobody else has this board
            own.publish(job, fence, generation, {})

    @property
    def waiting(self) -> str:
        """What questions wait for, in words; empty: nothing."""
        if not self._away:
            return ""
        return f"shards, as the job board is away: {self._away}"

    def answer(self, rank: int, ask: Ask, alive: Callable[[], bool]) -> Any:
        """Ask the board, again while it does not answer and the rank is `alive()`.

        Raises:
            GenerationSuperseded: the world has changed, or ended.
        """
        while alive() and not self._closed.is_set():
            try:
                value = self._ask(rank, ask)
            except UnavailableError as error:
                if not self._away:
                    log.warning("ranks go on with the shards they have leased: %s", error)
                self._away = str(error)
                self._closed.wait(_AGAIN_S)
            else:
                self._away = ""
                return value
        raise GenerationSuperseded(f"generation {self._generation} of {self._job} has ended")

    def close(self) -> None:
        """Nothing is answered any more."""
        self._closed.set()

    def _ask(self, rank: int, ask: Ask) -> Any:
        if ask.what == "fill":
            shards = [Shard(start, stop) for start, stop in ask.shards]
            self._board.fill(self._job, self._generation, ask.epoch, shards)
            return None
        if ask.what == "lease":
            shard = self._board.lease(
                self._job, self._generation, ask.epoch, rank, ask.number, ask.most or None
            )
            return None if shard is None else [shard.start, shard.stop]
        self._board.done(self._job, self._generation, ask.epoch, rank, ask.start, ask.stop)
        return None


log = logging.getLogger(__name__)

#: Behind a rank that failed the others of its node end by themselves, or are ended after so long.
PEERS_S: Final = 2.0
#: Behind one that ended in good order; a snapshot and the last evaluation may be under way.
FOLLOW_S: Final = 60.0
#: A rank that lives says so every second while it waits.
_SILENT_S: Final = 4.0
#: Of a failure so many are told: those of all that are remembered have to fit on the board.
_POSITIONS: Final = 1024


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a generation ended on this node.

    Attributes:
        ending: of its ranks.
        failures: of those that failed.
        result: step and metrics, where the job is done.
    """

    ending: Ending
    failures: tuple[RankFailure, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)


class WorkerRun:
    """The ranks of `orders`; used by the supervisor's thread alone.

    Args:
        orders: of this node's ranks, at least one.
        crew: their processes.
        desk: who answers them.
        restored: step of the checkpoint that they begin with.
        heard: called with each thing that a rank says.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        crew: WorkerGroup,
        desk: ShardServer,
        restored: int,
        heard: Callable[[RankProcess, FromRank], None],
    ) -> None:
        self.crew, self.desk = crew, desk
        self.generation, self.node = orders[0].generation, orders[0].node
        self._hang_s = orders[0].settings.hang_s
        self._restored = restored
        self._heard = heard
        self._asked_to_leave = ""
        self._blocked = ""  # why the leader says that ranks hang
        self._first_end: tuple[float, bool] | None = None  # when, and whether in good order

    def turn(self, wait_s: float) -> RunResult | None:
        """Hear the ranks and watch over them; what became of them once all have ended."""
        for rank, word in self.crew.news(wait_s):
            if isinstance(word, int):
                self._ended(rank)
            else:
                self._heard(rank, word)
        running = self.crew.running
        if not running:
            return self._conclude()
        if any(isinstance(rank.last, Left) for rank in self.crew.ranks):
            self.desk.close()  # who has left waits for no answer
        now_s = time.monotonic()
        if not self.desk.waiting:  # else all stand still for Redis
            for number in failures.hung([rank.sign() for rank in running], self._hang_s, now_s):
                log.warning("rank %d hangs: no step for %g s; it is killed", number, self._hang_s)
                self.crew.kill("hang", [number])
        self._round_up(running, now_s)
        return None

    def leave(self, why: str) -> None:
        """Have the ranks go at the next safe point; once is enough."""
        if not self._asked_to_leave:
            self._asked_to_leave = why
            self.crew.leave()

    def end(self, why: str, hung: Sequence[int] = ()) -> None:
        """End the ranks at once; that is no failure but of those that `hung`."""
        self._asked_to_leave = self._asked_to_leave or why
        self._blocked = self._blocked or (why if hung else "")
        self.desk.close()
        self.crew.kill("hang", hung)
        self.crew.kill(why)

    def close(self) -> None:
        """End what is left, and forget it."""
        self.desk.close()
        self.crew.close()

    def _ended(self, rank: RankProcess) -> None:
        safe = rank.code == 0 or (isinstance(rank.last, Left) and rank.last.safe)
        log.info("rank %d %s", rank.number, rank.ending())
        if self._first_end is None or (self._first_end[1] and not safe):
            self._first_end = (time.monotonic(), safe)

    def _round_up(self, running: Sequence[RankProcess], now_s: float) -> None:
        """End ranks that do not follow one of this node that has ended."""
        if self._first_end is None:
            return
        at_s, safe = self._first_end
        if now_s - at_s < (FOLLOW_S if safe else PEERS_S):
            return
        for rank in running:
            silent = rank.suspended or now_s - rank.heard_s > _SILENT_S
            others = any(r.code not in (None, 0, EXIT_AGAIN) for r in self.crew.ranks)
            self.crew.kill("hang" if silent and not others else "peers", [rank.number])

    def _conclude(self) -> RunResult:
        self.desk.close()
        failures = [failure for rank in self.crew.ranks if (failure := self._failure(rank))]
        done = [
            rank.last
            for rank in self.crew.ranks
            if rank.code == 0 and isinstance(rank.last, Finished)
        ]
        if done:
            told = {"step": done[0].step, "metrics": dict(done[0].metrics)}
            return RunResult("finished", (), told)
        if failures:
            return RunResult("failed", tuple(failures))
        lefts = [rank.last for rank in self.crew.ranks if isinstance(rank.last, Left)]
        if not self._asked_to_leave and not any(left.safe for left in lefts):
            rank = self.crew.ranks[0]
            why = lefts[0].why if lefts else rank.ending()
            return RunResult("left", (self._told(rank, "adrift", why or "they are gone"),))
        return RunResult("left")

    def _failure(self, rank: RankProcess) -> RankFailure | None:
        if rank.killed_for == "hang":
            how = "it was suspended" if rank.suspended else "it did not say why"
            if self._blocked:
                waits = "" if rank.peers_s else rank.waiting_for
                how = self._blocked + (f", and it for {waits}" if waits else "")
            return self._told(rank, "hang", f"no step for {self._hang_s:g} s or more; {how}")
        if rank.killed_for or rank.code == 0 or isinstance(rank.last, Left):
            return None
        if isinstance(rank.last, Failed):
            last = rank.last
            return RankFailure(
                self.generation,
                self.node,
                rank.number,
                "crash",
                last.step,
                last.epoch,
                tuple(last.positions[:_POSITIONS]),
                last.error,
                last.usage,
                self._restored,
                last.gave_up,
            )
        if rank.code == EXIT_AGAIN:
            return None
        said = next((line for line in reversed(rank.process.tail()) if line.strip()), "")
        return self._told(
            rank, "killed", rank.ending() + (f"; its last line: {said}" if said else "")
        )

    def _told(self, rank: RankProcess, how: FailureKind, error: str) -> RankFailure:
        step = max(rank.step, rank.ready.step) + 1 if rank.ready else 0
        epoch = rank.progress.epoch if rank.progress else rank.ready.epoch if rank.ready else 0
        return RankFailure(
            self.generation,
            self.node,
            rank.number,
            how,
            step,
            epoch,
            error=error,
            restored=self._restored,
        )
