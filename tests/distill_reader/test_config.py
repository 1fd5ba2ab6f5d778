"""Settings that cannot work are refused at once, with what to do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import Callback, DistilReader, EnsemblePolicy
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.label_forms import AS_GIVEN, LabelForms
from edl.errors import UsageError
from edl.proto.forms import Form

GOOD: dict[str, Any] = {"service": "s", "teachers": ("127.0.0.1:1",)}


def test_it_survives_the_way_to_the_engine() -> None:
    config = ReaderConfig(
        **GOOD,
        feeds=((None, 0), ("x", "image")),
        fetches=("logits",),
        wait_timeout_s=None,
        priority=-3,
        labels=LabelForms.given({"logits": "topk:20"}, 4, expand=False),
    )
    assert ReaderConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service": ""}, "name of a service"),
        ({"teachers": ()}, "either coordinator="),
        ({"teachers": ("127.0.0.1",)}, "names no port"),
        ({"coordinator": "redis://h:1"}, "either coordinator="),
        ({"upper_bytes": 10, "lower_bytes": 10}, "lower_bytes < upper_bytes"),
        ({"lower_bytes": -1}, "0 <= lower_bytes"),
        ({"teachers_min": 3, "teachers_max": 2}, "teachers_min <= teachers_max"),
        ({"priority": 1001}, "priority is a number from -1000 to 1000"),
        ({"window": 0}, "window"),
        ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"job": "a/b"}, "job"),
        ({"rank": -1}, "rank"),
        (
            {"fetches": ("logits",), "labels": LabelForms.given({"logit": "float16"}, None, True)},
            r"for output 'logit', and fetches are \['logits'\]",
        ),
    ],
)
def test_what_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ReaderConfig(**{**GOOD, **change})


def test_forms_are_for_every_output_or_for_those_that_are_named() -> None:
    assert LabelForms.given(None, None, True) == AS_GIVEN
    assert AS_GIVEN.of("logits") is None
    every = LabelForms.given("topk:20", None, True)
    assert every.of("logits") == every.of("hidden") == Form(None, 20)
    some = LabelForms.given({"logits": "topk:20"}, {"logits": 4, "aux": 2}, True)
    assert some.of("logits") == Form(None, 20, 4.0)
    assert some.of("aux") == Form(temperature=2.0)
    assert some.of("hidden") is None


@pytest.mark.parametrize(
    ("form", "temperature", "message"),
    [
        ("topk", None, "there is no form 'topk'"),
        ({"logits": "int8"}, None, "there is no form 'int8'"),
        (20, None, "label_form is text"),
        (None, 0, "above 0"),
        (None, {"logits": "4"}, "a temperature is a number, not '4'"),
        ("float16", True, "a temperature is a number"),
    ],
)
def test_forms_that_do_not_exist_are_refused_at_once(
    form: Any, temperature: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        LabelForms.given(form, temperature, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"service": None}, "service is a name, or a dict"),
        (
            {"service": {"a": "much"}, "teachers": {}},
            "the weight of 'a' is a finite number, not 'much'",
        ),
        ({"service": {3: 1.0}, "teachers": {}}, "the name of a service is text, not 3"),
        ({"ensemble": EnsemblePolicy()}, "ensemble= is for several services"),
        ({"service": {"a": 1.0}, "teachers": {}, "ensemble": "wait"}, "an EnsemblePolicy"),
        ({"teachers": "127.0.0.1:9"}, r"teachers is a list of texts, as in teachers=\['host:port"),
        ({"teachers": None}, "teachers is a list of texts"),
        ({"coordinator": 6379, "teachers": ()}, "coordinator is text, not 6379"),
        ({"feeds": 0}, r"feeds is a list of fields.*not 0"),
        ({"feeds": {0: "x"}}, "feeds is a list of fields"),
        ({"fetches": "logits"}, r"as in fetches=\['logits'\], not 'logits'"),
        ({"upper_bytes": "256 MB"}, "upper_bytes is a whole number, not '256 MB'"),
        ({"window": 2.5}, "window is a whole number"),
        ({"rank": True}, "rank is a whole number, not True"),
        ({"request_timeout_s": None}, "request_timeout_s is a finite number, not None"),
        ({"wait_timeout_s": float("nan")}, "wait_timeout_s is a finite number"),
        ({"ordered": "no"}, "ordered is True or False, not 'no'"),
        ({"metrics_listen": 9102}, "metrics_listen is text, not 9102"),
        ({"store": "labels.edl"}, r"a LabelStore\(path, max_bytes\), not 'labels.edl'"),
        ({"canaries": 0.1}, "canaries is a CanaryPolicy or None"),
        ({"callbacks": Callback()}, r"callbacks is a list, as in callbacks=\["),
        ({"trace": 3}, "trace is a path, not 3"),
        ({"tls_ca": 3}, "tls_ca is a path, not 3"),
        ({"token_file": "/nowhere/token"}, "no file '/nowhere/token'.*as token_file"),
    ],
)
def test_what_is_of_a_wrong_type_is_named(options: dict[str, Any], message: str) -> None:
    given = {"service": "s", "teachers": ["127.0.0.1:9"], **options}
    with pytest.raises(UsageError, match=message):
        DistilReader([np.zeros((1, 1))], **given)


def test_numbers_of_numpy_are_numbers() -> None:
    numpys: dict[str, Any] = {
        "rank": np.int64(1),
        "request_timeout_s": np.float32(5),
        "ordered": np.bool_(False),
    }
    config = ReaderConfig(**GOOD, **numpys)
    assert ReaderConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert (type(config.rank), type(config.ordered)) == (int, bool)
