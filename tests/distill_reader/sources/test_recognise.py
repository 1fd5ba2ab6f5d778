"""What the user gave is taken for the most that can be done with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edl.distill_reader.sources import source_of
from edl.distill_reader.sources.plain import PlainSource
from edl.distill_reader.sources.stateful import StatefulSource
from edl.errors import UsageError
from edl.scheduler.shard_plan import Shard


class Iterable:
    def __iter__(self) -> Iterator[Any]:
        return iter(["batch"])


class Stateful(Iterable):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Sharded(Iterable):
    def shard(self, *, rank: int, world_size: int) -> Any:
        return [f"{rank} of {world_size}"] if rank else Stateful()


def kind_of(given: Any, shard: Shard = Shard()) -> type:  # noqa: B008
    return type(source_of(given, shard, 0))


def test_an_iterable_is_plain_and_one_with_a_state_is_stateful() -> None:
    assert kind_of(Iterable()) is PlainSource
    assert kind_of({"dict": 1}) is PlainSource
    assert kind_of(Stateful()) is StatefulSource


def test_a_state_that_cannot_be_loaded_makes_nothing_stateful() -> None:
    class Half(Iterable):
        def state_dict(self) -> dict[str, Any]:
            return {}

    assert kind_of(Half()) is PlainSource


@pytest.mark.parametrize("given", [Iterable(), Stateful()])
def test_what_has_no_ids_is_not_divided(given: Any) -> None:
    with pytest.raises(UsageError, match=r"cannot be divided among 3 ranks.*shard\(rank"):
        source_of(given, Shard(1, 3), 0)


def test_an_iterable_that_divides_itself_is_asked_for_its_part() -> None:
    assert kind_of(Sharded(), Shard(0, 3)) is StatefulSource
    source = source_of(Sharded(), Shard(1, 3), 0)
    assert next(source.begin(0, 0, None)) == "1 of 3"
    assert kind_of(Sharded()) is PlainSource


def test_what_can_be_read_only_once_or_not_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="only once"):
        source_of(iter([1]), Shard(), 0)
    with pytest.raises(UsageError, match="'int' cannot be iterated"):
        source_of(3, Shard(), 0)


def test_what_cannot_be_iterated_is_told_what_to_be_made_of() -> None:
    class DataSet:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return index

    with pytest.raises(UsageError, match=r"'DataSet' cannot be.*DataLoader of it, or Batched"):
        source_of(DataSet(), Shard(), 0)
    with pytest.raises(UsageError, match=r"'function' cannot be.*from_batch_generator"):
        source_of(lambda: iter([1]), Shard(), 0)
