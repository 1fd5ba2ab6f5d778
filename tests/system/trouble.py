"""Checks around faults at a teacher: its labels stay right, and it leaks nothing."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest

from edl.proto.arena import Array
from edl.tests.ground.programs import WAIT_S
from edl.tests.system.teacher_process import ANSWER_S, Teacher

Code = grpc.StatusCode

#: Of freed memory, allocators may keep so much.
LEAK_BYTES = 64 << 20
_PAUSE_S = 0.005


def full(count: int) -> Any:
    """A parameter for `make nightly`: the number of rounds."""
    return pytest.param(count, marks=[pytest.mark.nightly, pytest.mark.timeout(300 + 10 * count)])


def rows(order: float = 0.0, about: float = 0.5, count: int = 3) -> Array:
    """A batch for `STEERED`; its first number is an order."""
    x = np.full((count, 4), about, dtype=np.float32)
    x[0, 0] = order
    return x


def footprint(teacher: Teacher) -> Counter[str]:
    """What a teacher and its predictors hold."""
    top = psutil.Process(teacher.process.pid)
    processes = [top, *top.children(recursive=True)]
    links = [link for process in processes for link in _links(process.pid)]
    return Counter(
        {
            "processes": len(processes),
            "threads": sum(process.num_threads() for process in processes),
            "descriptors": len(links),
            "shared memory": sum(link.startswith(("/memfd:", "/dev/shm/")) for link in links),
            "bytes": sum(process.memory_info().rss for process in processes),
        }
    )


@contextmanager
def nothing_leaks(teacher: Teacher, threads: int = 0) -> Iterator[None]:
    """Fail unless the teacher soon holds no more than before the body.

    Args:
        teacher: has answered before.
        threads: that its pools may start meanwhile and keep.
    """
    allowed = footprint(teacher) + Counter(threads=threads, bytes=LEAK_BYTES)
    yield
    deadline = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(psutil.Error, OSError):  # a process ended while it was looked at
            leaked = footprint(teacher) - allowed
            if not leaked:
                return
            assert time.monotonic() < deadline, f"left behind: {leaked}"
        time.sleep(0.02)


@contextmanager
def labelled_throughout(teacher: Teacher, *allowed: Code) -> Iterator[Counter[Code]]:
    """Ask again and again while the body runs: no label is wrong, no status but `allowed` or OK.

    Yields the counts of statuses; the teacher is one of `STEERED`.
    """
    codes: Counter[Code] = Counter()
    over, rng = threading.Event(), random.Random(7)

    def work() -> None:
        while not over.is_set():
            x = rows(rng.random(), rng.random(), rng.randrange(1, 9))
            code, labels = attempt(teacher, x)
            codes[code] += 1
            if code is Code.OK:
                np.testing.assert_array_equal(labels, x * 2)
            else:
                assert code in allowed
            over.wait(_PAUSE_S)

    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(work)
        try:
            yield codes
        finally:
            over.set()
            client.result()
    assert codes[Code.OK] > 0, codes


def attempt(teacher: Teacher, x: Array, timeout_s: float = ANSWER_S) -> tuple[Code, Array | None]:
    """The status of a request, and its labels."""
    try:
        return Code.OK, teacher.infer({"x": x}, timeout_s).outputs["twice"]
    except grpc.RpcError as error:
        vendor: Any = error
        return vendor.code(), None


def serves(teacher: Teacher) -> None:
    """Check that it labels a batch."""
    x = rows(about=random.random())
    np.testing.assert_array_equal(teacher.infer({"x": x}).outputs["twice"], x * 2)


def told(teacher: Teacher, word: str) -> str:
    """The URL behind `word` in its output."""
    (line,) = [line for line in teacher.process.tail(1000) if line.startswith(f"{word} on ")]
    return line.removeprefix(f"{word} on ")


def metric(teacher: Teacher, sample: str) -> float:
    """The value of a sample, written as Prometheus does: `name{label="value"}`."""
    text = httpx.get(told(teacher, "metrics"), timeout=ANSWER_S).text
    return next(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.rpartition(" ")[0] == sample
    )


def over_http(teacher: Teacher, x: Array, timeout_s: float = ANSWER_S) -> httpx.Response:
    """A batch over HTTP, in JSON."""
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    url = f"{told(teacher, 'HTTP')}/models/m/infer"
    return httpx.post(url, json={"inputs": [tensor]}, timeout=timeout_s)


def _links(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    links = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(f"{folder}/{name}"))
    return links
