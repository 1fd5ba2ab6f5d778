"""The paper's figure 4: eight V100 as students, 40, 48 or 56 P4 as teachers."""

from __future__ import annotations

from typing import Final

from .experiment import Cell, Contradiction, ExpectedOrder, Experiment, Outcome
from .simulations import Mesh, labelling_rate, rate_alone, rate_on_mesh, teachers_wanted

BATCH: Final = 32
STUDENTS: Final = 8
TEACHERS: Final = (40, 48, 56)
#: Statements of the text about EDL-Dist with 48 teachers.
FASTER_THAN_ONLINE: Final = 0.235
SHORTER_THAN_ONLINE: Final = 0.194
LONGER_THAN_N: Final = 0.128
#: "48 is the appropriate number": number of P4 that label as fast as one V100 trains.
RATIO: Final = 48 / STUDENTS

#: img/s of training ResNet50 on one V100, from the README of EDL: 1828 with eight. The scale of the
#: figure is lost, but it does not matter: all cells are ratios.
V100_TRAINS: Final = 1828 / STUDENTS
#: Seconds that each connected teacher costs each step of a server: 12.8 % of a step for all 48.
CONNECTION_S: Final = LONGER_THAN_N * BATCH / V100_TRAINS / 48
#: img/s of Online on one V100. EDL-Dist is 23.5 % faster; it has N-training's rate / 1.128.
V100_ONLINE: Final = V100_TRAINS / (1 + LONGER_THAN_N) / (1 + FASTER_THAN_ONLINE)
#: img/s of labelling with ResNet101 on a V100 and on a P4.
V100_LABELS: Final = labelling_rate(V100_ONLINE, V100_TRAINS)
P4_LABELS: Final = V100_TRAINS / RATIO

_TEXT: Final = "section 4.4"
_ALIKE: Final = f"{_TEXT}: the training time with 48 is almost the same as with 56"
_FEWER: Final = (
    f"{_TEXT}: 48 is where teachers cease to be the bottleneck, so 40 give less throughput than 48."
    " If 48 just suffice, 40 give 40 / 48 of it: the cell is the middle of 40 / 48 and 1"
)

EXPERIMENT: Final = Experiment(
    name="figure4",
    title="Figure 4: eight V100 as students, 40, 48 or 56 P4 as teachers",
    source="Dong et al. 2021, section 4.4, figure 4; the picture is lost, cells are from the text",
    setting="Student ResNet50 on 8 V100, batch 32 each; teacher ResNet101 on 40, 48, 56 P4.",
    calibration=(
        "The appropriate number of teachers, 48, gives the P4's labelling rate: a sixth of the"
        " V100's training rate. +23.5 % over Online gives the V100's labelling rate. 12.8 % more"
        " time than N-training gives what each connected teacher adds to each step of the server."
        " Nothing else is fitted."
    ),
    cells=(
        Cell("48 teachers", "throughput / Online", 1 + FASTER_THAN_ONLINE, "x", "calibrates",
             f"{_TEXT}: 23.5 % faster than Online"),
        Cell("48 teachers", "time / Online", 1 - SHORTER_THAN_ONLINE, "x", "free",
             f"{_TEXT}: training time 19.4 % shorter than Online's"),
        Cell("48 teachers", "time / N-training", 1 + LONGER_THAN_N, "x", "calibrates",
             f"{_TEXT}: training time 12.8 % longer than N-training's"),
        Cell("56 teachers", "time / with 48", 1.0, "x", "free", _ALIKE),
        Cell("56 teachers", "time / Online", 1 - SHORTER_THAN_ONLINE, "x", "derived",
             f"{_ALIKE}; 19.4 % shorter than Online's"),
        Cell("56 teachers", "time / N-training", 1 + LONGER_THAN_N, "x", "derived",
             f"{_ALIKE}; 12.8 % longer than N-training's"),
        Cell("40 teachers", "throughput / with 48", (40 / 48 + 1) / 2, "x", "free", _FEWER),
        Cell("Online", "time / N-training", (1 + LONGER_THAN_N) / (1 - SHORTER_THAN_ONLINE), "x",
             "free", f"{_TEXT}: 12.8 % more than N-training is 19.4 % less than Online"),
        Cell("teachers needed", "number", 48, "P4", "calibrates",
             f"{_TEXT}: 48 is the appropriate number of Teacher GPU cards"),
    ),
    orders=(
        ExpectedOrder((("N-training", "img/s"), ("48 teachers", "img/s"), ("Online", "img/s")),
              f"{_TEXT}: EDL-Dist much higher than Online, slightly lower than N-training"),
        ExpectedOrder((("48 teachers", "img/s"), ("40 teachers", "img/s")),
              f"{_TEXT}: the bottleneck of the number of teachers is 48"),
    ),
    contradictions=(
        Contradiction(
            "five P4 are right for one V100, more make it slower (section 4.3)",
            "48 are right for eight, that is six for one, and 40 are too few (section 4.4)",
            "If one student is faster with five teachers than with six, eight equal students cannot"
            " be slower with five each than with six. Students, teachers and models are the same.",
            "Each figure is calibrated on its own number: a P4 labels a fifth of what a V100 trains"
            " in figure 3, a sixth in figure 4.",
        ),
        Contradiction(
            "Online's rate is 1 / 1.93 of EDL-Dist's, which is similar to N-training's (section"
            " 4.3): labelling takes a V100 93 to 96 % of the time of a training step",
            "Online takes 1.128 x 1.235 = 1.39 times N-training's time (section 4.4): labelling"
            " takes 39 % of the time of a training step",
            "The models and the card are the same. If the exchange of gradients between eight cards"
            " explained it, their step would be 2.4 times as long as that of a single card, and 17"
            " to 20 P4 would suffice, not 48.",
            "Each figure is calibrated on its own ratio.",
        ),
        Contradiction(
            "a V100 has 14 Teraflops, a P4 5.5 (section 4.1): 2.5 times as fast",
            "a V100 needs six P4, and its own labelling takes 39 % of the time of a training step"
            " (section 4.4): it is 15 times as fast",
            "The P4's rate follows from 6, the V100's from Online.",
            "The Teraflops are not used.",
        ),
        Contradiction(
            "EDL-Dist is 23.5 % faster than Online (section 4.4)",
            "its training time is 19.4 % shorter (ibid.)",
            "1 / 1.235 = 0.810 is 19.0 % shorter; 1 / 0.806 is 24.1 % faster.",
            "The model is calibrated on the first; the second is a free cell.",
        ),
        Contradiction(
            "48 is the appropriate number of teachers, as table 3 shows (section 4.4)",
            "table 3 shows accuracies, with no number of teachers",
            "Figure 4b shows it, as the text says later.",
            "The text is used.",
        ),
        Contradiction(
            "the teachers are P4 (sections 4.1, 4.3, 4.4)",
            "they are P40 (captions of figures 3 and 4)",
            "A P40 has 12 Teraflops, twice a P4's.",
            "P4, as in the text; the cells name no absolute rate.",
        ),
    ),
)  # fmt: skip


def _mesh(teachers: int) -> Mesh:
    return Mesh(1 / V100_TRAINS, 1 / P4_LABELS, teachers, BATCH, STUDENTS, CONNECTION_S)


def simulate(quick: bool) -> Outcome:
    """Simulate N-training, Online, and EDL-Dist with each number of teachers.

    Args:
        quick: fewer batches.
    """
    batches = 90 if quick else 240
    t_s_s, on_card_s = 1 / V100_TRAINS, 1 / V100_LABELS
    rates = {
        "N-training": rate_alone(t_s_s, batch=BATCH, batches=batches, students=STUDENTS),
        "Online": rate_alone(t_s_s + on_card_s, batch=BATCH, batches=batches, students=STUDENTS),
    }
    for teachers in TEACHERS:
        rates[f"{teachers} teachers"] = rate_on_mesh(_mesh(teachers), batches=batches)
    wanted = teachers_wanted(_mesh(TEACHERS[-1]), batches=batches)
    values = {(name, "img/s"): rate for name, rate in rates.items()}
    for name, rate in rates.items():
        values |= {
            (name, "throughput / Online"): rate / rates["Online"],
            (name, "throughput / with 48"): rate / rates["48 teachers"],
            (name, "time / Online"): rates["Online"] / rate,
            (name, "time / N-training"): rates["N-training"] / rate,
            (name, "time / with 48"): rates["48 teachers"] / rate,
        }
    enough = [n for n in TEACHERS if rates[f"{n} teachers"] >= 0.99 * max(
        rates[f"{other} teachers"] for other in TEACHERS)]  # fmt: skip
    values["teachers needed", "number"] = float(enough[0])
    model: dict[str, float | str] = {
        "V100 trains ResNet50, img/s (scale, README of EDL)": V100_TRAINS,
        "V100 labels with ResNet101, img/s": V100_LABELS,
        "P4 labels with ResNet101, img/s": P4_LABELS,
        "each connected teacher adds to a step, ms": 1000 * CONNECTION_S,
    }
    shown = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    return Outcome(
        values,
        model,
        series={"way": list(rates), "img/s": list(rates.values())},
        notes=(
            f"In img/s, at the scale of the README: {shown}.",
            "Two of the free cells follow from calibrated ones by division (48 teachers' time /"
            " Online, Online's time / N-training): they test whether the paper agrees with itself."
            " Those of 40 and 56 teachers test the model.",
            f"Given all 56, Algorithm 1 as it runs here asks for {wanted}.",
        ),
    )
