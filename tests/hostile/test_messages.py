"""Thousands of messages that no honest peer sends, at both planes: each has its status and count.

Bytes of no meaning, honest messages cut and bent, fields and tensors that cannot be, and more than
is taken at once; while a good client is served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edl.errors import WireError
from edl.proto import coordinator_pb2 as pb
from edl.proto import tensors
from edl.proto.security import open_channel
from edl.proto.version import PROTOCOL_VERSION
from edl.tests.ground.programs import wait_for
from edl.tests.hostile.good_client import served_throughout
from edl.tests.hostile.inputs import CONTROL, DATA, TOO_LARGE, Input
from edl.tests.hostile.planes import CONTROL as CONTROL_SERVICE
from edl.tests.hostile.planes import DATA as DATA_SERVICE
from edl.tests.hostile.planes import Code, ControlPlane, GoodStudent, ends_of
from edl.tests.hostile.storm import MESSAGES, storm
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.fakes import array

#: What each status of a refusal is counted as.
_COUNTED = {
    Code.INVALID_ARGUMENT: "malformed",
    Code.OUT_OF_RANGE: "version",
    Code.RESOURCE_EXHAUSTED: "too_large",
    Code.FAILED_PRECONDITION: "wrong_instance",
}


@pytest.mark.parametrize("count", MESSAGES)
def test_control_plane(control: ControlPlane, count: int) -> None:
    ended: Counter[Code] = Counter()

    with open_channel(control.address) as channel:

        def hit(batch: list[Input]) -> None:
            ends = ends_of(channel, CONTROL_SERVICE, batch)
            for one, (code, details) in zip(batch, ends, strict=True):
                assert code in _expected_of_a_manager(one), (one, code, details)
                ended[code] += 1

        good = GoodStudent(control.address)
        with served_throughout(good):
            assert storm(CONTROL, count, hit) == count
        good.close()
    _check_counts(ended, lambda reason: control.refused[reason])


def _expected_of_a_manager(one: Input) -> tuple[Code, ...]:
    if one.message is TOO_LARGE:
        return (Code.RESOURCE_EXHAUSTED,)
    kind = "StudentReport" if one.method == "Subscribe" else f"{one.method}Request"
    message: Any = getattr(pb, kind)()
    try:
        message.ParseFromString(one.message)
    except Exception:
        return (Code.INVALID_ARGUMENT,)
    if one.method == "Subscribe" and message.protocol_version != PROTOCOL_VERSION:
        return (Code.OUT_OF_RANGE,)
    if one.method == "Watch" and message.follow:  # unless it names no service, it goes on
        return Code.DEADLINE_EXCEEDED, Code.INVALID_ARGUMENT
    return Code.OK, Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS, Code.PERMISSION_DENIED


@pytest.mark.parametrize("count", MESSAGES)
def test_data_plane(data: Bench, count: int) -> None:
    ended: Counter[Code] = Counter()

    with open_channel(data.address) as channel:

        def hit(batch: list[Input]) -> None:
            ends = ends_of(channel, DATA_SERVICE, batch)
            for one, (code, details) in zip(batch, ends, strict=True):
                assert code in _expected_of_a_teacher(one), (one, code, details)
                ended[code] += 1

        with served_throughout(lambda: _labelled_well(data)):
            assert storm(DATA, count, hit) == count
    _check_counts(ended, lambda reason: int(data.refused(reason) or 0))


def _expected_of_a_teacher(one: Input) -> tuple[Code, ...]:
    if one.method in ("ServerLive", "ServerMetadata"):
        return (Code.OK,)  # there is nothing in these to be read
    if one.message is TOO_LARGE:
        return (Code.RESOURCE_EXHAUSTED,)
    if one.method == "ModelInfer":
        try:
            request = tensors.decode_request(one.message)
        except WireError:
            return (Code.INVALID_ARGUMENT,)
        if {"teacher_id", "incarnation"} & set(request.parameters):
            return Code.OK, Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION
    return Code.OK, Code.INVALID_ARGUMENT


def _labelled_well(data: Bench) -> None:
    labels = data.infer(rows=3).outputs["double"]
    np.testing.assert_array_equal(labels, array(3, 4) * 2)


def _check_counts(ended: Counter[Code], counted: Callable[[str], int]) -> None:
    """As many refusals are counted, for each reason, as there were."""
    assert {Code.OK, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED} <= set(ended)
    for code, reason in _COUNTED.items():
        wait_for(lambda c=code, r=reason: counted(r) == ended[c], 5)  # type: ignore[misc]
