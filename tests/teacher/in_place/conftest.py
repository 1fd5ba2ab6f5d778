"""A teacher, an arena of a reader on its host, and the client of both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.proto.clients import open_client
from edl.proto.clients.same_host import SameHostClient
from edl.proto.lent_arena import LentArena
from edl.tests.teacher.bench import WAIT_S, Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def arena() -> Iterator[LentArena]:
    made = LentArena.create(1 << 20)
    yield made
    made.close()


@pytest.fixture
def client(bench: Bench, arena: LentArena) -> Iterator[SameHostClient]:
    made = open_client("", bench.address, "resnet", arena=arena)
    assert isinstance(made, SameHostClient)
    made.probe(WAIT_S)
    yield made
    made.close()
