"""Output for users: lines and a display of this node, reports of its ranks for `edl status`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from ...coordinator.jobs import Generation
from ...runtime import logs
from ...runtime.standard_streams import escape_control_characters
from ...scheduler.students.failures import RankFailure
from ..messages import Failed, FromRank, Progress, Ready, Scaled
from ..show.displays import Display
from ..show.events import EventFiles
from .workers import RankProcess


class NodeReporter:
    """Shows what happens on a node.

    Used by the supervisor's thread, except that any thread may call `line`.

    Args:
        display: the display.
        events: event files, which record each step as well; None: no event files.
    """

    def __init__(self, display: Display, events: EventFiles | None = None) -> None:
        self._display = display
        self._step_outputs: list[Display | EventFiles] = [display]
        if events is not None:
            self._step_outputs.append(events)
        self._waits = self._leader_waits = ""
        self._rank_count = 0

    def generation(self, generation: Generation, has_this_node: bool) -> None:
        """Show that a generation begins; `has_this_node`: this node has ranks in it."""
        world = generation.world
        self._rank_count = len(generation.endpoints)
        ranks = "1 rank" if self._rank_count == 1 else f"{self._rank_count} ranks"
        text = f"generation {world.number}: {ranks} on {', '.join(world.nodes)}"
        step = world.restored_step
        start = f"from the checkpoint of step {step}" if step else "from step 0"
        self.say(
            f"{text}, {start}; {world.reason}"
            + ("" if has_this_node else "; this node is in reserve")
        )

    def waiting(self, what: str) -> None:
        """Show what the node waits for, if it has changed; empty: nothing."""
        if what != self._waits:
            self._waits = what
            self._display.waiting(escape_control_characters(what))

    def leader_waits(self, text: str) -> None:
        """Show what the leader waits for, if it has changed."""
        if text != self._leader_waits:
            self._leader_waits = text
            if text:
                self.say(text)

    def on_rank_message(self, rank: RankProcess, message: FromRank) -> None:
        """Show a message of a rank."""
        match message:
            case Ready() if rank.order.local_rank == 0:
                for output in self._step_outputs:
                    output.begin(
                        rank.order.generation, self._rank_count, message.step, message.steps
                    )
            case Progress():
                for output in self._step_outputs:
                    output.progress(rank.number, message)
            case Scaled() if rank.number == 0:
                self.say(f"scaled from {message.old} to {message.new} ranks")
            case Failed():
                for line in message.traceback.splitlines():
                    self.line(rank.number, line)

    def failed(self, failure: RankFailure) -> None:
        """Show a failure of a rank of this node, except a final one, which ends the command."""
        if not failure.is_final:
            self.say(failure.in_words())

    def line(self, rank: int, text: str) -> None:
        """Show a line that a rank printed, after its number.

        JSON log records get no number: their field `student` has it.
        """
        if logs.is_json() and text.startswith('{"time":'):
            logs.write_line(text)
        else:
            self._display.line(f"[{rank}] {text}")

    def say(self, text: str) -> None:
        """Show a line of the supervisor; parts of it may come from other nodes."""
        self._display.line(escape_control_characters(text))

    def close(self) -> None:
        """Close the display and the event files."""
        for output in self._step_outputs:
            output.close()


class DisplayHandler(logging.Handler):
    """Writes log records to a display, so that they do not disturb its live lines."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._display.line(self.format(record))
        except Exception:
            self.handleError(record)


def report_of(rank: RankProcess) -> dict[str, Any]:
    """Return the report of a rank for `edl status` and the leader.

    `began_at` is the step at which its generation began.
    """
    report: dict[str, Any] = {
        "node": rank.order.node,
        "pid": rank.process.pid,
        "step": rank.step,
        "row_s": [round(value, 9) for value in rank.rates],
        "left_s": left_s(rank),
    }
    if rank.ready is not None:
        ready = rank.ready
        report |= {"began_at": ready.step, "steps": ready.steps, "total_batch": ready.total_batch}
    if rank.progress is not None:
        report |= asdict(rank.progress)
    return report | {"waiting_for": rank.waiting_for, "peers_s": rank.peers_s}


def left_s(rank: RankProcess) -> float | None:
    """Return the seconds to the end of the job, at the pace of this generation; None: unknown."""
    if rank.ready is None or rank.progress is None:
        return None
    if rank.ready.steps < rank.progress.step:  # unknown, or a too low estimate
        return None
    done = rank.progress.step - rank.ready.step
    if done <= 0:
        return None
    took_s = rank.at_s - rank.ready_s
    return round((rank.ready.steps - rank.progress.step) * took_s / done, 3)
