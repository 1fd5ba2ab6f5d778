"""`Distill`: the options that readers get from it, and what it refuses."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from edl.distill_reader import DistilReader, EnsemblePolicy
from edl.runtime.errors import UsageError
from edl.scheduler.students.weights import Cosine, Linear
from edl.student import Distill, Hint

HINT = Hint("map", "hidden")
BOTH = ["logits", "map"]


def test_a_reader_accepts_all_its_options() -> None:
    distill = Distill("teachers", feeds=["x"], no_teacher="fail", options={"upper_bytes": 5})
    told = distill.reader_options()
    assert set(told) <= set(inspect.signature(DistilReader).parameters)
    assert (told["service"], told["feeds"], told["no_teacher"]) == ("teachers", ["x"], "fail")
    assert told["upper_bytes"] == 5
    form: dict[str, Any] = {"label_form": "float16", "teacher_temperature": 4}
    told = Distill("teachers", fetches=BOTH, hints=[HINT], **form).reader_options()
    assert told["label_form"] == {"logits": "float16"}, "hints come as the model gives them"
    assert told["temperature"] == {"logits": 4}


def test_labels_are_classified_by_values_unless_probabilities_are_certain() -> None:
    assert Distill("teachers").arriving_kind is None
    assert Distill("teachers", teacher_temperature=2).arriving_kind == "probabilities"
    assert Distill({"a": 0.5, "b": 0.5}).arriving_kind == "probabilities"
    top_k = Distill("teachers", label_form="topk:3", soft_label_is="probabilities")
    assert top_k.arriving_kind == "logits", "logarithms of probabilities travel"


def test_weights_of_services_follow_the_labels() -> None:
    mixed = Distill({"a": 1, "b": 1}, options={"ensemble": EnsemblePolicy(with_weights=True)})
    assert mixed.label_names == ("", "ensemble_weights")


@pytest.mark.parametrize(
    ("distill", "needs"),
    [
        (Distill("teachers"), True),
        (Distill("teachers", alpha=1, beta=0), False),
        (Distill("teachers", alpha=1, beta=Linear(0, 0)), False),
        (Distill("teachers", beta=Cosine(0, 1)), True),
        (Distill("teachers", beta=0, fetches=BOTH, hints=[HINT]), True),
    ],
)
def test_teachers_are_asked_where_their_labels_ever_count(distill: Distill, needs: bool) -> None:
    assert distill.needs_labels is needs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"service": ""}, "the name of a service"),
        ({"alpha": -1}, "alpha: a weight"),
        ({"alpha": 0, "beta": 0}, "nothing to learn from"),
        ({"temperature": 0}, "temperature is a finite number above 0"),
        ({"teacher_temperature": float("inf")}, "teacher_temperature is"),
        ({"loss": "l1"}, "loss is one of kl, mse, topk"),
        ({"soft_label_is": "scores"}, "soft_label_is is one of"),
        ({"label_smoothing": 1}, "label_smoothing is from 0"),
        ({"alpha": 0, "beta": 1, "no_teacher": "hard_only"}, "alpha is 0"),
        ({"loss": "topk"}, "needs label_form='topk:K'"),
        ({"loss": "topk", "label_form": "topk:3"}, "needs the name of the output"),
        ({"loss": "mse", "label_form": "topk:3"}, "omits most of them"),
        ({"loss": "mse", "teacher_temperature": 2}, "with these settings: use"),
        (
            {"loss": "topk", "label_form": "topk:3", "fetches": ["z"], "temperature": 4},
            "give teacher_temperature=4",
        ),
        (
            {"service": {"a": 1}, "loss": "topk", "label_form": "topk:3", "fetches": ["z"]},
            "averaged as dense labels",
        ),
        ({"output": "z", "fetches": ["y"]}, "'z' is not among the fetches"),
        ({"hints": [HINT]}, "the hint 'map' is not among the fetches"),
        ({"hints": [HINT, Hint("map", 1)], "fetches": BOTH}, "two hints name the output 'map'"),
        ({"options": {"rank": 1}}, "'rank' is set by the training"),
        ({"options": {"uper_bytes": 5}}, "a reader has no option 'uper_bytes'; it has source,"),
        ({"options": {"store": None}}, "give store=... to Distill itself"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Distill(**{"service": "teachers", **arguments})


def test_hints_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="the weight of the hint 'map'"):
        Hint("map", 0, weight=-1)
    with pytest.raises(UsageError, match="a function that makes a layer"):
        Hint("map", 0, projector=3)  # type: ignore[arg-type]
