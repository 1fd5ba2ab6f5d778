"""The shelf of an engine that does not run: orders of events that are rare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.engine import Engine
from edl.distill_reader.engine.member import Member
from edl.distill_reader.engine.outcomes import Peer, Ready
from edl.distill_reader.engine.roster import Assigned
from edl.distill_reader.engine.shelf_keeper import Identity
from edl.distill_reader.engine.stored import Stocked
from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.rows import Content
from edl.proto.arena import Arena
from edl.proto.channel import Channel
from edl.proto.lent_arena import LentArena
from edl.scheduler.switching import Advice

X = np.ones((2, 3), np.float32)
OLD = Peer("a", "127.0.0.1:9", "s", 1, "old")
NEW = Peer("b", "127.0.0.1:9", "s", 1, "new")
FOUND = Stocked((0, 1), {"soft": X})


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    """With a store, a teacher of the content "old", and batch 0 on the shelf, being looked up."""
    channel, fd = Channel.pair()
    trainer, ring, labels = Channel.attach(fd), LentArena.create(), Arena.create()
    config = ReaderConfig("s", teachers=(OLD.address,), store=LabelStore(tmp_path / "s", 1 << 24))
    engine = Engine(config, channel, ring, labels)
    (member,) = engine.members
    assert member.shelf is not None
    member._on_assigned(Assigned((OLD,), advice=Advice("old", "", 1)))
    member._on_outcome(member.pool.link("a"), Ready(("x",)))
    member.shelf.opened(None)
    (ref,) = ring.put([X]).arrays
    fields = [[0, ref.to_json()]]
    batch = {"number": 0, "nbytes": 64, "samples": 2, "source_s": 0.0, "fields": fields}
    engine._on_message({"kind": "batch", "generation": ring.generation(ref), **batch})
    member.look(0.0)
    assert member.is_on_shelf(0)
    yield member
    member.close()
    for closable in (channel, trainer, ring, labels):
        closable.close()


def found(member: Member, content_id: str) -> None:
    """The store says what it has of batch 0."""
    assert member.shelf is not None
    member.shelf.looked(Identity(0, Content(content_id), [b"0", b"1"]), FOUND)


def test_what_the_store_has_is_not_asked_for(member: Member) -> None:
    found(member, "old")
    assert (member.ledger.deliverable, member.ledger.sent) == (1, 0)


def test_what_was_looked_up_of_the_old_model_comes_too_late(member: Member) -> None:
    """The stream has changed over: no batch behind that has labels of the old content."""
    member._on_assigned(Assigned((NEW,), advice=Advice("new", "", 1)))
    found(member, "old")
    assert (member.ledger.deliverable, member.is_on_shelf(0)) == (0, True)
    member._on_outcome(member.pool.link("b"), Ready(("x",)))
    member.look(1.0)
    found(member, "new")
    assert (member.ledger.deliverable, member.ledger.sent) == (1, 0)
