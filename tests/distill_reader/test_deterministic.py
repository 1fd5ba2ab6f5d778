"""A deterministic reader, handler by handler: one numerics_id labels, by whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.contents import Legacy
from edl.distill_reader.engine.numerics import Numerics
from edl.distill_reader.engine.outcomes import Done, Job, Peer, Ready
from edl.distill_reader.engine.roster import Assigned
from edl.distill_reader.engine.speeds import Speeds
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.errors import UsageError
from edl.scheduler.switching import Advice
from edl.tests.distill_reader.test_engine import Bench, X

SAME = "paddle-fp32-1"
OTHER = "paddle-fp32-2"


def peer(name: str, numerics_id: str, content_id: str = "c") -> Peer:
    return Peer(name, "127.0.0.1:9", "s", 1, content_id, numerics_id=numerics_id)


class Strict(Bench):
    """A bench whose teacher `a` has not said its numerics; it has batches 0 and 1."""

    def assign(self, *peers: Peer, content_id: str = "c", counter: int = 1) -> None:
        advice = Advice(content_id, "", 0)
        told = Assigned(peers, frozenset({"a"}), len(peers), (7, counter), advice)
        self.member._on_assigned(told)

    def joins(self, name: str) -> None:
        self.member._on_outcome(self.member.pool.link(name), Ready(("x",)))

    def says(self, link: TeacherLink, job: Job, numerics_id: str) -> None:
        done = Done(job, {"soft": X}, 0.001, False, 0.01, numerics_id=numerics_id)
        self.member._on_outcome(link, done)


@pytest.fixture
def bench() -> Iterator[Strict]:
    bench = Strict(deterministic=True)
    yield bench
    bench.close()


def test_teachers_of_other_numerics_get_nothing_and_count_as_missing(bench: Strict) -> None:
    bench.assign(peer("b", SAME), peer("c", OTHER), peer("d", SAME), peer("e", ""))
    bench.joins("b")
    bench.joins("d")
    assert bench.member.pool.unreachable == 2, "so that two more are asked for"
    assert set(bench.member.ledger.teachers) == {"b", "d"}
    for name in ("c", "e"):
        with pytest.raises(KeyError):
            bench.member.pool.link(name)
    assert "c, e: of other numerics" in bench.member.pool.last_trouble


def test_who_was_only_named_is_judged_by_its_first_answer(bench: Strict) -> None:
    bench.says(bench.link, bench.job("a", 0), SAME)
    assert bench.member.ledger.deliverable == 1
    bench.says(bench.link, bench.job("a", 1), OTHER)
    assert bench.member.ledger.deliverable == 1, "its labels are others from here on"
    assert bench.member.ledger.queued == 1, "the batch waits for another teacher"
    assert bench.member.ledger.teachers == ()


@pytest.mark.parametrize("numerics_id", ["", "merged-paddle-fp32-3", "mixed-paddle-fp32-3"])
def test_who_promises_no_bits_labels_nothing(bench: Strict, numerics_id: str) -> None:
    bench.says(bench.link, bench.job("a", 0), numerics_id)
    assert bench.member.ledger.deliverable == 0
    assert bench.member.ledger.teachers == ()


def test_another_model_is_pinned_anew(bench: Strict) -> None:
    bench.assign(peer("b", SAME))
    assert bench.member.contents.legacy.numerics_id == SAME
    bench.assign(peer("b", OTHER, "new"), content_id="new", counter=2)
    assert bench.member.contents.legacy.numerics_id == OTHER


def test_the_next_engine_is_pinned_to_the_same(bench: Strict) -> None:
    bench.assign(peer("b", SAME))
    left = Legacy.from_json(bench.member.contents.legacy.to_json())
    bench.member.resume(0, replace(left, assigned=Assigned((peer("c", OTHER),), epoch=(7, 9))), 0.0)
    assert bench.member.contents.legacy.numerics_id == SAME
    with pytest.raises(KeyError):
        bench.member.pool.link("c")


def test_nothing_is_tuned(bench: Strict) -> None:
    speeds = Speeds(ReaderConfig("s", teachers=("a:1",), deterministic=True, window=2))
    assert speeds._windows.most == 2
    with pytest.raises(UsageError, match="whole batches"):
        ReaderConfig("s", teachers=("a:1",), deterministic=True, teacher_batch_size="auto")


def test_numerics_of_a_reader_that_is_not_deterministic_do_not_matter() -> None:
    numerics = Numerics(False)
    assert numerics.barred([peer("b", SAME), peer("c", "")]) == frozenset()
    assert numerics.hear("b", OTHER)
    assert numerics.admits("")
    assert numerics.pinned == ""
