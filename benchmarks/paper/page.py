"""The page benchmarks/results/README.md, made from the results beside it."""

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
#: The first experiments on the page, in this order; others follow.
FIRST: Final = ("table1", "table2", "figure3", "figure4", "edl_readme")
MARKS: Final = {"calibrates": " \\*", "derived": " =", "contested": " !", "free": ""}

HEAD: Final = """# The papers' experiments, run again

This page is generated: `make tables` runs every simulation and writes it anew from
[benchmarks/results](.). To run one experiment:

    edl bench paper.table1 --simulate            # the paper's devices, in virtual time
    edl bench paper.table1 --simulate --check    # exit code 1 if a goal does not hold
    edl bench paper.table1 --measure             # on this machine (not every experiment)

**Simulated** means: the decision rules of a live mesh (which teacher labels what, when to pull,
how many teachers) run in virtual time, with devices as fast as the papers' own figures say. The
papers' hardware was not used. Each section names the cells on which its device model is
*calibrated*: their agreement proves nothing. The other cells are judged: they must be within 10 %
of the paper's figures, in the same order, and lines must cross where the paper's lines cross.

A cell of a table has the paper's figure, ours, and our error. A mark after it: \\* the model is
calibrated on it; = it follows from other cells; ! another statement of the same paper contradicts
it, so it is shown and not judged. All others are *free*: judged, and nothing was fitted to them.

The end of the page has the results of
`--measure --json benchmarks/results/paper-NAME-measured.json`.
"""


def documents(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Read the results in a folder, in the order of the page.

    The key `path` is added to each: the name of its file without the suffix.
    """
    found = []
    for path in sorted(folder.glob("paper-*.json")):
        one: dict[str, Any] = json.loads(path.read_text("utf-8"))
        found.append({**one, "path": path.stem})
    places = {name: place for place, name in enumerate(FIRST)}
    return sorted(found, key=lambda one: places.get(one.get("name", ""), len(FIRST)))


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page.

    Args:
        found: results, as returned by `documents`.
    """
    simulated = [one for one in found if one.get("how") == "simulated"]
    measured = [one for one in found if one.get("how") != "simulated"]
    parts = [HEAD, "## In short\n", _summary(simulated)]
    parts += [_section(one) for one in simulated]
    parts += ["## Measured\n", *(_measured(one) for one in measured)]
    if not measured:
        parts.append("Nothing is kept here yet.\n")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _summary(found: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for one in found:
        judged = [row for row in one["rows"] if row["use"] in ("free", "derived")]
        free = sum(row["use"] == "free" for row in judged)
        worst = max(abs(row["error_percent"]) for row in judged)
        holds = "yes" if all(goal["holds"] for goal in one["goals"]) else "**no**"
        rows.append(
            f"| [{one['title']}](#{_anchor(one['title'])}) | {len(one['rows'])} | {free} |"
            f" {worst:.1f} % | {len(one['contradictions'])} | {holds} |"
        )
    head = (
        "| experiment | cells | free | worst error of a judged cell | contradictions in the paper |"
        " all goals hold |\n|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _section(one: Mapping[str, Any]) -> str:
    lines = [f"## {one['title']}", "", f"Simulated. {one['source']}. {one['setting']}", ""]
    lines += [*_cells(one["rows"]), ""]
    lines += [f"**Calibration.** {one['calibration']}", ""]
    if one["model"]:
        lines += ["| device model | |", "|---|---|"]
        lines += [f"| {name} | {_number(value)} |" for name, value in one["model"].items()] + [""]
    lines += [
        f"- In the paper {leads} passes {led} between {before} and {after}."
        for leads, led, before, after in one["crossings"]
    ]
    lines += [f"- {note}" for note in one["notes"]]
    for goal in one["goals"]:
        limit = f"{goal['op']} {_number(goal['limit'])}"
        verdict = "holds" if goal["holds"] else "**does not hold**"
        lines.append(f"- {goal['name']}: {_number(goal['value'])} ({limit}): {verdict}.")
    lines.append("")
    if one["contradictions"]:
        lines += ["**Where the paper contradicts itself**", ""]
        lines += [
            f"- {_sentence(c['one'])} But {c['other']}. {c['because']} *{c['chosen']}*"
            for c in one["contradictions"]
        ]
        lines.append("")
    lines += [f"![{one['title']}: curves, and the error of each cell]({one['path']}.png)", ""]
    return "\n".join(lines)


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not is_dense(rows):
        lines = ["| | | paper, ours, error |", "|---|---|---|"]
        for row in rows:
            unit = _word(row["unit"])
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
    off = f"{row['error_percent']:+.1f} %"
    return f"{_number(row['paper'])}, {_number(row['ours'])}, {off}{MARKS[row['use']]}"


def _measured(one: Mapping[str, Any]) -> str:
    """Format a measured report, without the paper's cells: its machine, rows and goals."""
    machine = one.get("machine", {})
    title = one.get("title") or one["path"].removeprefix("paper-")
    lines = [f"### {title}", ""]
    where = [
        machine.get("cpu", "?"),
        f"{machine.get('cores', '?')} cores",
        *machine.get("gpus", ()),
    ]
    lines += [f"Measured on: {', '.join(where)}.", ""]
    if one["rows"]:
        names = list(one["rows"][0])
        lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        lines += [
            f"| {' | '.join(_number(value) for value in row.values())} |" for row in one["rows"]
        ]
    lines.append("")
    for goal in one["goals"]:
        spread = ""
        if "interval" in goal:
            low, high = map(_number, goal["interval"])
            spread = f" [{low}, {high}]"
        verdict = "holds" if goal["holds"] else "**does not hold**"
        lines.append(
            f"- {goal['name']}: {_number(goal['value'])}{spread}"
            f" ({goal['op']} {_number(goal['limit'])}): {verdict}."
        )
    lines += [f"- {note}" for note in one.get("notes", ())]
    return "\n".join([*lines, ""])


def _unit(rows: Sequence[Mapping[str, Any]], column: str) -> str:
    units = dict.fromkeys(row["unit"] for row in rows if row["column"] == column)
    return " or ".join(_word(unit) for unit in units)


def _word(unit: str) -> str:
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
