"""The ranks of one generation on this node: their processes, and how they end."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...proto.channel import Channel
from ...runtime.errors import EdlError, UsageError, WireError
from ...runtime.lifecycle import Stop
from ...runtime.supervise import Process, describe_exit, python_command, start
from ...scheduler.students.failures import FailureKind, RankFailure, RankProgress, allowed_s, hung
from ...scheduler.students.fingerprint import Fingerprint
from ...scheduler.students.world import Ending
from ..link import ShardServer
from ..messages import (
    EXIT_AGAIN,
    Answer,
    Ask,
    Failed,
    Finished,
    FromRank,
    FromSupervisor,
    Inspected,
    Leave,
    Left,
    Order,
    Progress,
    Ready,
    from_rank,
)

log = logging.getLogger(__name__)

RANK_MODULE: Final = "edl.student.rank"
_KILL_S: Final = 10.0
#: If `WorkerGroup.receive` is called later than expected by more than this many seconds, this
#: process was suspended.
_PAUSE_S: Final = 1.0
_INSPECT_POLL_S: Final = 0.05


@dataclass(slots=True)
class RankProcess:
    """One student process; only the supervisor's thread sets its attributes.

    Attributes:
        order: the first message to the rank.
        process: the process.
        channel: connection to the process; any thread may send.
        ready: the rank's `Ready` message; None: it has not arrived.
        ready_s: when `ready` arrived; this and the other times are of the monotonic clock.
        progress: the last report of a step, or of the evaluation after it; None: none yet.
        at_s: when `progress` arrived; before that, when `ready` arrived or the process started. A
            pause of the supervisor moves `at_s` and `heard_s` forward.
        heard_s: when the rank's last message arrived.
        last: the rank's `Finished`, `Left` or `Failed` message; None: none has arrived.
        code: exit code of the process; None: it has not been received.
        killed_for: why the supervisor killed it; empty: the supervisor did not.
        was_suspended: a signal had stopped the process when it was killed.
        waiting_for: what the rank waits for, as text; empty: nothing.
        peers_s: seconds for which the rank has waited for other ranks without a break.
        rates: seconds per row of the latest steps.
        asks: unanswered questions; None ends the thread that answers them.
    """

    order: Order
    process: Process
    channel: Channel
    ready: Ready | None = None
    ready_s: float = 0.0
    progress: Progress | None = None
    at_s: float = 0.0
    heard_s: float = 0.0
    last: Finished | Left | Failed | None = None
    code: int | None = None
    killed_for: str = ""
    was_suspended: bool = False
    waiting_for: str = ""
    peers_s: float = 0.0
    rates: list[float] = field(default_factory=list)
    asks: queue.SimpleQueue[Ask | None] = field(default_factory=queue.SimpleQueue)

    @property
    def number(self) -> int:
        return self.order.rank

    @property
    def step(self) -> int:
        """The last step that the rank reported in this generation; 0: none."""
        return self.progress.step if self.progress else 0

    @property
    def suspended(self) -> bool:
        """Whether a signal has stopped the process."""
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        return False

    def liveness(self) -> RankProgress:
        """Return the rank's progress, for the detection of hangs."""
        return RankProgress(
            rank=self.number,
            step=self.step,
            at_s=self.at_s,
            heard_s=self.heard_s,
            started=self.ready is not None,
            waiting_for=self.waiting_for,
            suspended=self.suspended,
        )

    def ending(self) -> str:
        """Return how the process ended, as text."""
        return describe_exit(self.code or 0)


class WorkerGroup:
    """Starts one process for each order, and collects their messages.

    Args:
        orders: one for each rank of this node.
        shard_server: answers the ranks' questions.
        echo: called with the number of a rank and each line that the rank prints.
        module: module that each process runs.
        environment: variables to add to those of this process.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        shard_server: ShardServer,
        echo: Callable[[int, str], None],
        module: str = RANK_MODULE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.shard_server = shard_server
        self._messages: queue.SimpleQueue[tuple[RankProcess, FromRank | int]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.ranks: list[RankProcess] = []
        try:
            for order in orders:
                self.ranks.append(_start(order, echo, module, dict(environment or {})))
        except BaseException:
            self.kill("the others did not start")
            for rank in self.ranks:
                rank.process.wait(_KILL_S)
                rank.channel.close()
            raise
        for rank in self.ranks:
            for verb, run in (("receive", self._receive), ("answer", self._answer)):
                name = f"edl-{verb}-rank-{rank.number}"
                thread = threading.Thread(target=run, args=(rank,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        self._received_s = time.monotonic()  # when `receive` last returned

    @property
    def running(self) -> list[RankProcess]:
        """Ranks with processes that have not ended."""
        return [rank for rank in self.ranks if rank.code is None]

    def receive(self, wait_s: float) -> list[tuple[RankProcess, FromRank | int]]:
        """Return messages and exit codes of ranks; waits up to `wait_s` for the first."""
        messages: list[tuple[RankProcess, FromRank | int]] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._messages.get(timeout=wait_s))
            while True:
                messages.append(self._messages.get_nowait())
        now_s = time.monotonic()
        self._leave_out_pause(now_s, now_s - self._received_s - wait_s)
        self._received_s = now_s
        for rank, message in messages:
            _record(rank, message)
        return messages

    def leave(self) -> None:
        """Ask all ranks to leave at the next safe point."""
        for rank in self.running:
            _send(rank, Leave())

    def kill(self, why: str, numbers: Sequence[int] | None = None) -> None:
        """Kill all running ranks, or those in `numbers`; record `why`, unless a reason is known."""
        for rank in self.running:
            if numbers is None or rank.number in numbers:
                rank.killed_for = rank.killed_for or why
                rank.was_suspended |= rank.suspended
                rank.process.send_signal(signal.SIGCONT)
                rank.process.kill()

    def close(self) -> None:
        """Kill the ranks that still run, and release all resources."""
        self.kill("the supervisor ends")
        for rank in self.ranks:
            rank.process.wait(_KILL_S)
        for thread in self._threads:
            thread.join(_KILL_S)
        for rank in self.ranks:
            rank.channel.close()

    def _leave_out_pause(self, now_s: float, pause_s: float) -> None:
        """Do not count a long pause of this process as silence of the ranks.

        A suspended process, as after Ctrl-Z or `docker pause`, cannot read the ranks' reports. The
        ranks may have been suspended as well.
        """
        if pause_s <= _PAUSE_S:
            return
        for rank in self.running:
            rank.at_s = min(now_s, rank.at_s + pause_s)
            rank.heard_s = min(now_s, rank.heard_s + pause_s)

    def _receive(self, rank: RankProcess) -> None:
        try:
            for message in map(from_rank, rank.channel):
                if isinstance(message, Ask):
                    rank.asks.put(message)
                else:
                    self._messages.put((rank, message))
        except (WireError, OSError) as error:
            log.error("killing rank %d: %s", rank.number, error)
            rank.process.kill()
        rank.asks.put(None)
        code = rank.process.wait()
        self._messages.put((rank, 0 if code is None else code))

    def _answer(self, rank: RankProcess) -> None:
        """Answer questions; in a separate thread, as an answer may wait for Redis."""
        while (ask := rank.asks.get()) is not None:
            try:
                value = self.shard_server.answer(rank.number, ask, lambda: rank.process.alive)
                _send(rank, Answer(ask.number, value))
            except EdlError as error:
                _send(rank, Answer(ask.number, str(error), type(error).__name__))
            except Exception:
                log.exception("killing rank %d: answering its question failed", rank.number)
                rank.process.kill()


def inspect(
    workers: WorkerGroup,
    hang_s: float,
    on_message: Callable[[RankProcess, FromRank], None],
    stop: Stop,
) -> Fingerprint | None:
    """Return the fingerprint of the job; None if `stop` was requested.

    Args:
        workers: a single rank with an order to `inspect`; closed afterwards.
        hang_s: as in `TrainSettings`.
        on_message: called with each message of the rank.
        stop: ends the inspection.

    Raises:
        UsageError: the job file or a setting is wrong.
        EdlError: the rank failed, hung, or ended without a message.
    """
    (rank,) = workers.ranks
    last: Inspected | Failed | None = None
    try:
        while workers.running:
            if stop.requested:
                return None
            for _, message in workers.receive(_INSPECT_POLL_S):
                if isinstance(message, Inspected | Failed):
                    last = message
                if not isinstance(message, int):
                    on_message(rank, message)
            if hung([rank.liveness()], hang_s, time.monotonic()):
                raise EdlError(
                    "the functions of the job file did not return within"
                    f" {allowed_s(rank.liveness(), hang_s):g} s; a larger --hang allows more time"
                )
    finally:
        workers.close()
    if isinstance(last, Inspected):
        return last.fingerprint
    if last is not None:
        raise (UsageError if last.usage else EdlError)(last.error)
    line = rank.process.last_line or "nothing"
    raise EdlError(f"the job file could not be inspected: {rank.ending()}; its last line: {line}")


def _start(
    order: Order, echo: Callable[[int, str], None], module: str, environment: dict[str, str]
) -> RankProcess:
    channel, fd = Channel.pair()
    try:
        command = python_command(f"rank {order.rank}", module, fd, pass_fds=(fd,), env=environment)
        process = start(command, echo=lambda line: echo(order.rank, line))
    except BaseException:
        channel.close()
        raise
    finally:
        os.close(fd)
    if not order.inspect:
        log.info("rank %d is process %d", order.rank, process.pid)
    now_s = time.monotonic()
    rank = RankProcess(order, process, channel, at_s=now_s, heard_s=now_s)
    _send(rank, order)
    return rank


def _send(rank: RankProcess, message: FromSupervisor) -> None:
    """Send a message, unless the rank is gone."""
    rank.channel.send_all([message.to_json()])


#: Number of latest steps whose speed is reported.
_RATE_STEPS: Final = 20


def _record(rank: RankProcess, message: FromRank | int) -> None:
    """Update a rank by its message or exit code."""
    rank.heard_s = now_s = time.monotonic()
    match message:
        case Ready():
            rank.ready, rank.ready_s, rank.at_s = message, now_s, now_s
        case Progress():
            rank.waiting_for, rank.peers_s = message.waiting_for, message.peers_s
            if message.waiting_for:
                return
            previous_step, rank.progress, rank.at_s = rank.step, message, now_s
            if message.rows and message.step > previous_step:
                rank.rates.append(message.step_s / message.rows)
                del rank.rates[:-_RATE_STEPS]
        case Finished() | Left() | Failed():
            rank.last = message
        case int():
            rank.code = message


#: Seconds after which the other ranks of a node are killed if one rank has finished or left at a
#: safe point: until then they may write a snapshot or evaluate.
_OTHERS_AFTER_SAFE_END_S: Final = 60.0
#: Seconds after which they are killed if one rank has ended in another way.
_OTHERS_AFTER_LOSS_S: Final = 2.0
#: Limit of the positions in a reported failure: all remembered failures must fit on the board.
_MAX_POSITIONS: Final = 1024


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a generation ended on this node.

    Attributes:
        ending: how its ranks ended.
        failures: failures of its ranks.
        result: step and metrics, if the job is done; else empty.
    """

    ending: Ending
    failures: tuple[RankFailure, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)


class WorkerRun:
    """The run of this node's ranks in one generation; used only by the supervisor's thread.

    Args:
        workers: the processes of the ranks, at least one.
        restored_step: step of the checkpoint that they start from.
        on_message: called with each message of a rank.
    """

    def __init__(
        self,
        workers: WorkerGroup,
        restored_step: int,
        on_message: Callable[[RankProcess, FromRank], None],
    ) -> None:
        self.workers, self.shard_server = workers, workers.shard_server
        self._hang_s = workers.ranks[0].order.settings.hang_s
        self._restored_step = restored_step
        self._on_message = on_message
        self._asked_to_leave = ""
        self._hang_reason = ""  # the leader's reason why ranks hang
        # When the first rank ended, and whether it finished or left at a safe point. Once a rank
        # has ended otherwise, these are of the first such rank.
        self._first_end: tuple[float, bool] | None = None

    def poll(self, wait_s: float) -> RunResult | None:
        """Handle messages and hangs of the ranks; return the result once all have ended."""
        for rank, message in self.workers.receive(wait_s):
            if isinstance(message, int):
                self._ended(rank)
            else:
                self._on_message(rank, message)
        running = self.workers.running
        if not running:
            return self._result()
        if any(isinstance(rank.last, Left) for rank in self.workers.ranks):
            self.shard_server.close()  # so that no other rank waits for an answer
        now_s = time.monotonic()
        if not self.shard_server.waiting:  # else ranks make no step because Redis does not answer
            for number in hung([rank.liveness() for rank in running], self._hang_s, now_s):
                log.warning("rank %d hangs: no step for %g s; it is killed", number, self._hang_s)
                self.workers.kill("hang", [number])
        self._kill_remaining(running, now_s)
        return None

    def leave(self, why: str) -> None:
        """Ask the ranks to leave at the next safe point; further calls have no effect."""
        if not self._asked_to_leave:
            self._asked_to_leave = why
            self.workers.leave()

    def end(self, why: str, hung: Sequence[int] = ()) -> None:
        """Kill the ranks; only the ranks in `hung` count as failed."""
        self._asked_to_leave = self._asked_to_leave or why
        self._hang_reason = self._hang_reason or (why if hung else "")
        self.shard_server.close()
        self.workers.kill("hang", hung)
        self.workers.kill(why)

    def close(self) -> None:
        """Kill the ranks that still run, and release all resources."""
        self.shard_server.close()
        self.workers.close()

    def _ended(self, rank: RankProcess) -> None:
        safe = rank.code == 0 or (isinstance(rank.last, Left) and rank.last.safe)
        log.info("rank %d %s", rank.number, rank.ending())
        if self._first_end is None or (self._first_end[1] and not safe):
            self._first_end = (time.monotonic(), safe)

    def _kill_remaining(self, running: Sequence[RankProcess], now_s: float) -> None:
        """Kill ranks that still run some time after another rank of this node has ended."""
        if self._first_end is None:
            return
        at_s, safe = self._first_end
        if now_s - at_s < (_OTHERS_AFTER_SAFE_END_S if safe else _OTHERS_AFTER_LOSS_S):
            return
        another_failed = any(r.code not in (None, 0, EXIT_AGAIN) for r in self.workers.ranks)
        for rank in running:
            suspended = rank.suspended
            # A rank that computes may be in a long step, which is no hang yet: it notices the loss
            # itself, or `hung` finds it.
            if safe or another_failed or suspended or rank.waiting_for:
                hangs = suspended and not another_failed
                self.workers.kill("hang" if hangs else "peers", [rank.number])

    def _result(self) -> RunResult:
        self.shard_server.close()
        failures = [failure for rank in self.workers.ranks if (failure := self._failure(rank))]
        done = [
            rank.last
            for rank in self.workers.ranks
            if rank.code == 0 and isinstance(rank.last, Finished)
        ]
        if done:
            result = {"step": done[0].step, "metrics": dict(done[0].metrics)}
            return RunResult("finished", (), result)
        if failures:
            return RunResult("failed", tuple(failures))
        lefts = [rank.last for rank in self.workers.ranks if isinstance(rank.last, Left)]
        if not self._asked_to_leave and not any(left.safe for left in lefts):
            rank = self.workers.ranks[0]
            why = lefts[0].why if lefts else rank.ending()
            return RunResult("left", (self._new_failure(rank, "adrift", why or "they are gone"),))
        return RunResult("left")

    def _failure(self, rank: RankProcess) -> RankFailure | None:
        if rank.killed_for == "hang":
            cause = "it was suspended" if rank.was_suspended else "it reported no reason"
            cause = self._hang_reason or cause
            error = f"no step for {self._hang_s:g} s or more; {cause}"
            return self._new_failure(rank, "hang", error)
        if rank.killed_for or rank.code == 0 or isinstance(rank.last, Left):
            return None
        if isinstance(rank.last, Failed):
            last = rank.last
            return replace(
                self._new_failure(rank, "crash", last.error),
                step=last.step,
                epoch=last.epoch,
                positions=tuple(last.positions[:_MAX_POSITIONS]),
                usage=last.usage,
                gave_up=last.gave_up,
            )
        if rank.code == EXIT_AGAIN:
            return None
        line = rank.process.last_line
        return self._new_failure(
            rank, "killed", rank.ending() + (f"; its last line: {line}" if line else "")
        )

    def _new_failure(self, rank: RankProcess, how: FailureKind, error: str) -> RankFailure:
        step = max(rank.step, rank.ready.step) + 1 if rank.ready else 0
        epoch = rank.progress.epoch if rank.progress else rank.ready.epoch if rank.ready else 0
        return RankFailure(
            generation=rank.order.generation,
            node=rank.order.node,
            rank=rank.number,
            how=how,
            step=step,
            epoch=epoch,
            error=error,
            restored=self._restored_step,
        )
