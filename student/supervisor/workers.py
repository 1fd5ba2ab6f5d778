"""The processes of the ranks of one generation on this node, and the reports about them."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from ...errors import EdlError, UsageError, WireError
from ...lifecycle import Stop
from ...scheduler.students.failures import RankProgress, allowed_s, hung
from ...scheduler.students.world import Fingerprint
from ...supervise import Process, describe_exit, python_command, start
from ..link import RankPort
from ..words import Ask, Failed, Finished, FromRank, Inspected, Leave, Left, Order, Progress, Ready

log = logging.getLogger(__name__)

RANK_MODULE: Final = "edl.student.rank"
_KILL_S: Final = 10.0
_INSPECT_TURN_S: Final = 0.05


class RankQuestions(Protocol):
    """Answers what ranks ask while they train."""

    def answer(self, rank: int, ask: Ask, alive: Callable[[], bool]) -> Any:
        """The value for `RankPort.answer`; raises one of our errors for `RankPort.refuse`."""


@dataclass(slots=True)
class RankProcess:
    """One student process, as its supervisor knows it; changed by the supervisor's thread alone."""

    order: Order
    process: Process
    port: RankPort
    started_s: float
    ready: Ready | None = None
    ready_s: float = 0.0
    progress: Progress | None = None
    at_s: float = 0.0
    heard_s: float = 0.0
    last: Finished | Left | Failed | None = None
    code: int | None = None
    killed_for: str = ""
    waiting_for: str = ""
    peers_s: float = 0.0
    rates: list[float] = field(default_factory=list)
    asks: queue.SimpleQueue[Ask | None] = field(default_factory=queue.SimpleQueue)

    @property
    def number(self) -> int:
        return self.order.rank

    @property
    def step(self) -> int:
        """The last step that it told of in this generation; 0: none."""
        return self.progress.step if self.progress else 0

    @property
    def suspended(self) -> bool:
        """Whether the system has stopped it by a signal."""
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        return False

    def sign(self) -> RankProgress:
        """For the watch over hangs."""
        return RankProgress(
            self.number,
            self.step,
            self.at_s,
            self.heard_s,
            self.ready is not None,
            self.waiting_for,
            self.suspended,
        )

    def ending(self) -> str:
        """In words, how its process ended."""
        return describe_exit(self.code or 0)


class WorkerGroup:
    """Starts one process for each order, and collects what they say.

    Args:
        orders: one for each rank of this node.
        asked: who answers their questions.
        echo: called with a rank's number and each line that it prints.
        module: that is run.
        environment: set on top of this process's own.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        asked: RankQuestions,
        echo: Callable[[int, str], None],
        module: str = RANK_MODULE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._asked = asked
        self._words: queue.SimpleQueue[tuple[RankProcess, FromRank | int]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.ranks: list[RankProcess] = []
        try:
            for order in orders:
                self.ranks.append(_start(order, echo, module, dict(environment or {})))
        except BaseException:
            self.kill("the others did not start")
            for rank in self.ranks:
                rank.process.wait(_KILL_S)
                rank.port.close()
            raise
        for rank in self.ranks:
            for does, run in (("hear", self._hear), ("answer", self._answer)):
                name = f"edl-{does}-rank-{rank.number}"
                thread = threading.Thread(target=run, args=(rank,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    @property
    def running(self) -> list[RankProcess]:
        """Ranks whose processes have not ended."""
        return [rank for rank in self.ranks if rank.code is None]

    def news(self, wait_s: float) -> list[tuple[RankProcess, FromRank | int]]:
        """What ranks said, and the exit codes of those that ended; waits for the first of it."""
        found: list[tuple[RankProcess, FromRank | int]] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._words.get(timeout=wait_s))
            while True:
                found.append(self._words.get_nowait())
        for rank, word in found:
            _note(rank, word)
        return found

    def leave(self) -> None:
        """Have all ranks go at the next safe point."""
        for rank in self.running:
            rank.port.send(Leave())

    def kill(self, why: str, numbers: Sequence[int] | None = None) -> None:
        """End ranks at once, all of them or those of `numbers`; `why` is remembered."""
        for rank in self.running:
            if numbers is None or rank.number in numbers:
                rank.killed_for = rank.killed_for or why
                rank.process.send_signal(signal.SIGCONT)
                rank.process.kill()

    def close(self) -> None:
        """End what is left, without a trace."""
        self.kill("the supervisor ends")
        for rank in self.ranks:
            rank.process.wait(_KILL_S)
        for thread in self._threads:
            thread.join(_KILL_S)
        for rank in self.ranks:
            rank.port.close()

    def _hear(self, rank: RankProcess) -> None:
        try:
            while (word := rank.port.receive()) is not None:
                if isinstance(word, Ask):
                    rank.asks.put(word)
                else:
                    self._words.put((rank, word))
        except (WireError, OSError) as error:
            log.error("rank %d is killed, as it sent what is no message: %s", rank.number, error)
            rank.process.kill()
        rank.asks.put(None)
        code = rank.process.wait()
        self._words.put((rank, 0 if code is None else code))

    def _answer(self, rank: RankProcess) -> None:
        """Beside the hearing: an answer may wait for Redis, and the rank is heard meanwhile."""
        while (ask := rank.asks.get()) is not None:
            try:
                value = self._asked.answer(rank.number, ask, lambda: rank.process.alive)
                rank.port.answer(ask, value)
            except EdlError as error:
                rank.port.refuse(ask, error)
            except Exception:
                log.exception("rank %d is killed: what it asked has no answer", rank.number)
                rank.process.kill()


def inspect(
    crew: WorkerGroup, hang_s: float, heard: Callable[[RankProcess, FromRank], None], stop: Stop
) -> Fingerprint | None:
    """The fingerprint that the only rank of `crew`, whose order says `inspect`, finds.

    Args:
        crew: is closed.
        hang_s: as of a rank that starts, `scheduler.students.failures`.
        heard: called with what the rank says.
        stop: where it is requested, the rank is ended, and None is returned.

    Raises:
        UsageError: the job file or a setting is wrong.
        EdlError: the rank ended or hung without a word.
    """
    (rank,) = crew.ranks
    found: Inspected | Failed | None = None
    try:
        while crew.running:
            if stop.requested:
                return None
            for _, word in crew.news(_INSPECT_TURN_S):
                if isinstance(word, Inspected | Failed):
                    found = word
                if not isinstance(word, int):
                    heard(rank, word)
            if hung([rank.sign()], hang_s, time.monotonic()):
                raise EdlError(
                    "the functions of the job file did not return within"
                    f" {allowed_s(rank.sign(), hang_s):g} s; a larger --hang gives them longer"
                )
    finally:
        crew.close()
    if isinstance(found, Inspected):
        return found.fingerprint
    if found is not None:
        raise (UsageError if found.usage else EdlError)(found.error)
    said = next((line for line in reversed(rank.process.tail()) if line.strip()), "nothing")
    raise EdlError(f"the job file could not be inspected: {rank.ending()}; its last line: {said}")


def _start(
    order: Order, echo: Callable[[int, str], None], module: str, environment: dict[str, str]
) -> RankProcess:
    port, fd = RankPort.pair()
    try:
        command = python_command(f"rank {order.rank}", module, fd, pass_fds=(fd,), env=environment)
        process = start(command, echo=lambda line: echo(order.rank, line))
    except BaseException:
        port.close()
        raise
    finally:
        os.close(fd)
    if not order.inspect:
        log.info("rank %d is process %d", order.rank, process.pid)
    now_s = time.monotonic()
    rank = RankProcess(order, process, port, now_s, at_s=now_s, heard_s=now_s)
    port.send(order)
    return rank


#: Steps that the speed of a rank is judged by.
_LOOKED_BACK: Final = 20


def _note(rank: RankProcess, word: FromRank | int) -> None:
    """Remember what came of a rank."""
    rank.heard_s = now_s = time.monotonic()
    match word:
        case Ready():
            rank.ready, rank.ready_s, rank.at_s = word, now_s, now_s
        case Progress():
            rank.waiting_for, rank.peers_s = word.waiting_for, word.peers_s
            if word.waiting_for or (rank.progress and word.step <= rank.progress.step):
                return  # a sign of life, not of a step
            rank.progress, rank.at_s = word, now_s
            if word.rows:
                rank.rates.append(word.step_s / word.rows)
                del rank.rates[:-_LOOKED_BACK]
        case Finished() | Left() | Failed():
            rank.last = word
        case int():
            rank.code = word


def report_of(rank: RankProcess) -> dict[str, Any]:
    """What `edl status` and the leader see of a rank."""
    told: dict[str, Any] = {
        "node": rank.order.node,
        "pid": rank.process.pid,
        "step": rank.step,
        "row_s": [round(value, 9) for value in rank.rates],
        "left_s": left_s(rank),
    }
    if rank.ready is not None:
        ready = rank.ready
        told |= {"began_at": ready.step, "steps": ready.steps, "total_batch": ready.total_batch}
    if rank.progress is not None:
        told |= asdict(rank.progress)
    return told | {"waiting_for": rank.waiting_for, "peers_s": rank.peers_s}


def left_s(rank: RankProcess) -> float | None:
    """Seconds to the end of the job, at the pace of this generation; None: not known."""
    if rank.ready is None or not rank.ready.steps or rank.progress is None:
        return None
    done = rank.progress.step - rank.ready.step
    if done <= 0:
        return None
    took_s = rank.at_s - rank.ready_s
    return round((rank.ready.steps - rank.progress.step) * took_s / done, 3)
