"""A teacher that is full and says when it will have room is asked then, and loses no batch."""

from __future__ import annotations

import time

from edl.distill_reader import DistilReader
from edl.errors import RateLimited
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.tests.distill_reader.test_reader import Batches, check_epoch
from edl.tests.scripted_teacher import ScriptedTeacher, label

SOURCE = Batches(20)
ROOM_AFTER_S = 0.4


def test_it_is_left_alone_until_there_is_room() -> None:
    refused_at: list[float] = []

    def full_at_first(request: InferRequest) -> dict[str, Array]:
        if not refused_at or time.monotonic() < refused_at[0] + 2 * ROOM_AFTER_S:
            refused_at.append(time.monotonic())
            raise RateLimited("full", ROOM_AFTER_S)
        return label(request)

    teacher = ScriptedTeacher(full_at_first)
    try:
        with DistilReader(SOURCE, service="s", teachers=[teacher.address]) as reader:
            check_epoch(SOURCE, list(reader))
            window = reader.config.window
    finally:
        teacher.stop()
    # Each time at most one request for each place in the window; and then as long as it said.
    first, later = refused_at[0], refused_at[window:]
    assert all(at >= first + ROOM_AFTER_S for at in later)
    assert len(refused_at) <= 3 * window
