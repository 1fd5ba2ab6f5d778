"""The paper's figure 3: one V100 as student, 1 to 8 P4 as teachers."""

from __future__ import annotations

from typing import Final

from .experiment import Cell, Contradiction, ExpectedOrder, Experiment, Key, Outcome
from .figure4 import CONNECTION_S, V100_TRAINS
from .simulations import Mesh, labelling_rate, rate_alone, rate_on_mesh, teachers_wanted

BATCH: Final = 32
TEACHERS: Final = (1, 2, 3, 4, 5, 6, 7, 8)
#: "The fine-tuned number is 5": number of P4 that label as fast as one V100 trains.
BEST: Final = 5
#: Speed gain of EDL-Dist over Online at best.
FASTER_THAN_ONLINE: Final = 0.930
#: Images of an epoch.
IMAGENET: Final = 1_281_167
#: By how much Online's training time is longer than EDL-Dist's, at most.
ONLINE_LONGER: Final = 0.929

#: img/s of EDL-Dist with 5 teachers, from the step and the cost of 5 connections.
V100_TAUGHT: Final = BATCH / (BATCH / V100_TRAINS + BEST * CONNECTION_S)
#: img/s of labelling with ResNet101 on a V100 and on a P4.
V100_LABELS: Final = labelling_rate(V100_TAUGHT / (1 + FASTER_THAN_ONLINE), V100_TRAINS)
P4_LABELS: Final = V100_TRAINS / BEST

_TEXT: Final = "section 4.3"
_LINEAR: Final = f"{_TEXT}: below 5 teachers throughput increases linearly"
_FALL: Final = f"{_TEXT}: above 5 teachers throughput slightly decreases: a little less than 1"


def _row(teachers: int) -> str:
    return "1 teacher" if teachers == 1 else f"{teachers} teachers"


def _rate(teachers: int) -> Key:
    return _row(teachers), "img/s"


EXPERIMENT: Final = Experiment(
    name="figure3",
    title="Figure 3: one V100 as student, 1 to 8 P4 as teachers",
    source="Dong et al. 2021, section 4.3, figure 3; the picture is lost, cells are from the text",
    setting="Student ResNet50 on one V100, batch 32; teacher ResNet101 on 1 to 8 P4.",
    calibration=(
        "The fine-tuned number of teachers, 5, gives the P4's labelling rate: a fifth of the V100's"
        " training rate. +93.0 % over Online gives the V100's labelling rate. The time that each"
        " connected teacher adds to a step is taken from figure 4. Nothing else is fitted."
    ),
    cells=(
        *(
            Cell(_row(k), "throughput / with 1", float(k), "x", "free", _LINEAR)
            for k in TEACHERS[1:4]
        ),
        *(
            Cell(_row(k), "time / with 1", 1 / k, "x", "derived", f"{_LINEAR}; figure 3b")
            for k in TEACHERS[1:4]
        ),
        Cell("5 teachers", "throughput / Online", 1 + FASTER_THAN_ONLINE, "x", "calibrates",
             f"{_TEXT}: Online up to 93.0 % smaller, read as EDL-Dist 93.0 % greater"),
        Cell("5 teachers", "Online's time / its time", 1 + ONLINE_LONGER, "x", "derived",
             f"{_TEXT}: Online's training time up to 92.9 % longer"),
        Cell("5 teachers", "throughput / N-training", 1.0, "x", "free",
             f"{_TEXT}: with enough teachers similar to N-training"),
        *(Cell(_row(k), "throughput / with 5", 1.0, "x", "free", _FALL) for k in TEACHERS[5:]),
        Cell("best", "number of teachers", float(BEST), "P4", "calibrates",
             f"{_TEXT}: the fine-tuned number is 5"),
    ),
    orders=(
        ExpectedOrder(
            tuple(_rate(k) for k in (5, 4, 3, 2, 1)), f"{_TEXT}: more teachers, more throughput"
        ),
        ExpectedOrder(tuple(_rate(k) for k in (5, 6, 7, 8)), f"{_TEXT}: decreases beyond 5"),
        ExpectedOrder((("N-training", "img/s"), _rate(5), ("Online", "img/s")),
              f"{_TEXT}: Online much smaller; EDL-Dist similar to N-training"),
    ),
    contradictions=(
        Contradiction(
            "the throughput of Online is up to 93.0 % smaller (section 4.3)",
            "its training time is up to 92.9 % longer (ibid.)",
            "93.0 % smaller would take 14 times as long; 92.9 % longer is 48 % smaller.",
            "We read it as: EDL-Dist's throughput is 93.0 % greater than Online's, like the +181 %"
            " of section 4.2 and of the abstract. That agrees with 92.9 %.",
        ),
        Contradiction(
            "a V100 has 14 Teraflops, a P4 5.5 (section 4.1): 2.5 times as fast",
            "one V100 needs five P4 (section 4.3), and its own labelling takes 96 % of the time of"
            " a training step (from Online's ratio): it is 5.2 times as fast",
            "If it were 2.5 times as fast, 2.4 P4 would label what a V100 trains, and three would"
            " suffice.",
            "The Teraflops are not used.",
        ),
        Contradiction(
            "five P4 are right for one V100 (section 4.3)",
            "each of eight V100 needs six, and five are too few (section 4.4)",
            "See figure 4, also for the two ratios of Online, and for P4 or P40.",
            "Each figure is calibrated on its own number.",
        ),
    ),
)  # fmt: skip


def _mesh(teachers: int) -> Mesh:
    return Mesh(1 / V100_TRAINS, 1 / P4_LABELS, teachers, BATCH, connection_s=CONNECTION_S)


def _curves(
    rates_by_teachers: dict[int, float], n_training: float, online: float
) -> dict[str, list[float]]:
    """Return the curves of figures 3a and 3b: throughput, and the hours of an epoch of ImageNet."""
    rates = {
        "EDL-Dist": list(rates_by_teachers.values()),
        "N-training": [n_training] * len(rates_by_teachers),
        "Online": [online] * len(rates_by_teachers),
    }
    throughput = {f"{name}, img/s": line for name, line in rates.items()}
    hours = {
        f"{name}, h of an epoch": [IMAGENET / rate / 3600 for rate in line]
        for name, line in rates.items()
    }
    return {**throughput, **hours}


def simulate(quick: bool) -> Outcome:
    """Simulate N-training, Online, and EDL-Dist with each number of teachers.

    Args:
        quick: fewer batches.
    """
    batches = 90 if quick else 300
    t_s_s = 1 / V100_TRAINS
    n_training = rate_alone(t_s_s, batch=BATCH, batches=batches)
    online = rate_alone(t_s_s + 1 / V100_LABELS, batch=BATCH, batches=batches)
    rates_by_teachers = {k: rate_on_mesh(_mesh(k), batches=batches) for k in TEACHERS}
    wanted = teachers_wanted(_mesh(TEACHERS[-1]), batches=batches)
    best = max(rates_by_teachers, key=lambda k: rates_by_teachers[k])
    values: dict[Key, float] = {
        ("N-training", "img/s"): n_training,
        ("Online", "img/s"): online,
        ("5 teachers", "throughput / Online"): rates_by_teachers[BEST] / online,
        ("5 teachers", "Online's time / its time"): rates_by_teachers[BEST] / online,
        ("5 teachers", "throughput / N-training"): rates_by_teachers[BEST] / n_training,
        ("best", "number of teachers"): float(best),
    }
    for k, rate in rates_by_teachers.items():
        values |= {
            (_row(k), "img/s"): rate,
            (_row(k), "throughput / with 1"): rate / rates_by_teachers[1],
            (_row(k), "time / with 1"): rates_by_teachers[1] / rate,
            (_row(k), "throughput / with 5"): rate / rates_by_teachers[BEST],
        }
    overtakes = min((k for k, rate in rates_by_teachers.items() if rate > online), default=0)
    return Outcome(
        values,
        {
            "V100 trains ResNet50, img/s (scale, README of EDL)": V100_TRAINS,
            "V100 labels with ResNet101, img/s": V100_LABELS,
            "P4 labels with ResNet101, img/s": P4_LABELS,
            "each connected teacher adds to a step, ms (figure 4)": 1000 * CONNECTION_S,
        },
        series={
            "teachers": [float(k) for k in TEACHERS],
            **_curves(rates_by_teachers, n_training, online),
        },
        notes=(
            "In img/s, at the scale of the README, with 1 to 8 teachers: "
            + ", ".join(f"{rate:.1f}" for rate in rates_by_teachers.values())
            + f"; N-training {n_training:.1f}, Online {online:.1f}.",
            f"Given all 8, Algorithm 1 as it runs here asks for {wanted}.",
            f"EDL-Dist passes Online with {overtakes} teachers; the text does not say where.",
        ),
    )
