"""Settings that cannot work are refused at once, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from edl.distill_reader.config import ReaderConfig
from edl.errors import UsageError

GOOD: dict[str, Any] = {"service": "s", "teachers": ("127.0.0.1:1",)}


def test_it_survives_the_way_to_the_engine() -> None:
    config = ReaderConfig(
        **GOOD,
        feeds=((None, 0), ("x", "image")),
        fetches=("logits",),
        wait_timeout_s=None,
        priority=-3,
    )
    assert ReaderConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service": ""}, "name of a service"),
        ({"teachers": ()}, "either coordinator="),
        ({"coordinator": "redis://h:1"}, "either coordinator="),
        ({"upper_bytes": 10, "lower_bytes": 10}, "lower_bytes < upper_bytes"),
        ({"lower_bytes": -1}, "0 <= lower_bytes"),
        ({"teachers_min": 3, "teachers_max": 2}, "teachers_min <= teachers_max"),
        ({"priority": 1001}, "priority is a number from -1000 to 1000"),
        ({"window": 0}, "window"),
        ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"job": "a/b"}, "job"),
        ({"rank": -1}, "rank"),
    ],
)
def test_what_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ReaderConfig(**{**GOOD, **change})
