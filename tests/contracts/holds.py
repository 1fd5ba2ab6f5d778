"""One thing kept within the process or in a real Valkey, as two processes hold it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Kept = TypeVar("Kept")
#: What a fixture of these is made for.
KINDS = ("memory", "valkey")


@dataclass
class Holds(Generic[Kept]):
    """One process's hold, another's, and ways to let its time pass and to lose it all."""

    one: Kept
    another: Kept
    pass_s: Callable[[float], None]
    empty: Callable[[], object]


@contextmanager
def held(
    kind: str, url: str, memory: Callable[..., Any], redis: Callable[[str], Any]
) -> Iterator[Holds[Any]]:
    """What is kept in one of `KINDS`, empty.

    Args:
        kind: where.
        url: of a Valkey that is this test's alone.
        memory: makes it within the process, by the `clock` that it is given.
        redis: makes a process's hold on what is kept in a Redis.
    """
    if kind == "memory":
        now = [1_700_000_000.0]

        def move(seconds: float) -> None:
            now[0] += seconds

        def empty() -> None:
            inside.clear()

        inside = memory(clock=lambda: now[0])
        yield Holds(inside, inside, move, empty)
        return
    one, another = redis(url), redis(url)
    one._redis.flushall()

    def wait(seconds: float) -> None:
        until = one.time_ms() + seconds * 1000
        while one.time_ms() <= until:
            time.sleep(0.005)

    yield Holds(one, another, wait, one._redis.flushall)
    one.close()
    another.close()
