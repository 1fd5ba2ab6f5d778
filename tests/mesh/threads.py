"""Loops of the product in a thread of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from edl.runtime.lifecycle import Stop

T = TypeVar("T")


@contextmanager
def in_thread(run: Callable[[Stop], T]) -> Iterator[tuple[Stop, Future[T]]]:
    """`run` until the end of the `with`, if its `Stop` is not requested before; what it returns."""
    stop = Stop()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run, stop)
        try:
            yield stop, ended
        finally:
            stop.request()
