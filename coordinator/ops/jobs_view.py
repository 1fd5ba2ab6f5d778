"""Trainings as tables and as JSON: nodes, ranks and the timeline of generations.

The JSON form of a job:

```
{"job": str, "state": "training" | "waiting" | "finished" | "failed", "outcome": {...} | null,
 "step": int, "steps": int, "straggler": int | null,
 "nodes": [{"node": str, "host": str, "phase": str, "leaving": bool, "lease_remaining_s": float}],
 "ranks": [{"rank": int, and all reported facts of the rank}],
 "generations": [{"generation": int, "began_ms": int, "ranks": int, "nodes": [str],
                  "restored": int, "why": str, "first_step_after_s": float | null}]}
```
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...scheduler.students.failures import straggler
from ..jobs import JobBoard, Node, RankReport
from ..jobs.schema import EVENTS_KEPT
from ..store.records import TimelineEntry
from .text_output import Columns, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: Number of the latest generations in the table.
_SHOWN_GENERATIONS: Final = 12


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of one job on the board."""

    job: str
    nodes: Sequence[Node]
    reports: Sequence[RankReport]
    events: Sequence[TimelineEntry]
    outcome: Mapping[str, Any] | None

    @property
    def state(self) -> str:
        if self.outcome is not None:
            return str(self.outcome.get("kind", "finished"))
        running = any(node.facts.get("phase") == "running" for node in self.nodes)
        return "training" if running else "waiting"

    @property
    def straggler(self) -> int | None:
        """The rank that is much slower than the others; None: there is none."""
        return straggler({report.rank: report.facts.get("row_s", ()) for report in self.reports})

    @property
    def step(self) -> int:
        reached = [int(report.facts.get("step", 0)) for report in self.reports]
        ended = int(self.outcome.get("step", 0)) if self.outcome else 0
        return max([*reached, ended])

    @property
    def steps(self) -> int:
        """Number of steps of the whole job; 0: unknown."""
        return max((int(report.facts.get("steps", 0)) for report in self.reports), default=0)

    def generations(self) -> list[dict[str, Any]]:
        """Return the generations as in the JSON form, oldest first."""
        generations: dict[int, dict[str, Any]] = {}
        for event in self.events:
            body = event.body
            number = int(body.get("generation", 0))
            if body.get("kind") == "generation":
                generations[number] = {
                    "generation": number,
                    "began_ms": event.at_ms,
                    "ranks": int(body["ranks"]),
                    "nodes": list(body["nodes"]),
                    "restored": int(body["restored"]),
                    "why": str(body["why"]),
                    "first_step_after_s": None,
                }
            elif body.get("kind") == "stepping" and number in generations:
                generations[number]["first_step_after_s"] = body.get("after_s")
        return list(generations.values())


def read_jobs(board: JobBoard) -> list[JobState]:
    """Return the recently active jobs of the board.

    Raises:
        RedisUnavailable: Redis does not answer.
        AccessError: the user may not read them.
    """
    return [
        JobState(
            job,
            board.nodes(job),
            board.reports(job),
            board.events(job, count=EVENTS_KEPT),
            board.outcome(job),
        )
        for job in board.jobs()
    ]


def to_json(state: JobState) -> dict[str, Any]:
    """Return the JSON form that the module describes."""
    return {
        "job": state.job,
        "state": state.state,
        "outcome": None if state.outcome is None else dict(state.outcome),
        "step": state.step,
        "steps": state.steps,
        "straggler": state.straggler,
        "nodes": [
            {
                "node": node.node_id,
                "host": node.facts.get("host", ""),
                "phase": node.facts.get("phase", ""),
                "leaving": bool(node.facts.get("leaving")),
                "lease_remaining_s": node.expires_in_s,
            }
            for node in state.nodes
        ],
        "ranks": [{"rank": report.rank, **report.facts} for report in state.reports],
        "generations": state.generations(),
    }


def render(state: JobState, most_ranks: int = 0) -> RenderableType:
    """Return tables of the generations and of at most `most_ranks` ranks of a job; 0: all."""
    from rich.console import Group
    from rich.text import Text

    generations = state.generations()
    total = f" of {state.steps}" if state.steps else ""
    title = Text.assemble(
        ("job ", "dim"), (state.job, "bold"), f"  {state.state}  step {state.step}{total}"
    )
    parts: list[RenderableType] = [title]
    if report := (state.outcome or {}).get("report"):
        parts.append(Text(str(report), style="bold red"))
    worlds = " -> ".join(str(generation["ranks"]) for generation in generations)
    if worlds:
        parts.append(Text(f"ranks by generation: {worlds}", style="dim"))
        numbers = ["gen.", "ranks", "from step"]
        parts.append(table_of(generations[-_SHOWN_GENERATIONS:], _TIMELINE, numbers))
    waiting = [node for node in state.nodes if node.facts.get("phase") != "running"]
    if waiting:
        parts.append(Text(f"nodes without ranks: {', '.join(n.node_id for n in waiting)}"))
    waits_for = next((node.facts["says"] for node in state.nodes if node.facts.get("says")), "")
    if waits_for:
        parts.append(Text(str(waits_for), style="yellow"))
    if state.reports:
        parts.append(_ranks(state, most_ranks))
    return Group(*parts)


_TIMELINE: Final[Columns[Mapping[str, Any]]] = {
    "gen.": lambda one: str(one["generation"]),
    "began": lambda one: time.strftime("%H:%M:%S", time.localtime(one["began_ms"] / 1000)),
    "ranks": lambda one: str(one["ranks"]),
    "nodes": lambda one: ", ".join(one["nodes"]),
    "from step": lambda one: str(one["restored"]),
    "first step": lambda one: _delay_text(one["first_step_after_s"]),
    "why": lambda one: one["why"],
}


def _delay_text(seconds: float | None) -> str:
    return "" if seconds is None else f"+{seconds:.1f} s"


def _ranks(state: JobState, most: int) -> Table:
    straggler_rank = state.straggler
    columns: Columns[RankReport] = {
        "rank": lambda one: str(one.rank),
        "node": lambda one: str(one.facts.get("node", "")),
        "step": lambda one: str(one.facts.get("step", 0)),
        "rows": lambda one: str(one.facts.get("rows", "")),
        "step ms": lambda one: f"{1000 * float(one.facts.get('step_s', 0.0)):.1f}",
        "wait ms": lambda one: f"{1000 * float(one.facts.get('wait_s', 0.0)):.1f}",
        "teachers": lambda one: _or_blank(one.facts.get("teachers")),
        "": lambda one: (
            "straggler" if one.rank == straggler_rank else str(one.facts.get("waiting_for", ""))
        ),
    }
    reports = sorted(state.reports, key=lambda one: (one.rank != straggler_rank, one.rank))
    return table_of(
        reports[: most or None],
        columns,
        numbers=["step", "rows", "step ms", "wait ms"],
        style=lambda one: "bold red" if one.rank == straggler_rank else "",
    )


def _or_blank(count: int | None) -> str:
    return "" if count is None else str(count)
