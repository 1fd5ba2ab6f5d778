"""What people see of a node: lines and a display here, reports of its ranks in `edl status`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from ...coordinator.jobs import Generation
from ...runtime import logs
from ...runtime.standard_streams import visible
from ...scheduler.students.failures import RankFailure
from ..messages import Failed, FromRank, Progress, Ready, Scaled
from ..show import Display
from .workers import RankProcess


class NodeReporter:
    """Used by the supervisor's thread; `line` by any.

    Args:
        display: where it goes.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._waits = self._said = ""
        self._world = 0

    def generation(self, generation: Generation, ours: bool) -> None:
        """A generation begins; `ours`: with ranks of this node."""
        world = generation.world
        self._world = len(generation.endpoints)
        ranks = "1 rank" if self._world == 1 else f"{self._world} ranks"
        text = f"generation {world.number}: {ranks} on {', '.join(world.nodes)}"
        begin = f"from the checkpoint of step {world.restored}" if world.restored else "from step 0"
        self.say(f"{text}, {begin}; {world.reason}" + ("" if ours else "; this node is in reserve"))

    def waiting(self, what: str) -> None:
        """What the node waits for now; empty: nothing."""
        if what != self._waits:
            self._waits = what
            self._display.waiting(what)

    def leader_says(self, text: str) -> None:
        """What the leading node has to say of the world; told when it changes."""
        if text != self._said:
            self._said = text
            if text:
                self.say(text)

    def heard(self, rank: RankProcess, word: FromRank) -> None:
        """What a rank said."""
        match word:
            case Ready() if rank.order.local_rank == 0:
                self._display.begin(rank.order.generation, self._world, word.step, word.steps)
            case Progress():
                self._display.progress(rank.number, word)
            case Scaled() if rank.number == 0:
                self.say(f"scaled from {word.old} to {word.new} ranks")
            case Failed():
                for line in word.traceback.splitlines():
                    self.line(rank.number, line)

    def failed(self, failure: RankFailure) -> None:
        """A rank of this node failed; of what nobody can do the command itself tells at its end."""
        if not failure.is_final:
            self.say(failure.in_words())

    def line(self, rank: int, text: str) -> None:
        """A line that a rank printed; a log record as JSON says itself whose it is."""
        if logs.is_json() and text.startswith('{"time":'):
            logs.pass_on(text)
        else:
            self._display.line(f"[{rank}] {text}")

    def say(self, text: str) -> None:
        """A line of the supervisor itself; other nodes may have had their say in it."""
        self._display.line(visible(text))

    def close(self) -> None:
        """Nothing follows."""
        self._display.close()


class DisplayHandler(logging.Handler):
    """Hands log records to a display, so that they do not tear up what it draws."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._display.line(self.format(record))
        except Exception:
            self.handleError(record)


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
