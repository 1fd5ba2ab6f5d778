"""Teachers on the device, as processes, and a reader that they label for."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from edl.distill_reader import DistilReader
from edl.proto.arena import Array
from edl.tests.gpu import networks
from edl.tests.gpu.conftest import ROWS, Start

METRICS = r"metrics on (\S+)"


class Rows:
    """Batches of (x, ids), more while `more()`; the first number of each row of x is `first`."""

    def __init__(
        self, batches: int, first: float = 0.0, more: Callable[[], bool] = lambda: False
    ) -> None:
        self.batches = batches
        self.first = first
        self.more = more

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for number in count():
            if number >= self.batches and not self.more():
                return
            noise = np.random.default_rng(number)
            x = noise.standard_normal((ROWS, networks.FEATURES), np.float32)
            x[:, 0] = self.first
            yield x, np.arange(ROWS) + number * ROWS


def check_labels(reader: DistilReader, batches: int) -> None:
    """Each row once, in order, with its own labels; at least so many batches."""
    ids: list[int] = []
    for x, own, logits in reader:
        np.testing.assert_allclose(logits, networks.logits_of(x), rtol=1e-4, atol=1e-4)
        ids += own.tolist()
    assert ids == list(range(max(len(ids), batches * ROWS)))


def test_two_teachers_share_a_device(teachers: Start) -> None:
    """The stream goes on until both have served: one may be connected to much later."""
    addresses = [address for address, _ in teachers(count=2)]

    def one_is_idle() -> bool:
        served = dict(reader.stats.served)
        return not all(served.get(address) for address in addresses)

    source = Rows(60, more=one_is_idle)
    with DistilReader(source, service="bench", teachers=addresses, feeds=[0]) as reader:
        check_labels(reader, 60)


def test_a_device_without_memory_halves_the_micro_batch(teachers: Start) -> None:
    """Of rows of 48 MiB each, 32 do not fit into 1 GiB, and 16 do."""
    [(address, teacher)] = teachers("greedy", "--metrics-listen", "0")
    lines = teacher.tail(100)
    [url] = [found[1] for line in lines if (found := re.search(METRICS, line))]
    assert micro_batch(url) == (ROWS, 0)
    source = Rows(6, first=48)
    with DistilReader(source, service="bench", teachers=[address], feeds=[0]) as reader:
        check_labels(reader, 6)
    assert micro_batch(url) == (ROWS // 2, 1)
    assert any("ran out of memory" in line for line in teacher.tail(100))


def micro_batch(url: str) -> tuple[float, float]:
    """The teacher's micro-batch, and how often it was halved."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    names = ("edl_teacher_micro_batch_samples", "edl_teacher_micro_batch_reductions_total")
    samples, halved = (float(line.split()[1]) for n in names for line in text.splitlines()
                       if line.startswith(f"{n} "))  # fmt: skip
    return samples, halved
