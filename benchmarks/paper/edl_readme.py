"""The table of EDL's README: eight V100 alone, with the teacher on the same cards, with 40 P4."""

from __future__ import annotations

from typing import Final

from .experiment import Cell, Contradiction, Experiment, Outcome
from .figure4 import CONNECTION_S
from .simulations import Mesh, labelling_rate, rate_alone, rate_on_mesh

BATCH: Final = 32
STUDENTS: Final = 8
TEACHERS: Final = 40
#: img/s of all eight V100, as printed.
PURE_TRAIN: Final = 1828.0
SAME_GPUS: Final = 656.0
EDL_SERVICE: Final = 1514.0
#: Single-precision Teraflops, section 4.1 of the paper.
V100_TERAFLOPS: Final = 14.0
P4_TERAFLOPS: Final = 5.5

#: img/s of ResNeXt101_32x16d_wsl on one V100 and on one P4.
V100_LABELS: Final = labelling_rate(SAME_GPUS, PURE_TRAIN) / STUDENTS
P4_LABELS: Final = V100_LABELS * P4_TERAFLOPS / V100_TERAFLOPS

_TABLE: Final = "README of EDL, table of distillation"

EXPERIMENT: Final = Experiment(
    name="edl_readme",
    title="README of EDL: eight V100 alone, with the teacher beside them, with 40 P4",
    source="README of elasticdeeplearning/edl, release 0.3.1",
    setting=(
        "Student ResNet50_vd on 8 V100, total batch 256; teacher ResNeXt101_32x16d_wsl on the same"
        " cards, or on 40 P4."
    ),
    calibration=(
        "Pure training gives the V100's training rate, the rate on the same cards its labelling"
        " rate. The P4 is slower than the V100 in the ratio of their Teraflops (5.5 and 14, section"
        " 4.1 of the paper). The time that each connected teacher adds to a step is taken from"
        " figure 4. So the service's rate is predicted: no cell about a P4 is used."
    ),
    cells=(
        Cell("pure train", "speed", PURE_TRAIN, "img/s", "calibrates", _TABLE),
        Cell("teacher and student on the same gpus", "speed", SAME_GPUS, "img/s", "calibrates",
             _TABLE),
        Cell("EDL service distill", "speed", EDL_SERVICE, "img/s", "free", _TABLE),
        Cell("EDL service distill", "speed / same gpus", EDL_SERVICE / SAME_GPUS, "x", "derived",
             f"{_TABLE}: 1514 / 656"),
        Cell("EDL service distill", "speed / pure train", EDL_SERVICE / PURE_TRAIN, "x", "derived",
             f"{_TABLE}: 1514 / 1828"),
    ),
    ranked=("speed",),
    contradictions=(
        Contradiction(
            "40 P4 label 1514 img/s (README), so one labels at least 37.9. A V100 labels 128 (from"
            " 656 and 1828), so at most 3.4 times as many",
            "a V100 labels as much as 5.2 P4 (figure 3), or 15 (figure 4)",
            "The teachers differ (ResNeXt101_32x16d here, ResNet101 there), but not the cards.",
            "The ratio of the Teraflops, 2.5, is used; it does not exceed 3.4.",
        ),
    ),
    min_free_cells=1,
)  # fmt: skip


def simulate(quick: bool) -> Outcome:
    """Simulate the three modes; `quick`: fewer batches."""
    batches = 45 if quick else 150
    t_s_s = STUDENTS / PURE_TRAIN
    pure, same = (
        rate_alone(seconds, batch=BATCH, batches=batches, students=STUDENTS)
        for seconds in (t_s_s, t_s_s + 1 / V100_LABELS)
    )
    mesh = Mesh(t_s_s, 1 / P4_LABELS, TEACHERS, BATCH, STUDENTS, CONNECTION_S)
    service = rate_on_mesh(mesh, batches=batches)
    return Outcome(
        {
            ("pure train", "speed"): pure,
            ("teacher and student on the same gpus", "speed"): same,
            ("EDL service distill", "speed"): service,
            ("EDL service distill", "speed / same gpus"): service / same,
            ("EDL service distill", "speed / pure train"): service / pure,
        },
        {
            "V100 trains ResNet50_vd, img/s": 1 / t_s_s,
            "V100 labels with ResNeXt101_32x16d, img/s": V100_LABELS,
            "P4 labels with it, by Teraflops, img/s": P4_LABELS,
            "each connected teacher adds to a step, ms (figure 4)": 1000 * CONNECTION_S,
        },
        notes=(
            f"By their Teraflops, 40 P4 label {TEACHERS * P4_LABELS:.0f} img/s, more than the cards"
            " train. Our rate is below 1828 img/s only because of the cost of 40 connections.",
            "At the rate of figure 4's P4, 38.1 img/s, 40 would label 1523 img/s, 0.6 % more than"
            " printed; but that rate is for ResNet101, a far smaller teacher.",
        ),
    )
