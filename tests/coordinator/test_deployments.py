"""What a deployment may say: nothing by which somebody's code would run on others' machines."""

from __future__ import annotations

import json

import pytest

from edl.coordinator.machines.options import ALLOWED, arguments, parse_options
from edl.coordinator.machines.records import (
    Deployment,
    Order,
    Report,
    attempt_of,
    deployment_from,
    order_from,
    written,
)
from edl.coordinator.machines.urls import check_url
from edl.errors import UsageError
from edl.teacher import options as teacher_options
from edl.teacher.backends.images import NAMED
from edl.teacher.cli import app

GOOD = Deployment("a", "s3://bucket/a", "ab" * 32, options=(("micro-batch", "4"),), max=3)
#: Options of a teacher that name code, programs, files or sockets of the machine.
DANGEROUS = (
    "model=os:system", "preprocess=os:system", "preprocess=a.b:c", "serving-python=/bin/sh",
    "engine=paddle-serving", "backend=callable", "canary=/etc/passwd", "host=0.0.0.0",
    "insecure=true", "tokens=/tmp/x", "tls-key=/tmp/x", "coordinator=redis://evil",
    "teacher-id=other", "service=other", "http=0.0.0.0:80", "metrics-listen=0.0.0.0:80",
    "advertise=evil:1", "devices=gpu:0", "no-self-test=true",
)  # fmt: skip


@pytest.mark.parametrize("option", DANGEROUS)
def test_an_option_that_could_run_code_or_open_a_door_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"option|cannot say"):
        parse_options([option])


def test_what_is_allowed_are_options_of_a_teacher() -> None:
    import typer

    command = typer.main.get_command(app)
    serve = command.commands["serve"]  # type: ignore[attr-defined]
    known = {name.removeprefix("--") for one in serve.params for name in one.opts}
    assert known >= set(ALLOWED)
    assert teacher_options.SERVE
    for name in NAMED:
        assert parse_options([f"preprocess={name}"])


@pytest.mark.parametrize(
    "texts",
    [["micro-batch"], ["micro-batch=0"], ["micro-batch=4", "micro-batch=8"], ["rate=--x"],
     ["rate=1e9999"], ["threads=-1"], ["input=a:FP32"], ["input=a:FP32:1;rm"], ["slots="],
     ["micro-batch=4\n--host=0.0.0.0"], ["preprocess=unit"] * 65],
)  # fmt: skip
def test_an_option_in_another_form_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_options(texts)


def test_options_become_arguments_that_cannot_be_taken_for_others() -> None:
    options = parse_options(["--micro-batch=auto", "deterministic=true", "input=x:FP32:-1,3"])
    assert arguments(options) == ["--micro-batch=auto", "--deterministic", "--input=x:FP32:-1,3"]


@pytest.mark.parametrize(
    "url",
    ["/models/a", "a", "ftp://h/a", "ssh://h/a", "s3://", "file:///", "zip://a::https://h/b",
     "https://user:word@h/a", "s3://b/a b", "s3://b/\n", "memory://a", "s3://" + "x" * 3000],
)  # fmt: skip
def test_a_url_that_is_no_models_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_url(url)
    assert "word" not in str(refused.value).replace("password", "")


def test_a_near_name_is_proposed() -> None:
    with pytest.raises(UsageError, match="did you mean micro-batch"):
        parse_options(["microbatch=4"])


@pytest.mark.parametrize(
    "change",
    [{"min": 4}, {"min": -1}, {"priority": 5000}, {"price_per_hour": float("inf")},
     {"price_per_hour": -1.0}, {"freeze_s": 1e9}, {"content_id": "AB" * 32}, {"content_id": ".."},
     {"service": "a b"}, {"model_url": "nowhere"}, {"options": [["host", "0.0.0.0"]]},
     {"options": [["micro-batch"]]}, {"options": "x"}, {"min": "1"}, {"withdrawn": 1},
     {"cost_ceiling_per_hour": "1"}, {"cost_ceiling_per_hour": -1.0, "price_per_hour": 1.0},
     {"cost_ceiling_per_hour": 5.0, "price_per_hour": 0.0},
     {"cost_ceiling_per_hour": 1.0, "price_per_hour": 0.6, "min": 2, "max": 2}],
)  # fmt: skip
def test_a_record_that_could_not_be_deployed_is_not_read_either(change: dict[str, object]) -> None:
    told = {**GOOD.to_json(), **change}
    with pytest.raises(UsageError):
        Deployment.from_json(told)
    text = json.dumps(told)
    assert deployment_from(text) is None
    order = json.dumps({"number": 3, "deployment": told, "why": ""})
    assert order_from(order) == Order()


def test_what_was_written_is_read_and_newer_fields_are_left_out() -> None:
    assert deployment_from(written(GOOD)) == GOOD
    newer = json.dumps({**GOOD.to_json(), "of_tomorrow": 1})
    assert deployment_from(newer) == GOOD
    assert order_from(written(Order(2, GOOD, "why"))) == Order(2, GOOD, "why")
    told = Report(blocked=(attempt_of(GOOD),), troubles=("it broke",))
    assert Report.from_json(told.to_json()).trouble_with(GOOD) == "it broke"
