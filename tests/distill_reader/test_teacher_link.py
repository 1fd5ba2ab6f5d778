"""A link on its own: who is offered shared memory, and that no trouble ends its threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from queue import SimpleQueue

import pytest

from edl.distill_reader.engine import teacher_link
from edl.distill_reader.engine.outcomes import Broke, Outcome, Peer, Ready
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.errors import RetryableError
from edl.proto.arena import Arena
from edl.proto.clients import Client, open_client
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.same_host import SameHostClient
from edl.proto.lent_arena import LentArena
from edl.tests.foreign_server import MODEL, ForeignGrpc

WAIT_S = 10.0


@pytest.fixture
def server() -> Iterator[ForeignGrpc]:
    made = ForeignGrpc()
    yield made
    made.stop()


Link = Callable[[Peer], tuple[TeacherLink, "SimpleQueue[Outcome]"]]


@pytest.fixture
def link() -> Iterator[Link]:
    labels, batches = Arena.create(), LentArena.create()
    links: list[TeacherLink] = []

    def make(peer: Peer) -> tuple[TeacherLink, SimpleQueue[Outcome]]:
        posted: SimpleQueue[Outcome] = SimpleQueue()
        made = TeacherLink(
            peer, labels, 1, WAIT_S, lambda _, outcome: posted.put(outcome), batches=batches
        )
        links.append(made)
        return made, posted

    with closing(labels), closing(batches):
        yield make
        for each in links:
            each.close()


@pytest.mark.parametrize(("foreign", "kind"), [(False, SameHostClient), (True, OipGrpcClient)])
def test_only_teachers_of_ours_are_offered_memory(
    server: ForeignGrpc, link: Link, foreign: bool, kind: type
) -> None:
    made, posted = link(Peer("t", server.address, MODEL, foreign=foreign))
    made.connect()
    assert posted.get(timeout=WAIT_S) == Ready(("x",))
    assert type(made._client) is kind


def test_a_probe_that_fails_by_whatever_is_told_and_made_again(
    server: ForeignGrpc, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([MemoryError("no room")])

    def opened(*arguments: object) -> Client:
        for error in failures:
            raise error
        return open_client(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(teacher_link, "open_client", opened)
    made, posted = link(Peer("t", server.address, MODEL))
    made.connect()
    broke = posted.get(timeout=WAIT_S)
    assert isinstance(broke, Broke)
    assert isinstance(broke.error, RetryableError)
    assert str(broke.error) == "MemoryError: no room"
    assert posted.get(timeout=WAIT_S) == Ready(("x",))
