"""A plan as lines, tables and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...runtime.files import save_plot
from ...scheduler.planner import MeshPlan
from ...scheduler.verdicts import Method, money
from ..output import BLUE, GREEN, GREY, ORANGE, format_duration
from .sweep import SweepPoint

if TYPE_CHECKING:
    from rich.table import Table


def plan_lines(plan: MeshPlan) -> Iterator[str]:
    """Yield the lines of the planned mesh."""
    batch_text = f", batch {plan.rows} each" if plan.students > 1 else f", batch {plan.rows}"
    yield f"students    {plan.students} x {plan.student}{batch_text}"
    if plan.mesh is None or plan.prediction is None:
        yield f"teachers    none: {plan.estimate('mesh').why_not}"
        return
    counts = " + ".join(f"{int(group.count)} x {group.kind}" for group in plan.mesh.teacher_groups)
    share = plan.mesh.teachers / plan.students
    yield (
        f"teachers    {counts}: {share:.3g} for each student; the ratio"
        f" n = ceil(t_t / t_s) alone gives {plan.needed}"
    )
    for kind, rows in plan.micro_batches.items():
        yield f"            {kind}: --micro-batch {rows}"
    thresholds = plan.prediction.thresholds
    yield (
        f"buffer      ut {thresholds.upper} batches (upper_bytes={plan.upper_bytes},"
        f" {format_bytes(plan.upper_bytes)}), lt {thresholds.lower}"
        f" (lower_bytes={plan.lower_bytes})"
    )
    if thresholds.upper < thresholds.ideal:
        ideal = thresholds.ideal
        yield f"            ut {ideal} would be better, but buffer_bytes does not allow it"
    estimate, currency = plan.estimate("mesh"), plan.currency
    yield (
        f"predicted   {format_rate(estimate.samples_per_s)} samples/s,"
        f" {format_duration(estimate.epoch_s)} an epoch"
    )
    yield (
        f"cost        {money(estimate.cost_per_hour)} {currency}/h:"
        f" {money(estimate.cost_per_hour * estimate.epoch_s / 3600)} {currency} an epoch,"
        f" {money(estimate.cost)} {currency} in all"
    )
    bottleneck, next_stage = plan.prediction.stages[:2]
    lost = (
        f"; jitter and uneven shares of teachers cost {100 * plan.prediction.lost:.2g} %"
        if plan.prediction.lost > 0.002
        else ""
    )
    rate = format_rate(bottleneck.samples_per_s)
    yield f"limited by  {bottleneck.name} ({rate} samples/s{lost}): {bottleneck.remedy}"
    rate = format_rate(next_stage.samples_per_s)
    yield f"next        {next_stage.name} ({rate} samples/s): {next_stage.remedy}"


def verdict_lines(plan: MeshPlan) -> Iterator[str]:
    """Yield whether the mesh is worth it, and the reasons."""
    verdict = plan.verdict
    if verdict.worth:
        yield "The mesh is worth it:"
    elif verdict.take == "offline store" and plan.mesh is not None:
        yield "A mesh in every epoch is NOT worth it; take offline store:"
    elif verdict.take is None:
        yield "The mesh is NOT worth it, and no other method distils here:"
    else:
        yield f"The mesh is NOT worth it; take {verdict.take}:"
    for reason in verdict.reasons:
        yield f"  - {reason}"


def comparison_table(plan: MeshPlan) -> Table:
    """Make the table of all feasible methods."""
    per_hour, cost = f"{plan.currency}/h", f"cost {plan.currency}"
    table = _table("method", "teachers", "samples/s", "epoch", "all", per_hour, cost, "")
    for estimate in plan.estimates:
        if estimate.why_not:
            continue
        teachers = str(estimate.teachers or "-")
        if estimate.method == "offline store" and estimate.teachers:
            teachers += " in epoch 1"
        method: str = estimate.method
        if (estimate.student, estimate.rows) != (plan.student, plan.rows):
            method += f" ({estimate.student}, batch {estimate.rows})"
        table.add_row(
            method,
            teachers,
            format_rate(estimate.samples_per_s),
            format_duration(estimate.epoch_s),
            format_duration(estimate.total_s),
            money(estimate.cost_per_hour),
            money(estimate.cost),
            "take" if estimate.method == plan.verdict.take else "",
        )
    return table


def excluded_lines(plan: MeshPlan) -> Iterator[str]:
    """Yield a line for each method that is not feasible, with the reason."""
    for estimate in plan.estimates:
        if estimate.why_not:
            yield f"{estimate.method}: not possible: {estimate.why_not}"


def sweep_table(key: str, points: Sequence[SweepPoint]) -> Table:
    """Make the table of the plans of a sweep over `key`."""
    first = "requested" if key == "teachers" else key
    table = _table(first, "teachers", "samples/s", "epoch", "cost", "take", "limited by")
    for point in points:
        value = format_number(point.value)
        if point.plan is None:
            table.add_row(value, "", "", "", "", "none", point.why_not)
            continue
        estimate, prediction = point.plan.estimate("mesh"), point.plan.prediction
        take = point.plan.verdict.take or "nothing"
        if prediction is None:
            table.add_row(value, "", "", "", "", take, f"no mesh: {estimate.why_not}")
            continue
        table.add_row(
            value,
            str(estimate.teachers),
            format_rate(estimate.samples_per_s),
            format_duration(estimate.epoch_s),
            money(estimate.cost),
            take,
            prediction.stages[0].name,
        )
    return table


def _table(*names: str) -> Table:
    """Make an empty table without borders; align numbers right, and text left."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in names:
        text = name in ("method", "take", "limited by", "")
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    return table


def as_json(plan: MeshPlan, key: str = "", points: Sequence[SweepPoint] = ()) -> dict[str, Any]:
    """Return the plan, and the points of a sweep over `key`, as JSON values.

    Infinite numbers become null. An empty `key` means that there is no sweep.
    """
    values: dict[str, Any] = {"plan": _finite(asdict(plan, dict_factory=_json_object))}
    if key:
        listed = [asdict(point, dict_factory=_json_object) for point in points]
        values["what_if"] = {"key": key, "points": _finite(listed)}
    return values


#: Fields with other keys in JSON, which programs read.
_JSON_KEYS: Final = {"teacher_groups": "teams", "estimates": "ways"}


def _json_object(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {_JSON_KEYS.get(name, name): value for name, value in items}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


#: Least number that the format .3g writes with an exponent.
_FOUR_DIGITS = 999.5


def format_bytes(size_bytes: float) -> str:
    """Format bytes with three significant digits, in a binary unit; whole GiB from 1000 GiB on."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < _FOUR_DIGITS:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.3g} GiB" if size_bytes < _FOUR_DIGITS else f"{size_bytes:,.0f} GiB"


def format_rate(samples_per_s: float) -> str:
    """Format a rate: whole from 100 on, else three significant digits; infinity is "any"."""
    if samples_per_s == float("inf"):
        return "any"
    return f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"


def format_number(value: float) -> str:
    """Format a number of any magnitude without trailing zeros."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.6g}"


COLOURS: dict[Method, str] = {
    "N-training": GREY,
    "Online": ORANGE,
    "offline store": GREEN,
    "mesh": BLUE,
}


def draw(plan: MeshPlan, key: str, points: Sequence[SweepPoint], path: Path) -> None:
    """Write the plot of a sweep to `path`, in the format of its suffix.

    Args:
        plan: the plan, for the title.
        key: key of the sweep.
        points: points of the sweep.
        path: path of the file.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    throughput, cost = figure.subplots(2, 1, sharex=True)
    plans = [(point.value, point.plan) for point in points if point.plan is not None]
    for method, colour in COLOURS.items():
        estimates = [(value, planned.estimate(method)) for value, planned in plans]
        estimates = [(value, estimate) for value, estimate in estimates if not estimate.why_not]
        if not estimates:
            continue
        style = "o-" if method == "mesh" else "--"
        values = [value for value, _ in estimates]
        rates = [estimate.samples_per_s for _, estimate in estimates]
        throughput.plot(values, rates, style, color=colour, markersize=3, label=method)
        costs = [estimate.cost for _, estimate in estimates]
        cost.plot(values, costs, style, color=colour, markersize=3, label=method)
    throughput.set_ylabel("samples/s (predicted)")
    throughput.set_ylim(bottom=0)
    throughput.legend(loc="lower right", fontsize=8)
    throughput.set_title(f"{plan.job}: {plan.students} x {plan.student}")
    cost.set_ylabel(f"cost of the training, {plan.currency}")
    cost.set_ylim(bottom=0)
    cost.set_xlabel(key)
    save_plot(figure, path)
