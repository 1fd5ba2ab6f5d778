"""Devices as they are named, one by one and in lists."""

from __future__ import annotations

import os

import pytest

from edl.errors import UsageError
from edl.teacher.config import PredictorConfig
from edl.teacher.devices import Device, check_cores, parse_devices


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", Device("cpu")),
        ("cpu:3", Device("cpu", (3,))),
        ("cpu:0-2", Device("cpu", (0, 1, 2))),
        ("cpu:0-1+6+8-9", Device("cpu", (0, 1, 6, 8, 9))),
        ("gpu", Device("gpu:0")),
        ("gpu:2", Device("gpu:2")),
    ],
)
def test_a_device_is_read_and_written(text: str, device: Device) -> None:
    assert Device.parse(text) == device
    assert Device.parse(str(device)) == device


@pytest.mark.parametrize(
    "text",
    ["", "tpu", "cpu:", "cpu:x", "cpu:2-1", "cpu:-1", "cpu:1-", "gpu:", "gpu:-1", "cpu:0-99999999"],
)
def test_what_is_no_device_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match="write cpu, cpu:FIRST-LAST"):
        Device.parse(text)


def test_a_list_may_name_a_device_twice_but_not_a_core() -> None:
    assert len(parse_devices("cpu, cpu,gpu:0,gpu:0")) == 4
    with pytest.raises(UsageError, match="core 1 stands there twice"):
        parse_devices("cpu:0-1,cpu:1-2")


def test_cores_say_the_threads() -> None:
    config = PredictorConfig("m", threads=3)
    assert config.on(Device()).threads == 3
    pinned = config.on(Device("cpu", (4, 5)))
    assert (pinned.device, pinned.cores, pinned.threads) == ("cpu", (4, 5), 2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_a_core_that_is_not_ours_is_refused_before_anything_is_started() -> None:
    check_cores([Device("cpu", (min(os.sched_getaffinity(0)),)), Device("gpu:0")])
    with pytest.raises(UsageError, match="core 60000 cannot be used"):
        check_cores([Device("cpu", (60000,))])
