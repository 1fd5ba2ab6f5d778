"""Errors of the planner and the simulator, compared with real meshes."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from typing import Final

from .planning import paced, real
from .report import BenchmarkReport, Estimate, Goal, Row

log = logging.getLogger(__name__)

#: Greatest errors of predictions in percent: with stated devices, by the planner and by the
#: simulator; with real models, by the planner.
PLANNED: Final = 10.0
SIMULATED: Final = 5.0
PLANNED_OF_REAL: Final = 20.0
_WINDOW_S: Final = 0.6
_QUICK_WINDOW_S: Final = 0.2


def run(quick: bool) -> BenchmarkReport:
    """Run five meshes of stated rates, and five trainings with real models.

    Args:
        quick: shorter windows, and smaller batches of the real models.
    """
    rows: list[Row] = []
    goals: list[Goal] = []

    def add(
        name: str, devices: str, rates: Sequence[float], **limited: tuple[float, float]
    ) -> None:
        row: dict[str, str | float] = {"mesh": name, "devices": devices}
        row["ran/s"] = statistics.median(rates)
        for by in ("planner", "simulator"):
            row[f"{by}/s"] = limited[by][0] if by in limited else ""
        rows.append(row)
        for by, (predicted, most) in limited.items():
            error = error_of(Estimate.of([rate / predicted for rate in rates]))
            goals.append(Goal.judge(f"{name}: error of the {by}, %", error, "<=", most))

    for configuration in paced.CONFIGURATIONS:
        log.info("stated rates: %s", configuration.name)
        rates = paced.measured(configuration, _QUICK_WINDOW_S if quick else _WINDOW_S)
        add(
            configuration.name,
            "emulated",
            rates,
            planner=(paced.planned(configuration), PLANNED),
            simulator=(paced.simulated(configuration), SIMULATED),
        )
    for name, predicted, rates in real.trainings(quick):
        add(name, "real models", rates, planner=(predicted, PLANNED_OF_REAL))
    return BenchmarkReport(rows, goals)


def error_of(ratios: Estimate) -> Estimate:
    """Return the error of a prediction in percent; 0 is exact.

    Args:
        ratios: measured rate / predicted rate, estimated over the windows of one measurement.
    """
    ends = (abs(ratios.low - 1), abs(ratios.high - 1))
    least = 0.0 if ratios.low <= 1 <= ratios.high else min(ends)
    percents = (100 * error for error in (abs(ratios.value - 1), least, max(ends)))
    return Estimate(*(round(percent, 2) for percent in percents))
