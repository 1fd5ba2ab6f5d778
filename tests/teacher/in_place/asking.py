"""A batch that lies in an arena, and what a teacher makes of it."""

from __future__ import annotations

from edl.proto.arena import Array
from edl.proto.clients import Request
from edl.proto.clients.same_host import SameHostClient
from edl.proto.lent_arena import LentArena
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.fakes import array

X = array(300, 4)


def lying(arena: LentArena, batch: Array = X) -> Array:
    return arena.get(arena.put([batch]).arrays[0])


def received(bench: Bench) -> float:
    return bench.count("edl_teacher_received_bytes_total")


def doubled(client: SameHostClient, batch: Array) -> Array:
    return client.infer(Request({"x": batch}), WAIT_S).outputs["double"]
