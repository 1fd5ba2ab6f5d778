"""Generates the page benchmarks/results/README.md from the results beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .tables import is_dense

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGE: Final = RESULTS / "README.md"
#: The first experiments on the page, in this order; the others follow.
FIRST: Final = ("table1", "table2", "figure3", "figure4", "edl_readme")
MARKS: Final = {"calibrates": " \\*", "derived": " =", "contested": " !", "free": ""}

HEAD: Final = """# The papers' experiments, run again

This page is generated: `make tables` runs every simulation and writes it anew from
[benchmarks/results](.). To run one experiment:

    edl bench paper.table1 --simulate            # the paper's devices, in virtual time
    edl bench paper.table1 --simulate --check    # exit code 1 if a goal does not hold
    edl bench paper.table1 --measure             # on this machine (not every experiment)

**Simulated** means: the decision rules of a live mesh (which teacher labels what, when to pull, how
many teachers) run in virtual time, with devices as fast as the papers' own figures say. The papers'
hardware was not used. Each section names the cells on which its device model is *calibrated*: their
agreement proves nothing. The other cells are judged: they must be within 10 % of the paper's
figures, in the paper's order, and lines must cross where they cross in the paper.

A cell of a table has the paper's figure, ours, and our error. A mark after it: \\* the model is
calibrated on it; = it follows from other cells; ! another statement of the same paper contradicts
it, so it is shown and not judged. All others are *free*: judged, and nothing was fitted to them.

At the end are results of `--measure --json benchmarks/results/paper-NAME-measured.json`. A figure's
95 % interval is in square brackets: a goal fails only if the whole interval misses its limit. A
figure "of expected 4.69" is the measured ratio divided by the expected ratio, 4.69.
"""


def documents(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Read the results in a folder, in the order of the page.

    The key `path` is added to each: the name of its file without the suffix.
    """
    results = []
    for path in sorted(folder.glob("paper-*.json")):
        result: dict[str, Any] = json.loads(path.read_text("utf-8"))
        results.append({**result, "path": path.stem})
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    return sorted(results, key=lambda result: ranks.get(result.get("name", ""), len(FIRST)))


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page.

    Args:
        results: results, as returned by `documents`.
    """
    simulated = [result for result in results if result.get("how") == "simulated"]
    measured = [result for result in results if result.get("how") != "simulated"]
    parts = [HEAD, "## In short\n", _summary(simulated)]
    parts += map(_section, simulated)
    parts += ["## Measured\n", *map(_measured, measured)]
    if not measured:
        parts.append("Nothing is kept here yet.\n")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _summary(simulated: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for result in simulated:
        judged = [row for row in result["rows"] if row["use"] in ("free", "derived")]
        free = sum(row["use"] == "free" for row in judged)
        worst = max(abs(row["error_percent"]) for row in judged)
        holds = "yes" if all(goal["holds"] for goal in result["goals"]) else "**no**"
        rows.append(
            f"| [{result['title']}](#{_anchor(result['title'])}) | {len(result['rows'])} | {free} |"
            f" {worst:.1f} % | {len(result['contradictions'])} | {holds} |"
        )
    head = (
        "| experiment | cells | free | worst error of a judged cell | contradictions in the paper |"
        " all goals hold |\n|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _section(result: Mapping[str, Any]) -> str:
    lines = [
        f"## {result['title']}",
        "",
        f"Simulated. {result['source']}. {result['setting']}",
        "",
    ]
    lines += [*_cells(result["rows"]), ""]
    lines += [f"**Calibration.** {result['calibration']}", ""]
    if result["model"]:
        lines += ["| device model | |", "|---|---|"]
        lines += [f"| {name} | {_number(value)} |" for name, value in result["model"].items()] + [
            ""
        ]
    lines += [
        f"- In the paper {leads} passes {led} between {before} and {after}."
        for leads, led, before, after in result["crossings"]
    ]
    lines += [f"- {note}" for note in result["notes"]]
    for goal in result["goals"]:
        limit = f"{goal['op']} {_number(goal['limit'])}"
        verdict = "holds" if goal["holds"] else "**does not hold**"
        lines.append(f"- {goal['name']}: {_number(goal['value'])} ({limit}): {verdict}.")
    lines.append("")
    if result["contradictions"]:
        lines += ["**Where the paper contradicts itself**", ""]
        lines += [
            f"- {_sentence(c['one'])} But {c['other']}. {c['because']} *{c['chosen']}*"
            for c in result["contradictions"]
        ]
        lines.append("")
    lines += [
        f"![{result['title']}: curves, and the error of each cell]({result['path']}.png)",
        "",
    ]
    return "\n".join(lines)


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not is_dense(rows):
        lines = ["| | | paper, ours, error |", "|---|---|---|"]
        for row in rows:
            unit = _unit_name(row["unit"])
            lines.append(f"| {row['row']} | {row['column']}, {unit} | {_cell(row)} |")
        return lines
    columns = list(dict.fromkeys(row["column"] for row in rows))
    by_key = {(row["row"], row["column"]): row for row in rows}
    heads = [f"{name}, {_unit(rows, name)}" for name in columns]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(row["row"] for row in rows):
        cells = [_cell(by_key.get((name, column))) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    error = f"{row['error_percent']:+.1f} %"
    return f"{_number(row['paper'])}, {_number(row['ours'])}, {error}{MARKS[row['use']]}"


def _measured(result: Mapping[str, Any]) -> str:
    """Format a measured report, without the paper's cells: its machine, rows and goals."""
    machine = result.get("machine", {})
    title = result.get("title") or result["path"].removeprefix("paper-")
    lines = [f"### {title}", ""]
    devices = [
        machine.get("cpu", "?"),
        f"{machine.get('cores', '?')} cores",
        *machine.get("gpus", ()),
    ]
    lines += [f"Measured on: {', '.join(devices)}.", ""]
    if result["rows"]:
        names = list(result["rows"][0])
        lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        lines += [
            f"| {' | '.join(_number(value) for value in row.values())} |" for row in result["rows"]
        ]
    lines.append("")
    for goal in result["goals"]:
        interval = ""
        if "interval" in goal:
            low, high = map(_number, goal["interval"])
            interval = f" [{low}, {high}]"
        verdict = "holds" if goal["holds"] else "**does not hold**"
        lines.append(
            f"- {goal['name']}: {_number(goal['value'])}{interval}"
            f" ({goal['op']} {_number(goal['limit'])}): {verdict}."
        )
    lines += [f"- {note}" for note in result.get("notes", ())]
    return "\n".join([*lines, ""])


def _unit(rows: Sequence[Mapping[str, Any]], column: str) -> str:
    units = dict.fromkeys(row["unit"] for row in rows if row["column"] == column)
    return " or ".join(_unit_name(unit) for unit in units)


def _unit_name(unit: str) -> str:
    return "times" if unit == "x" else unit


def _anchor(title: str) -> str:
    """Return the anchor that Git hosts make from a heading."""
    kept = (c for c in title.lower() if c.isalnum() or c in "-_ ")
    return "".join(kept).replace(" ", "-")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, float | int):
        return str(value)
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.5g}"
