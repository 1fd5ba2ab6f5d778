"""A state that does not fit the reader says what is another; one that fits comes back as it was."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import Batched
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.label_forms import LabelForms
from edl.distill_reader.options import EnsembleConfig, EnsemblePolicy, Limits
from edl.distill_reader.saved_state import StreamProgress, from_state, to_state
from edl.distill_reader.sources import source_of
from edl.runtime.errors import UsageError
from edl.scheduler.students.shards import RankShard


class Plain:
    def __iter__(self) -> Iterator[Any]:
        return iter([np.zeros(2)])


def config(**options: Any) -> ReaderConfig:
    return ReaderConfig(**{"service": "s", "teachers": ("127.0.0.1:9",), **options})


def rows(count: int = 12, size: int = 2) -> Batched:
    return Batched([np.zeros(1)] * count, size, shuffle=True)


def state_of(given: Any, progress: StreamProgress, **options: Any) -> Any:
    settings = config(**options)
    source = source_of(given, settings.shard(), settings.seed)
    return json.loads(json.dumps(to_state(progress, source, settings)))


def load(state: Any, given: Any, **options: Any) -> StreamProgress:
    settings = config(**options)
    return from_state(state, source_of(given, settings.shard(), settings.seed), settings)


MARK = {"start": 0, "of": 6, "ids": "ab"}
SOME = StreamProgress(3, 2, 4, MARK, {4: MARK})


def test_it_comes_back_as_it_was() -> None:
    back = load(state_of(rows(), SOME, fetches=("y",)), rows(), fetches=("y",))
    assert back == StreamProgress(3, 2, 4, MARK, {4: None})


def test_the_number_of_batches_may_depend_on_the_epoch() -> None:
    state = state_of(rows(), SOME)
    state["source"]["batches"] = 6  # as in states of older versions
    assert load(state, rows(14)).mark == MARK


class Other(Plain):
    pass


@pytest.mark.parametrize(
    ("before", "given", "options", "what"),
    [
        (rows(), rows(24, 4), {}, "batch_size was 2 and is 4"),
        (rows(), rows(), {"seed": 1}, "seed was 0 and is 1"),
        (rows(), rows(), {"uneven": "pad"}, "uneven was 'keep' and is 'pad'"),
        (rows(), Plain(), {}, "kind was 'map' and is 'plain'"),
        (Plain(), Other(), {}, r"type was .*Plain.* and is .*Other"),
    ],
)
def test_another_source_is_named(
    before: Any, given: Any, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=f"of another source: .*{what}"):
        load(state_of(before, SOME), given, **options)


BROKEN: list[dict[str, Any]] = [
    {"epoch": "3"},
    {"mark": [1]},
    {"ahead": 3},
    {"ahead": {"4": 1}},
    {"source": "map"},
    {"labels": None},
]


@pytest.mark.parametrize(
    "state",
    [
        *([], {}, {"format": "other"}, {"format": "edl-reader-1"}, "text", [3], 3, None),
        *({**state_of(rows(), SOME), **broken} for broken in BROKEN),
    ],
)
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(UsageError, match=r"not a reader's state|no state was given"):
        load(state, rows())


@pytest.mark.parametrize("lost", ["start", "of", "ids"])
def test_a_damaged_position_is_refused(lost: str) -> None:
    mark = {name: value for name, value in MARK.items() if name != lost}
    source = source_of(rows(), RankShard(), 0)
    with pytest.raises(UsageError, match="the position in the source is damaged"):
        source.begin(3, 2, mark)


@pytest.mark.parametrize("mark", [{}, {"length": 2, "digest": "ab", "marks": [1], "spacing": 1}])
def test_a_damaged_trail_is_refused(mark: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the position in the source is damaged"):
        source_of(Plain(), RankShard(), 0).begin(3, 2, mark)


@pytest.mark.parametrize("lost", ["start", "of"])
def test_a_damaged_position_is_not_divided_among_other_ranks(lost: str) -> None:
    mark = {name: value for name, value in MARK.items() if name != lost}
    state = state_of(rows(), StreamProgress(1, 2, 4, mark))
    with pytest.raises(UsageError, match="the position in the source is damaged"):
        load(state, rows(), world_size=2)


def test_another_rank_is_refused_and_its_own_is_found_among_all() -> None:
    states = [
        state_of(rows(), StreamProgress(1, taken, 2, MARK), rank=rank, world_size=2)
        for rank, taken in ((0, 5), (1, 4))
    ]
    with pytest.raises(UsageError, match="of rank 0, and the reader is rank 1"):
        load(states[0], rows(), rank=1, world_size=2)
    assert load(states, rows(), rank=1, world_size=2).batches == 4


def test_another_world_size_needs_the_states_of_all_ranks() -> None:
    state = state_of(rows(), StreamProgress(1, 2, 4, MARK), rank=0, world_size=2)
    with pytest.raises(UsageError, match=r"states of all 2 ranks.*of the ranks \[0\]"):
        load(state, rows(), world_size=3)
    other = state_of(rows(), StreamProgress(1, 2, 4, MARK), rank=0, world_size=3)
    with pytest.raises(UsageError, match="states of all 2 ranks"):
        load([state, other], rows(), world_size=1)


def test_ranks_must_agree_on_step() -> None:
    mark = {**MARK, "of": 5}
    ended = state_of(rows(10), StreamProgress(2), rank=1, world_size=2)
    behind = state_of(rows(10), StreamProgress(1, 1, 2, mark), rank=0, world_size=2)
    with pytest.raises(UsageError, match=r"same step.*\[\[1, 1\], \[2, 0\]\]"):
        load([behind, ended], rows(10), world_size=3)


@pytest.mark.parametrize(("batches", "mark"), [(2, MARK), (0, None)])
def test_batches_delivered_out_of_order_need_the_same_ranks(batches: int, mark: Any) -> None:
    out_of_order = state_of(rows(), StreamProgress(1, batches, 6, mark, {4: MARK}))
    with pytest.raises(UsageError, match="out of order"):
        load(out_of_order, rows(), world_size=2)


@pytest.mark.parametrize(("share", "kind"), [(Plain(), "plain"), ([np.zeros(2)], "map")])
def test_what_cannot_be_dealt_anew_keeps_its_number_of_ranks(share: Any, kind: str) -> None:
    class Divided(Plain):
        def shard(self, *, rank: int, world_size: int) -> Any:
            return share

    states = [state_of(Divided(), StreamProgress(), rank=rank, world_size=2) for rank in range(2)]
    with pytest.raises(UsageError, match=f"cannot resume a {kind} source with 3 instead of 2"):
        load(states, Divided(), rank=0, world_size=3)
    assert load(states, Divided(), rank=1, world_size=2) == StreamProgress()


def test_other_labels_are_told_and_do_not_stop_it(caplog: pytest.LogCaptureFixture) -> None:
    state = state_of(rows(), SOME)
    with caplog.at_level(logging.WARNING):
        load(state, rows(), service="t", labels=LabelForms.from_user("float16", None, True))
    assert "service was 's' and is 't'" in caplog.text
    assert "float16" in caplog.text
    caplog.clear()
    load(state, rows(), limits=Limits(window=5), upper_bytes=1000, lower_bytes=1)
    assert not caplog.text


def ensemble(weight: float, **policy: Any) -> dict[str, Any]:
    mixing = EnsembleConfig((("a", weight), ("b", 1.0)), policy=EnsemblePolicy(**policy))
    return {"service": "a+b", "teachers": (), "coordinator": "redis://h", "ensemble": mixing}


@pytest.mark.parametrize("now", [ensemble(2.0), ensemble(1.0, missing="tolerate")])
def test_other_weights_or_policy_of_an_ensemble_are_told(
    now: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    state = state_of(rows(), SOME, **ensemble(1.0))
    load(state, rows(), **ensemble(1.0))
    assert not caplog.text
    load(state, rows(), **now)
    assert "ensemble was" in caplog.text
