"""A client that does as it should while others do not, and notes how long it waits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Far above what one call takes on a machine that is busy with a storm, and far below a time-out.
SOON_S = 5.0
_TYPICALLY_S = 0.5
_TURN_S = 0.0002
#: At least so many waits are judged: of one or two, the longest would be the typical one.
_ASKS = 9


@contextmanager
def served_throughout(ask: Callable[[], object]) -> Iterator[None]:
    """Call `ask` again and again while the body runs; every call must succeed, and soon.

    It goes on after a body that is soon over, until it has been asked `_ASKS` times.
    """
    # Servers, storm and good client share one interpreter: with 5 ms for each of their turns, most
    # of the time would be waits for a turn.
    turn_s = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    over = threading.Event()
    waits: list[float] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not over.is_set() or len(waits) < _ASKS:
                began = time.monotonic()
                ask()
                waits.append(time.monotonic() - began)
                over.wait(0.01)  # leaves the processor to the storm
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="good-client")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(turn_s)
    if failures:
        raise AssertionError(f"a good client was not served: {failures[0]!r}") from failures[0]
    waits.sort()
    assert waits[-1] < SOON_S, f"a good client waited {waits[-1]:.1f} s"
    assert waits[len(waits) // 2] < _TYPICALLY_S, f"it waits {waits[len(waits) // 2]:.2f} s mostly"
