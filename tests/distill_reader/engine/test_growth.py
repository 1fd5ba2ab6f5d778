"""What an engine remembers of batches and teachers does not grow with their number."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.requests import MAX_LAYOUTS, KnownBatches
from edl.distill_reader.options import Limits
from edl.proto.arena import ArrayRef
from edl.scheduler.reader_core.events import Peer
from edl.scheduler.reader_core.model_switch import NumericsPin

MANY = 10 * MAX_LAYOUTS
#: Of what is remembered of one batch or teacher.
BYTES_EACH = 80


def layout_id_of(batches: KnownBatches, number: int, width: int) -> int:
    """Add a batch; return its `layout_id`."""
    ref = ArrayRef("<f4", (4, width), 0)
    about = {"number": number, "nbytes": 64, "samples": 4, "fields": [["x", ref]]}
    return batches.add({"kind": "batch", "generation": 0, **about}).layout_id


def padded_batches() -> Callable[[int], None]:
    batches = KnownBatches(ReaderConfig("s", teachers=("127.0.0.1:1",)))

    def one(number: int) -> None:
        layout_id_of(batches, number, number)
        del batches[number]

    return one


def foreign_teachers() -> Callable[[int], None]:
    numerics = NumericsPin(True)

    def one(number: int) -> None:
        name = f"10.0.0.1:{number}"
        numerics.barred([Peer(name, name, "s")])
        numerics.record(name, "fp32")

    return one


@pytest.mark.parametrize("make", [padded_batches, foreign_teachers])
def test_what_is_gone_is_forgotten(make: Callable[[], Callable[[int], None]]) -> None:
    one = make()
    for number in range(2 * MAX_LAYOUTS):
        one(number)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(2 * MAX_LAYOUTS, 2 * MAX_LAYOUTS + MANY):
            one(number)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What came last replaces what came before the measurement.
    assert grown < BYTES_EACH * MANY


@pytest.mark.parametrize(("feeds", "warnings"), [((), 1), (((None, "x"),), 0)])
def test_that_batches_cannot_be_split_is_logged_once(
    feeds: Any, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(request_rows=2)
    config = ReaderConfig("s", teachers=("127.0.0.1:1",), limits=limits, feeds=feeds)
    batches, fields = KnownBatches(config), [["x", ArrayRef("<f4", (4,), 0)]]
    fields.append(["factor", ArrayRef("<f4", (1,), 64)])
    for number in range(2):
        about = {"number": number, "nbytes": 20, "samples": 4, "fields": fields}
        assert batches.add({"kind": "batch", "generation": 0, **about}).can_split is bool(feeds)
    assert len(caplog.records) == warnings


def test_batches_of_one_layout_may_go_together() -> None:
    batches = KnownBatches(ReaderConfig("s", teachers=("127.0.0.1:1",)))
    widths = [1, 1, *range(2, 2 * MAX_LAYOUTS), 1]
    first, second, *others = (layout_id_of(batches, *one) for one in enumerate(widths))
    assert first == second
    assert len(set(others)) == len(others), "what is forgotten is not taken for another"
