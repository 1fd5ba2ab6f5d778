"""A link on its own: who is offered shared memory, and that no trouble ends its threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.engine import teacher_link
from edl.distill_reader.engine.outcomes import Broke, Done, Job, Outcome, Peer, Ready
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.errors import BadAnswer, RetryableError
from edl.proto.clients import Client, open_client
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.same_host import SameHostClient
from edl.proto.lent_arena import LentArena
from edl.scheduler.ledger.instructions import Span
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
    batches = LentArena.create()
    links: list[TeacherLink] = []

    def make(peer: Peer) -> tuple[TeacherLink, SimpleQueue[Outcome]]:
        posted: SimpleQueue[Outcome] = SimpleQueue()
        made = TeacherLink(peer, WAIT_S, lambda _, outcome: posted.put(outcome), batches=batches)
        links.append(made)
        return made, posted

    with closing(batches):
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


class Vague(ForeignGrpc):
    """Does not describe its model, and names its output as it is told: the last name for good."""

    names: Sequence[str] = ()

    def ModelInfer(self, request: Any, context: Any) -> Any:
        answer = super().ModelInfer(request, context)
        answer.outputs[0].name = self.names[min(self.requests, len(self.names)) - 1]
        return answer


@pytest.fixture
def vague() -> Iterator[Vague]:
    made = Vague()
    made.describes = False
    yield made
    made.stop()


def test_outputs_that_nobody_describes_have_the_names_that_came_twice(
    vague: Vague, link: Link
) -> None:
    vague.names = ("y", "y", "x", "y")
    made, posted = link(Peer("t", vague.address, MODEL, inputs=("x",)))
    made.connect()
    assert posted.get(timeout=WAIT_S) == Ready(("x",))
    job = Job(1, (Span(0, 0, 2),), {"x": np.ones((2, 6), np.float32)}, (), 2)
    for requests, came in ((2, Done), (3, Broke), (4, Done)):
        made.send(job)
        outcome = posted.get(timeout=WAIT_S)
        assert isinstance(outcome, came), outcome
        assert vague.requests == requests
        if isinstance(outcome, Broke):
            assert "lacks 'y'" in str(outcome.error)


def test_a_server_that_says_two_names_is_not_believed(vague: Vague, link: Link) -> None:
    vague.names = ("y", "x")
    made, posted = link(Peer("t", vague.address, MODEL, inputs=("x",)))
    made.connect()
    assert posted.get(timeout=WAIT_S) == Ready(("x",))
    made.send(Job(1, (Span(0, 0, 2),), {"x": np.ones((2, 6), np.float32)}, (), 2))
    outcome = posted.get(timeout=WAIT_S)
    assert isinstance(outcome, Broke)
    assert isinstance(outcome.error, BadAnswer)
    assert "when asked again" in str(outcome.error)
