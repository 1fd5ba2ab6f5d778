"""The rank's end of its connection to the supervisor, `RankLink`, and `ShardServer`.

The connection is a `Channel` with the messages of `messages.py`. `ShardServer` answers the rank's
questions about shards of an epoch.

If all ranks of a world are on one node, the shards are in the supervisor's memory, and training
goes on without Redis. Otherwise the server repeats a question until Redis answers. It numbers the
shards of each rank, so a repeated question leases the same shard again, and it is noticed if Redis
has lost leases.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from ..coordinator.jobs import JobBoard
from ..coordinator.store.memory_store import MemoryStore
from ..proto.channel import Channel
from ..runtime import errors
from ..runtime.errors import EdlError, GenerationSuperseded, UnavailableError, WireError
from ..scheduler.students.shards import Range
from .messages import (
    Answer,
    Ask,
    BoardCall,
    FromRank,
    FromSupervisor,
    Leave,
    Order,
    from_supervisor,
)

log = logging.getLogger(__name__)


class RankLink:
    """The rank's end of the connection; thread-safe.

    Args:
        fd: file descriptor that this process has inherited.
    """

    def __init__(self, fd: int) -> None:
        self._channel = Channel.attach(fd)
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, Answer | None] = {}  # None: not answered yet
        self._leaving = self._lost = False
        self._listener: threading.Thread | None = None

    @property
    def leaving(self) -> bool:
        """Whether the supervisor has asked this rank to leave at the next safe point."""
        return self._leaving

    @property
    def lost(self) -> bool:
        """Whether the supervisor is gone."""
        return self._lost

    def order(self) -> Order:
        """Wait for the order, the first message; then start a thread that receives the others.

        Raises:
            EdlError: the supervisor is gone, or its first message is not an order.
        """
        message = self._channel.receive()
        if message is None:
            raise EdlError("the supervisor ended before it sent this rank an order")
        order = from_supervisor(message)
        if not isinstance(order, Order):
            raise WireError(
                f"the first message to a rank must be an order, not {message['kind']!r}"
            )
        self._listener = threading.Thread(target=self._listen, name="edl-rank-link", daemon=True)
        self._listener.start()
        return order

    def send(self, message: FromRank) -> bool:
        """Send a message; False if the supervisor is gone."""
        return self._channel.send_all([message.to_json()])

    def fill(self, epoch: int, shards: Iterable[Range]) -> None:
        """Create the shards of `epoch`, as (start, stop), unless another rank has created them.

        This and `lease` raise GenerationSuperseded if the rank's generation has ended, and EdlError
        if the supervisor is gone.
        """
        self._ask("fill", epoch=epoch, shards=tuple(shards))

    def lease(self, epoch: int, most: int = 0) -> Range | None:
        """Lease the next shard of `epoch`, as (start, stop); None if none is left.

        `most` limits its rows; 0: no limit.
        """
        value = self._ask("lease", epoch=epoch, most=most)
        return None if value is None else (int(value[0]), int(value[1]))

    def close(self) -> None:
        self._channel.close()
        if self._listener is not None:
            self._listener.join()

    def _ask(self, what: BoardCall, **fields: Any) -> Any:
        """Ask, and wait for the answer while the supervisor lives."""
        number = next(self._numbers)
        with self._changed:
            self._answers[number] = None
        self.send(Ask(number, what, **fields))
        with self._changed:
            self._changed.wait_for(lambda: self._answers[number] is not None or self._lost)
            answer = self._answers.pop(number)
        if answer is None:
            raise EdlError(f"the supervisor ended before it answered {what!r}")
        if answer.error:
            kind = getattr(errors, answer.error, EdlError)
            raise kind(str(answer.value))
        return answer.value

    def _listen(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._handle(from_supervisor(message))
        finally:
            with self._changed:
                self._lost = True
                self._changed.notify_all()

    def _handle(self, message: FromSupervisor) -> None:
        match message:
            case Leave():
                self._leaving = True
            case Answer():
                with self._changed:
                    if message.number in self._answers:
                        self._answers[message.number] = message
                        self._changed.notify_all()
            case Order():
                raise WireError("a rank gets one order, not two")


_RETRY_S: Final = 0.5
_NODE_ID: Final = "own"


class ShardServer:
    """Answers the questions of ranks of one generation, until `close`.

    Args:
        board: job board with the shards.
        job: name of the job.
        generation: generation of the ranks.
        local: all ranks are on this node, so the shards are kept in memory instead of on `board`.
    """

    def __init__(self, board: JobBoard, job: str, generation: int, local: bool) -> None:
        self._board, self._job, self._generation = board, job, generation
        self._closed = threading.Event()
        self._error = ""
        self._leased = Counter[int]()  # number of shards that each rank got
        if local:
            # The clock of this store stands still, so leases and shards in it never expire.
            self._board = JobBoard(MemoryStore(clock=lambda: 0.0))
            fence = self._board.lead(job, _NODE_ID, 3600.0)
            assert fence is not None  # no other process has this board
            self._board.publish(job, fence, generation, {})

    @property
    def waiting(self) -> str:
        """What unanswered questions wait for, as text; empty: nothing."""
        if not self._error:
            return ""
        return f"shards, as the job board is away: {self._error}"

    def answer(self, rank: int, ask: Ask, alive: Callable[[], bool]) -> Any:
        """Call the board, and retry until it answers; give up once the rank is not `alive()`.

        Raises:
            GenerationSuperseded: another generation has begun, this one has ended, or the rank is
                not alive.
        """
        while alive() and not self._closed.is_set():
            try:
                value = self._ask(rank, ask)
            except UnavailableError as error:
                if not self._error:
                    log.warning(
                        "the job board does not answer, ranks continue with their leased shards:"
                        " %s",
                        error,
                    )
                self._error = str(error)
                self._closed.wait(_RETRY_S)
            else:
                self._error = ""
                return value
        raise GenerationSuperseded(f"generation {self._generation} of {self._job} has ended")

    def close(self) -> None:
        """Refuse all further questions, also those that `answer` is retrying."""
        self._closed.set()

    def _ask(self, rank: int, ask: Ask) -> Any:
        if ask.what == "fill":
            self._board.fill(self._job, self._generation, ask.epoch, ask.shards)
            return None
        number = self._leased[rank] + 1
        shard = self._board.lease(
            self._job, self._generation, ask.epoch, rank, number, ask.most or None
        )
        if shard is not None:
            self._leased[rank] = number
        return shard
