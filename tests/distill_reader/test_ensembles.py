"""What users say of several services: what is refused, and what one of them is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader, EnsemblePolicy
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.engine import Engine
from edl.distill_reader.engine.outcomes import Broke, Done, Job, Peer, Ready
from edl.distill_reader.engine.roster import Assigned
from edl.distill_reader.ensembles import Mixing
from edl.errors import EdlError, RequestRefused, RetryableError, UsageError
from edl.proto.arena import Arena
from edl.proto.channel import Channel
from edl.proto.lent_arena import LentArena
from edl.scheduler.ledger import events as ev

X = np.ones((2, 3), np.float32)
TEACHERS = {"a": ["h:1"], "b": ["h:2", "h:3"]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"service": {"a": 1, "b": 0}, "teachers": TEACHERS}, "weights above 0"),
        ({"service": {}, "coordinator": "redis://h"}, "services with weights"),
        ({"service": {"a": 1, "b": 1}, "teachers": ["h:1"]}, "whose each teacher is"),
        ({"service": {"a": 1, "c": 1}, "teachers": TEACHERS}, "name some for each"),
        ({"service": "a", "teachers": TEACHERS}, "a list of teachers"),
        (
            {"service": {"a": 1, "b": 1}, "teachers": TEACHERS, "expand_labels": False},
            "averaged dense",
        ),
    ],
)
def test_what_cannot_be_mixed_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        DistilReader([], **options)


@pytest.mark.parametrize("options", [{"missing": "ignore"}, {"soft_label_is": "counts"}])
def test_a_policy_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"ignore|counts"):
        EnsemblePolicy(**options)


def test_each_member_is_told_of_its_own_service_and_the_engine_of_all() -> None:
    named = tuple((name, tuple(of)) for name, of in TEACHERS.items())
    mixing = Mixing((("a", 0.7), ("b", 0.3)), named, EnsemblePolicy("tolerate"))
    config = ReaderConfig("a+b", teachers=("h:1", "h:2", "h:3"), mixing=mixing)
    assert ReaderConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert [(one.service, one.teachers) for one in config.members] == list(named)
    assert all(one.mixing is None for one in config.members)


class TwoServices:
    """An engine that does not run, over a service of one teacher each; both have batch 0."""

    def __init__(self, **options: Any) -> None:
        self._channel, fd = Channel.pair()
        self.trainer = Channel.attach(fd)
        self.ring, self.arena = LentArena.create(), Arena.create()
        mixing = Mixing((("a", 1.0), ("b", 3.0)), (("a", ("h:1",)), ("b", ("h:2",))))
        config = ReaderConfig("a+b", teachers=("h:1", "h:2"), mixing=mixing, **options)
        self.engine = Engine(config, self._channel, self.ring, self.arena)
        for member in self.engine.members:
            name = member.config.service
            member._on_assigned(Assigned((Peer(name, "127.0.0.1:9", name),)))
            member._on_outcome(member.pool.link(name), Ready(("x",)))
        self.batch(0)

    def batch(self, number: int) -> None:
        fields = [[0, self.ring.put([X]).arrays[0].to_json()]]
        self.say("batch", number=number, nbytes=64, samples=2, source_s=0.0, fields=fields)

    def say(self, kind: str, **fields: Any) -> None:
        self.engine._on_message({"kind": kind, **fields})

    def outcome(self, name: str, error: EdlError | None = None) -> None:
        """The teacher of a service labels the batch that it has longest, or does not."""
        (member,) = (one for one in self.engine.members if one.config.service == name)
        flight = next(member.ledger.requests_at(name))
        job = Job(flight.request, flight.spans, {"x": X}, (), flight.rows)
        told = Done(job, {"soft": X}, 0.001, False, 0.01) if error is None else Broke(job, error)
        member._on_outcome(member.pool.link(name), told)

    def told(self, kind: str) -> dict[str, Any]:
        while (message := self.trainer.receive()) is not None:
            if message["kind"] == kind:
                return message
        raise AssertionError(f"nobody said {kind!r}")

    def close(self) -> None:
        for member in self.engine.members:
            member.pool.close()
        for closable in (self._channel, self.trainer, self.ring, self.arena):
            closable.close()


@pytest.fixture
def two() -> Iterator[TwoServices]:
    with closing(TwoServices()) as made:
        yield made


def test_what_one_has_labelled_stays_when_its_model_is_exchanged(two: TwoServices) -> None:
    """Its ledger has delivered the batch, and labels it no more."""
    two.outcome("a")
    a, _ = two.engine.members
    a.labels.clear()
    a.carrying.handle(ev.Relabel())
    two.outcome("b")
    assert two.told("labelled")["offset"] is not None


def test_answers_of_one_are_no_hope_for_labels_of_the_other() -> None:
    """The first batch has waited its time; those behind it go as soon as they are waited for."""
    with closing(TwoServices(no_teacher="hard_only", no_teacher_grace_s=5.0)) as two:
        vigil, handing = two.engine._vigil, two.engine._handing
        two.engine.members[0]._on_assigned(Assigned((), frozenset({"a"})))
        two.batch(1)
        for number, times in ((0, (0.0, 4.9, 5.0)), (1, (6.0,))):
            two.say("waiting")
            two.outcome("b")
            for now in times:
                assert handing.head == number
                vigil.look(now)
            two.say("taken", number=number, samples=2, step_s=None)
            vigil.look(5.5)
        assert handing.head is None


def test_what_one_will_never_label_may_still_go_to_the_teachers_of_the_other(
    two: TwoServices,
) -> None:
    _, b = two.engine.members
    two.outcome("b", RetryableError("for a while"))
    two.outcome("a", RequestRefused("bad shape"))
    assert "bad shape" in two.told("poison")["text"]
    b._on_outcome(b.pool.link("b"), Ready(("x",)))
    two.outcome("b")
    assert two.arena.used_bytes == 0


def test_nothing_is_left_of_what_was_mixed(two: TwoServices) -> None:
    two.outcome("a")
    two.outcome("b")
    offset = two.told("labelled")["offset"]
    assert two.arena.used_bytes > 64
    two.say("taken", number=0, samples=2, step_s=None, free=[offset])
    assert two.arena.used_bytes == 0


def test_nothing_is_left_of_what_another_service_refuses(two: TwoServices) -> None:
    two.outcome("a")
    two.outcome("b", RequestRefused("not for me"))
    assert "not for me" in two.told("poison")["text"]
    assert two.arena.used_bytes == 0


def disbelieve(two: TwoServices, *names: str) -> None:
    for member in two.engine.members:
        if (name := member.config.service) in names:
            member.carrying.handle(ev.Disbelieve(name))
            member.carrying.handle(ev.Readmitted(name))


def test_only_the_liars_part_of_a_mixed_batch_is_made_anew(two: TwoServices) -> None:
    two.outcome("a")
    two.outcome("b")
    two.told("labelled")
    used = two.arena.used_bytes
    disbelieve(two, "b")
    assert two.told("recall")["number"] == 0
    assert two.engine._handing.head is None, "it may be too late"
    two.say("recalled", number=0)
    assert two.engine._handing.head == 0
    assert two.arena.used_bytes < used, "the mixture is free"
    two.outcome("b")
    offset = two.told("labelled")["offset"]
    assert two.arena.used_bytes == used
    two.say("taken", number=0, samples=2, step_s=None, free=[offset])
    assert two.arena.used_bytes == 0


def test_both_may_have_lied(two: TwoServices) -> None:
    two.outcome("a")
    two.outcome("b")
    disbelieve(two, "a", "b")
    assert two.told("recall")["number"] == 0
    two.say("recalled", number=0)
    two.outcome("b")
    two.outcome("a")
    offset = two.told("labelled")["offset"]
    two.say("taken", number=0, samples=2, step_s=None, free=[offset])
    assert two.arena.used_bytes == 0


def test_what_waits_for_the_other_service_comes_back_at_once(two: TwoServices) -> None:
    two.outcome("a")
    disbelieve(two, "a")
    two.outcome("a")
    two.outcome("b")
    two.told("labelled")
    assert two.engine._handing.head is None


def test_a_recall_that_comes_too_late_changes_nothing(two: TwoServices) -> None:
    two.outcome("a")
    two.outcome("b")
    offset = two.told("labelled")["offset"]
    disbelieve(two, "b")
    two.say("taken", number=0, samples=2, step_s=None, free=[offset])
    assert two.arena.used_bytes == 0
    two.say("reset", epoch=2, data_epoch=2, pulled=1)
    two.say("recalled", number=0)
    assert two.engine._handing.head is None


def test_the_other_service_may_label_what_one_has_refused(two: TwoServices) -> None:
    two.outcome("b", RequestRefused("not for me"))
    two.outcome("a")
    assert two.arena.used_bytes == 0
