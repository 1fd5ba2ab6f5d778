"""Arguments of a reader are checked at once; fields of a batch find the inputs of the model."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import CanaryPolicy, DistilReader, EnsemblePolicy
from edl.distill_reader.adapters.paddle import by_name
from edl.distill_reader.config import ReaderConfig, feed_pairs, rank_of, security_of
from edl.distill_reader.engine.requests import model_inputs
from edl.distill_reader.label_forms import NO_FORMS, LabelForms
from edl.distill_reader.options import (
    FORMER_PARAMETERS,
    TLS,
    EnsembleConfig,
    Limits,
    Timeouts,
    Trace,
)
from edl.proto.dataclass_json import from_plain, to_plain
from edl.proto.forms import LabelForm
from edl.runtime.errors import UsageError
from edl.tests.distill_reader.readers import NOBODY, Batches, reader_of
from edl.tests.proto.security.authority import Authority, write_secret

TEACHERS = {"a": ["h:1"], "b": ["h:2", "h:3"]}
TWO_SERVICES: dict[str, Any] = {"service": {"a": 1, "b": 1}, "teachers": TEACHERS}
TLS_FILES = ("ca", "certificate", "key")
GOOD: dict[str, Any] = {"service": "s", "teachers": ("127.0.0.1:1",)}


def test_it_survives_the_way_to_the_engine(tmp_path: Path) -> None:
    """Numbers of numpy do, and of credentials the names of their files."""
    token = write_secret(tmp_path / "token", "very-secret\n")
    numpys: dict[str, Any] = {
        "rank": np.int64(1),
        "ordered": np.bool_(False),
        "timeouts": Timeouts(request_s=np.float32(5), wait_s=None),  # type: ignore[arg-type]
        "canaries": CanaryPolicy(share=np.float32(0.5)),  # type: ignore[arg-type]
    }
    config = ReaderConfig(
        **GOOD,
        **numpys,
        feeds=((None, 0), ("x", "image")),
        fetches=("logits",),
        priority=-3,
        labels=LabelForms.from_user({"logits": "topk:20"}, 4, expand=False),
        security=security_of(TLS(Authority(tmp_path).issue("student").ca), token),
    )
    assert (type(config.rank), type(config.ordered)) == (int, bool)
    text = json.dumps(to_plain(config))
    assert from_plain(ReaderConfig, json.loads(text)) == config
    assert "very-secret" not in text


def test_forms_are_for_every_output_or_for_those_that_are_named() -> None:
    assert LabelForms.from_user(None, None, True) == NO_FORMS
    assert NO_FORMS.of("logits") is None
    numpys: Any = np.float32(4)
    assert LabelForms.from_user(None, numpys, True).of("logits") == LabelForm(temperature=4.0)
    every = LabelForms.from_user("topk:20", None, True)
    assert every.of("logits") == every.of("hidden") == LabelForm(None, 20)
    some = LabelForms.from_user({"logits": "topk:20"}, {"logits": 4, "aux": 2}, True)
    assert some.of("logits") == LabelForm(None, 20, 4.0)
    assert some.of("aux") == LabelForm(temperature=2.0)
    assert some.of("hidden") is None


@pytest.mark.parametrize(
    ("form", "temperature", "message"),
    [
        ("topk", None, "there is no form 'topk'"),
        ({"logits": "int8"}, None, "there is no form 'int8'"),
        (20, None, "label_form is text"),
        (None, 0, "above 0"),
        (None, {"logits": "4"}, "temperature is a finite number, not '4'"),
        ("float16", True, "temperature is a finite number"),
    ],
)
def test_forms_that_do_not_exist_are_refused(form: Any, temperature: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LabelForms.from_user(form, temperature, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"service": ""}, "name of a service"),
        ({"teachers": ()}, "either coordinator="),
        ({"teachers": ["127.0.0.1"]}, "names no port"),
        ({"coordinator": "redis://h:1"}, "either coordinator="),
        ({"upper_bytes": 10, "lower_bytes": 10}, "lower_bytes < upper_bytes"),
        ({"lower_bytes": -1}, "0 <= lower_bytes"),
        ({"upper_bytes": "1G", "lower_bytes": 0}, "upper_bytes is a whole number, not '1G'"),
        ({"teachers_min": 3, "teachers_max": 2}, "teachers_min <= teachers_max"),
        ({"priority": 1001}, "priority is a number from -1000 to 1000"),
        ({"limits": Limits(window=0)}, "window"),
        ({"limits": Limits(window=9)}, "window_max"),
        ({"limits": Limits(buffer_bytes=1)}, "upper_bytes <= buffer_bytes"),
        ({"timeouts": Timeouts(request_s=0)}, "request_s"),
        ({"job": "a/b"}, "job 'a/b' contains '/'"),
        ({"deterministic": True, "limits": Limits(request_rows="auto")}, "whole batches"),
        ({"rank": -1}, "rank is an integer from 0, not -1"),
        (
            {"fetches": ["logits"], "label_form": {"logit": "float16"}},
            r"for output 'logit', which is not among fetches=\['logits'\]",
        ),
        (
            {"service": {"a": "much"}, "teachers": {}},
            "the weight of 'a' is a finite number, not 'much'",
        ),
        ({"service": {3: 1.0}, "teachers": {}}, "the name of a service is text, not 3"),
        ({"ensemble": EnsemblePolicy()}, "ensemble= is for several services"),
        ({"service": {"a": 1.0}, "teachers": {}, "ensemble": "wait"}, "an EnsemblePolicy"),
        ({"teachers": "127.0.0.1:9"}, r"teachers is a list of texts, as in teachers=\['host:port"),
        ({"fetches": "logits"}, r"as in fetches=\['logits'\], not 'logits'"),
        ({"rank": True}, "rank is a whole number, not True"),
        ({"callbacks": [print]}, "subclasses of Callback, not <built-in function print>"),
        ({"limits": Limits(request_rows=0)}, "request_rows"),
        ({"limits": Limits(request_rows=True)}, "request_rows"),
        ({"label_form": {0: "float16"}}, "an output in label_form is text, not 0"),
        ({"temperature": {0: 2.0}}, "an output in temperature is text, not 0"),
        ({"soft_label_is": {0: "logits"}}, "an output in soft_label_is is text, not 0"),
        ({"service": {"a": 1, "b": 0}, "teachers": TEACHERS}, "weights above 0"),
        ({"service": {}, "teachers": (), "coordinator": "redis://h"}, "services with weights"),
        ({"service": {"a": 1, "b": 1}}, "name the teachers of each"),
        ({"service": {"a": 1, "c": 1}, "teachers": TEACHERS}, "name teachers for each service"),
        (
            {"service": "a", "teachers": {"a": ["h:1"], "b": ["h:2"]}},
            r"teachers is a list, as in teachers=\['h:1', 'h:2'\]",
        ),
        ({"service": "a", "teachers": {"a": 9}}, "teachers of 'a' is a list of texts"),
        ({**TWO_SERVICES, "expand_labels": False}, "averaged as dense labels"),
        ({"trace": "/nowhere/run.json"}, "the trace cannot be written.*nowhere"),
        ({"trace": Trace("run.json", 10)}, "max_bytes is at least"),
        ({"feeds": "image"}, r"feeds=\['image'\]"),
        ({"feeds": [True]}, "feeds is a list of fields"),
        ({"token_file": "nowhere.pem"}, "no file 'nowhere"),
        *(({"tls": TLS(**{name: "nowhere.pem"})}, "no file 'nowhere") for name in TLS_FILES),
        ({"tls": TLS(server_name="head")}, "without certificates"),
        ({"tls": TLS(server_name=1)}, "server_name=...\\) is text"),  # type: ignore[arg-type]
        # Each option, of a wrong type.
        *(({name: object()}, name) for name in [*inspect.signature(DistilReader).parameters][1:]),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"service": "s", "teachers": ["127.0.0.1:9"], **options}
    with pytest.raises(UsageError, match=message):
        DistilReader([np.zeros((1, 1))], **given)


@pytest.mark.parametrize(
    ("variables", "given", "rank"),
    [
        ({}, None, 0),
        ({"RANK": "3"}, None, 3),
        ({"PADDLE_TRAINER_ID": "2"}, None, 2),
        ({"RANK": "3"}, 0, 0),
        ({"RANK": "first"}, None, None),
    ],
)
def test_the_rank_is_that_of_the_launcher(
    variables: dict[str, str], given: int | None, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RANK", "PADDLE_TRAINER_ID"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    if rank is None:
        with pytest.raises(UsageError, match="RANK=first is not a rank: set rank= of the reader"):
            DistilReader([], service="s", teachers=["127.0.0.1:9"])
    else:
        assert rank_of(given) == rank


def test_the_world_of_a_launcher_does_not_divide_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frameworks divide their own data; a reader does only if it is told to."""
    for variable, value in {"RANK": "0", "WORLD_SIZE": "2", "PADDLE_TRAINERS_NUM": "2"}.items():
        monkeypatch.setenv(variable, value)
    with reader_of(Batches(1), NOBODY) as reader:
        assert reader.config.world_size == 1


@pytest.mark.parametrize("name", FORMER_PARAMETERS)
def test_a_parameter_that_was_regrouped_names_its_place(name: str) -> None:
    given: dict[str, Any] = {"service": "s", "teachers": ["127.0.0.1:9"], name: 1}
    with pytest.raises(TypeError, match=re.escape(f"no {name}=: write {FORMER_PARAMETERS[name]}")):
        DistilReader([np.zeros((1, 1))], **given)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Limits(window="2"), "window is a whole number"),  # type: ignore[arg-type]
        (lambda: Limits(window=np.zeros(2)), "window is a whole number"),  # type: ignore[arg-type]
        (lambda: Timeouts(wait_s=float("nan")), "wait_s is a finite number"),
        (lambda: Timeouts(wait_s=10**400), "wait_s is a finite number"),
        (lambda: Trace("run.json", "1G"), "max_bytes is a whole number"),  # type: ignore[arg-type]
        (lambda: CanaryPolicy(share="all"), "share is a finite number"),  # type: ignore[arg-type]
        (lambda: EnsemblePolicy("ignore"), "ignore"),  # type: ignore[arg-type]
    ],
)
def test_a_group_checks_its_values(wrong: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wrong()


def test_each_member_of_an_ensemble_knows_its_own_service() -> None:
    named = tuple((name, tuple(of)) for name, of in TEACHERS.items())
    mixing = EnsembleConfig((("a", 0.7), ("b", 0.3)), named, EnsemblePolicy("tolerate"))
    config = ReaderConfig("a+b", teachers=("h:1", "h:2", "h:3"), ensemble=mixing)
    assert from_plain(ReaderConfig, json.loads(json.dumps(to_plain(config)))) == config
    assert [(one.service, one.teachers) for one in config.members] == list(named)
    assert all(one.ensemble is None for one in config.members)


# --- fields of a batch


@pytest.mark.parametrize(
    ("fields", "inputs", "feeds", "expected"),
    [
        ({0: "image", 1: "label"}, ["x"], None, {"x": "image"}),
        ({0: "a", 1: "b"}, ["x", "y"], None, {"x": "a", "y": "b"}),
        ({0: "label", 1: "image"}, ["x"], [1], {"x": "image"}),
        ({"y": "Y", "x": "X", "label": "L"}, ["x", "y"], None, {"x": "X", "y": "Y"}),
        ({"image": "I", "label": "L"}, ["x"], None, {"x": "I"}),
        ({"label": "L", "image": "I"}, ["x"], ["image"], {"x": "I"}),
        ({"a": "A", "b": "B"}, ["x", "y"], {"y": "a", "x": "b"}, {"x": "B", "y": "A"}),
        ({0: "a", 1: "b"}, [], {"x": 1}, {"x": "b"}),
    ],
)
def test_fields_find_their_inputs(fields: Any, inputs: Any, feeds: Any, expected: Any) -> None:
    assert model_inputs(fields, inputs, feed_pairs(feeds)) == expected


@pytest.mark.parametrize(
    ("fields", "inputs", "feeds", "message"),
    [
        ({0: "a"}, ["x"], [3], "names field 3, a batch has \\[0\\]"),
        ({0: "a", 1: "b"}, ["x"], [0, 1], "names 2 fields"),
        ({0: "a"}, ["x"], {"z": 0}, "names input 'z', the model has \\['x'\\]"),
        ({0: "a"}, [], None, "names no inputs"),
        ({0: "a"}, ["x", "y"], None, "inputs \\['y'\\] get no field"),
        (
            {"mask": "M", "input_ids": "I", "labels": "L"},
            ["input_ids", "attention_mask"],
            None,
            r"\['attention_mask'\] have no field.*did you mean 'mask' for 'attention_mask'\?",
        ),
        ({"x": "X", "label": "L"}, ["x", "image_size"], None, r"\['image_size'\] have no field"),
    ],
)
def test_mistakes_are_named(fields: Any, inputs: Any, feeds: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model_inputs(fields, inputs, feed_pairs(feeds))


FIELDS = {"x": 1, "label": 2, "soft": 3}


@pytest.mark.parametrize(
    ("batch", "names", "named"),
    [
        (FIELDS, ["soft", "x"], {"soft": 3, "x": 1}),
        ([FIELDS], ["soft", "x"], {"soft": 3, "x": 1}),
        (FIELDS, [], FIELDS),
        ((1, 2, 3), [*FIELDS], FIELDS),
        ([1, 2, 3], [*FIELDS], FIELDS),
    ],
)
def test_fields_get_names(batch: Any, names: list[str], named: dict[str, int]) -> None:
    assert list(by_name(batch, names).items()) == list(named.items())


@pytest.mark.parametrize(
    ("batch", "names", "words"),
    [
        (FIELDS, ["x", "y"], "names 'y', a batch has"),
        ((1, 2, 3), ["x", "label"], "2 fields, a batch has 3, soft labels included"),
        ([1], [], "name each of them"),
    ],
)
def test_names_that_do_not_fit_are_refused(batch: Any, names: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        by_name(batch, names)
