"""In which order, and how far ahead, batches go to the training loop."""

from __future__ import annotations

import pytest

from edl.scheduler.reader_core.delivery import Delivery, look_ahead


def delivery_of(*batches: int, services: str = "s", ordered: bool = True) -> Delivery:
    """These batches are to be labelled by services of one letter each."""
    delivery = Delivery(services, ordered=ordered)
    for batch in batches:
        delivery.queue(batch)
    return delivery


@pytest.mark.parametrize(
    ("batch_s", "ahead"), [(None, 2), (0.0, 2), (0.5, 2), (0.05, 2), (0.02, 5), (1e-6, 64)]
)
def test_a_tenth_of_a_second_of_work_is_at_hand(batch_s: float | None, ahead: int) -> None:
    assert look_ahead(batch_s) == ahead


def test_in_order_a_batch_waits_for_those_before_it() -> None:
    delivery = delivery_of(0, 1, 2)
    assert delivery.done("s", 1) == []
    assert delivery.release() == []
    assert delivery.done("s", 0) == [0, 1]
    assert delivery.release() == [0, 1]
    assert delivery.done("s", 2) == [2]
    assert (delivery.done("s", 2), delivery.incomplete) == ([], {})


def test_without_order_they_go_as_they_are_completed() -> None:
    delivery = delivery_of(0, 1, 2, ordered=False)
    assert delivery.done("s", 2) == [2]
    assert delivery.done("s", 0) == [0]
    assert delivery.release() == [2, 0]


def test_more_is_released_once_half_is_taken() -> None:
    delivery = delivery_of(*range(10))
    for batch in range(10):
        delivery.done("s", batch)
    assert delivery.release() == [0, 1]
    delivery.taken(0, None)
    delivery.taken(1, 0.03)
    assert delivery.release() == [2, 3, 4, 5]
    delivery.taken(2, 0.0)
    assert delivery.release() == []
    delivery.taken(3, 0.04)
    delivery.taken(4, None)
    assert delivery.release() == [6, 7], "3 are at hand where a step takes 0.035 s"
    delivery.taken(5, 100.0)
    assert delivery.release() == []
    delivery.taken(6, 0.04)
    assert delivery.release() == [8]


def test_a_withdrawn_batch_holds_up_those_behind_it() -> None:
    delivery = delivery_of(0, 1, 2, 3)
    for batch in range(3):
        delivery.done("s", batch)
    assert delivery.undone("s", 0) == {"s"}
    assert delivery.release() == []
    assert delivery.done("s", 3) == [], "0 is to be offered first"
    assert delivery.undone("s", 3) == frozenset(), "nobody was told of it"
    assert delivery.done("s", 0) == [0]
    assert delivery.release() == [0, 1]
    assert delivery.undone("s", 1) == frozenset(), "it is released"


def test_a_batch_is_complete_with_the_last_service() -> None:
    delivery = delivery_of(0, services="ab")
    assert delivery.done("a", 0) == []
    assert delivery.incomplete == {0: {"b"}}
    assert delivery.done("b", 0) == [0]
    assert delivery.undone("a", 0) == {"a"}, "the labels of the other service stay"
    assert delivery.done("a", 0) == [0]


def test_poison_of_one_service_is_poison_and_taken_back_for_all() -> None:
    delivery = delivery_of(0, services="ab")
    assert delivery.poisoned(0) == [0]
    assert delivery.done("b", 0) == []
    assert delivery.undone("a", 0) == {"a", "b"}
    assert delivery.incomplete == {0: {"a", "b"}}
    delivery = delivery_of(0, 1, services="ab")
    assert delivery.poisoned(1) == [], "it waits for the first batch"
    assert delivery.undone("a", 1) == {"a", "b"}
    assert delivery.incomplete == {0: {"a", "b"}, 1: {"a", "b"}}


def test_batches_of_an_engine_before_are_labelled_anew_by_all() -> None:
    delivery = Delivery("ab")
    delivery.hold(0, released=True)
    delivery.hold(1, released=False)
    delivery.queue(2)
    assert delivery.undone("a", 0) == frozenset()
    assert delivery.undone("a", 1) == {"a", "b"}
    assert delivery.undone("b", 1) == frozenset()
    for service in "ab":
        delivery.done(service, 2)
    delivery.done("a", 1)
    assert delivery.done("b", 1) == [1, 2]
    delivery.taken(0, None)
    assert delivery.release() == [1, 2]
