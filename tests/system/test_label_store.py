"""A label store in a whole mesh: filled while teachers die, read when all of them are off."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edl.distill_reader import DistilReader, LabelStore
from edl.mesh.local import LocalMesh
from edl.proto.arena import Array
from edl.tests.system.conftest import SPEC
from edl.tests.system.slow_network import FEATURES, labels_of

SAMPLES = 240


class Shuffled:
    """Samples as (x, numbers) batches, in an order and of a size that may change."""

    def __init__(self, order: Sequence[int], size: int) -> None:
        self.order = order
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.order), self.size):
            numbers = np.asarray(self.order[start : start + self.size])
            yield x_of(numbers), numbers


def x_of(numbers: Array) -> Array:
    return np.outer(numbers + 1, np.arange(FEATURES)).astype(np.float32)


def test_a_filled_store_outlives_its_teachers_and_the_coordinator(
    set_pace: Callable[[float], None], tmp_path: Path, rng: random.Random
) -> None:
    store = LabelStore(tmp_path / "labels.edl", 64 << 20)
    source = Shuffled(range(SAMPLES), 8)
    set_pace(0.002)
    with LocalMesh() as mesh:
        for name in ("a", "b"):
            mesh.add_teacher(name, SPEC)
        reading: dict[str, Any] = {"service": SPEC.service, "coordinator": mesh.url, "store": store}
        with DistilReader(source, teachers_min=2, **reading) as reader:
            for number, (x, numbers, soft) in enumerate(reader):
                np.testing.assert_array_equal(soft, labels_of(x_of(numbers)))
                np.testing.assert_array_equal(soft, labels_of(x))
                if number == 5:
                    mesh.kill("a")
        with DistilReader(source, **reading) as reader:
            mesh.kill("b")
            for size in (8, 11):  # the same order, and another
                check(reader, source)
                source.order, source.size = rng.sample(range(SAMPLES), SAMPLES), size
            assert (reader.stats.store_hits, reader.stats.store_misses) == (2 * SAMPLES, 0)
    with DistilReader(source, **reading) as reader:  # nobody is left to ask anything
        check(reader, source)


def check(reader: DistilReader, source: Shuffled) -> None:
    """One epoch: each sample in its turn, with the labels of that sample, bit for bit."""
    seen: list[int] = []
    for x, numbers, soft in reader:
        np.testing.assert_array_equal(x, x_of(numbers))
        np.testing.assert_array_equal(soft, labels_of(x))
        seen += numbers.tolist()
    assert seen == list(source.order)
