"""A batch that stays where the reader has it: only its place is sent, by our codec."""

from __future__ import annotations

from ...proto.allocator import tune_allocator
from ...proto.arena import Array
from ...proto.clients import Request
from ...proto.clients.oip_grpc import OipGrpcClient
from ...proto.clients.same_host import SameHostClient
from ...proto.lent_arena import LentArena
from . import Ask
from .codec import MODEL, TIMEOUT_S, serve

__all__ = ["connect", "serve"]


def connect(port: int, batch: Array) -> Ask:
    """See `Lane`."""
    tune_allocator()
    arena = LentArena.create()
    lying = arena.get(arena.put([batch]).arrays[0])
    client = SameHostClient(OipGrpcClient(f"127.0.0.1:{port}", MODEL), arena)
    client.probe(TIMEOUT_S)
    assert client.in_place  # or this would measure another lane

    def ask(_: int) -> None:
        client.infer(Request({"x": lying}), TIMEOUT_S)

    return ask
