"""A node's place at the job board: a thread that beats, looks around, and leads if it is elected.

The supervisor itself never waits for Redis: it tells the seat its facts and reads the last view.
While Redis is away the view stays as it was, and `away` says since when and why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...coordinator.jobs import JobBoard, Node, RankReport
from ...coordinator.store import Leads
from ...errors import EdlError, WireError
from ...scheduler.students.world import LiveNode
from .facts import Generation, NodeFacts

log = logging.getLogger(__name__)

#: A node that has not beaten for so long is lost.
TTL_S: Final = 5.0
TICK_S: Final = 0.2
_BEATS_PER_TTL: Final = 5.0
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class View:
    """What a node saw at the board.

    Attributes:
        nodes: that live, in the order in which they joined.
        facts: what each of them told.
        generation: the current one; None: the board knows none.
        outcome: how the job ended; None: it goes on.
        reports: of ranks, of the current generation.
        fence: what this node's writes as the leader carry; None: another one leads.
        seen_s: when, by the monotonic clock; 0: nothing was seen yet.
        settled: the board has answered for long enough that who is not there is gone.
    """

    nodes: tuple[Node, ...] = ()
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    generation: Generation | None = None
    outcome: Mapping[str, Any] | None = None
    reports: tuple[RankReport, ...] = ()
    fence: Leads | None = None
    seen_s: float = 0.0
    settled: bool = True

    @property
    def members(self) -> list[LiveNode]:
        """The nodes that live, as the reducer of worlds sees them."""
        return [self.facts[node.node_id].member(node) for node in self.nodes]


class Seat:
    """See the module.

    Args:
        board: of the mesh, or of this process where there is one node.
        job: name of the training.
        node: this node's id.
        look: called in the seat's thread with each view.
        ttl_s: see `TTL_S`.
        tick_s: between two looks.
    """

    def __init__(
        self,
        board: JobBoard,
        job: str,
        node: str,
        look: Callable[[View], None],
        ttl_s: float = TTL_S,
        tick_s: float = TICK_S,
    ) -> None:
        self._board, self._job, self._node, self._on_view = board, job, node, look
        self._ttl_s, self._tick_s = ttl_s, tick_s
        self._lock = threading.Lock()
        self._facts = NodeFacts()
        self._told: NodeFacts | None = None
        self._beaten_s = 0.0
        self._back_s: float | None = None  # when the board answered again
        self._reports: dict[tuple[int, int], Mapping[str, Any]] = {}
        self._view = View()
        self._away: tuple[float, str] | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-job-seat", daemon=True)

    @property
    def view(self) -> View:
        """What was seen last."""
        return self._view

    @property
    def away(self) -> str:
        """Since when and why the board does not answer, in words; empty: it does."""
        away = self._away
        return f"for {time.monotonic() - away[0]:.0f} s: {away[1]}" if away else ""

    def look(self) -> View:
        """What the board shows, for a node that has not joined.

        Raises:
            EdlError: the board does not answer, or refuses.
        """
        return self._look(None)

    def start(self) -> None:
        """Join, and look once, in the caller's thread; then begin.

        Raises:
            EdlError: the board does not answer, or refuses.
        """
        self._tick()
        self._thread.start()

    def tell(self, **changes: Any) -> None:
        """Change what this node says of itself."""
        with self._lock:
            facts = replace(self._facts, **changes)
            if facts == self._facts:
                return
            self._facts = facts
        self._wake.set()

    def report(self, generation: int, rank: int, facts: Mapping[str, Any]) -> None:
        """What a rank told last, to be seen by all."""
        with self._lock:
            self._reports[generation, rank] = facts

    def note(self, event: Mapping[str, Any]) -> None:
        """Add to the job's timeline, if the board answers."""
        try:
            self._board.note(self._job, event)
        except EdlError as error:
            log.debug("not noted in the timeline, %s: %s", error, event)

    def stop(self) -> None:
        """End being a node."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        try:
            if self._away is None:
                self._board.resign(self._job, self._node)
                self._board.leave(self._job, self._node)
        except EdlError as error:
            log.warning("the job board was not told that this node leaves: %s", error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._tick_s)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self._tick()
            except EdlError as error:
                self._miss(str(error))
            except Exception as error:  # the node must not be lost for it
                log.exception("the job board could not be read")
                self._miss(str(error))

    def _miss(self, why: str) -> None:
        if self._away is None:
            log.warning("training goes on without the job board: %s", why)
        self._away = (self._away[0] if self._away else time.monotonic(), why)

    def _tick(self) -> None:
        self._beat()
        self._pass_reports()
        view = self._look(self._board.lead(self._job, self._node, self._ttl_s))
        if self._away is not None:
            log.info("the job board answers again")
            self._back_s = time.monotonic()
            view = replace(view, settled=False)
        self._away = None
        self._view = view
        if not self._stopping.is_set():
            self._on_view(view)

    def _beat(self) -> None:
        with self._lock:
            facts = self._facts
        now_s = time.monotonic()
        if self._told is not None and facts == self._told:
            # A board that was away may have lost its memory, or have an older one: what it says of
            # the job counts only once it knows this node again.
            due_s = self._beaten_s + self._ttl_s / _BEATS_PER_TTL
            if self._away is None and now_s < due_s:
                return
            alive = self._board.beat(self._job, self._node, self._ttl_s)
        else:
            alive = self._told is not None and self._board.beat(
                self._job, self._node, self._ttl_s, facts.to_json()
            )
        if not alive:
            since = 0  # else how the job has ended meanwhile would be forgotten, and it begin again
            if self._told is not None:  # one of both was away, or the board has lost its memory
                self._back_s = now_s
                since = self._view.generation.world.number if self._view.generation else 0
            self._board.join(self._job, self._node, facts.to_json(), self._ttl_s, since)
        self._told, self._beaten_s = facts, now_s

    def _pass_reports(self) -> None:
        with self._lock:
            reports, self._reports = self._reports, {}
        for (generation, rank), facts in reports.items():
            self._board.report(self._job, generation, rank, facts)

    def _look(self, fence: Leads | None) -> View:
        nodes = tuple(self._board.nodes(self._job))
        record = self._board.generation(self._job)
        return View(
            nodes,
            {node.node_id: _facts_of(node) for node in nodes},
            None if record is None else Generation.from_record(record),
            self._board.outcome(self._job),
            tuple(self._board.reports(self._job)),
            fence,
            now_s := time.monotonic(),
            self._back_s is None or now_s - self._back_s > self._ttl_s,
        )


def _facts_of(node: Node) -> NodeFacts:
    try:
        return NodeFacts.from_json(node.facts)
    except WireError as error:
        log.warning("node %s: %s", node.node_id, error)
        return NodeFacts(leaving=True)
