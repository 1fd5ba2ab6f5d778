"""How a loader's iterator is ended behind an epoch, and why workers of the next one begin well."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache
from typing import Any


def close_iterator(iterator: Iterator[Any]) -> None:
    """Let an iterator clean up behind an epoch that was left early: now, not some day.

    Generators have `close`, which runs their `finally`. The iterators of Paddle's and PyTorch's
    loaders have only a private method for it; without it, the workers of an epoch left early live
    on for as long as anyone, such as a traceback, refers to the iterator.
    """
    for name in ("close", "_try_shutdown_all", "_shutdown_workers"):
        if callable(close := getattr(iterator, name, None)):
            close()
            return


@cache
def leave_garbage_to_the_parent() -> None:
    """From now on, what is garbage when this process forks is collected here and in no child.

    A loader's iterator that was ended may be part of a cycle that nobody has collected yet. If a
    forked worker does, it tears down queues and threads that only its parent has: Paddle's destroy
    a condition on which, as far as they know, a thread waits, and wait for it without end. The
    loader then waits for its worker. So no collection happens while a child begins, and a child's
    own ones pass over whatever it inherited; its memory stays shared for longer, too.
    """
    enabled = True

    def before() -> None:
        nonlocal enabled
        enabled = gc.isenabled()
        gc.disable()

    def behind() -> None:
        if enabled:
            gc.enable()

    def in_child() -> None:
        gc.freeze()
        behind()

    # `before` of who registers last runs first, and `after_in_child` last: no one's own is missed.
    os.register_at_fork(before=before, after_in_parent=behind, after_in_child=in_child)
