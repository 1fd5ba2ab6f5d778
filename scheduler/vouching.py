"""When a foreign server is looked at, and whether it stands in the registry: by what looks found.

There are two ways to look. To *ask* is cheap: does it say that it is ready? To *test* is to have it
label a few samples and to judge the labels, which finds one that is ready and hangs, or that
answers nonsense. Only a test lets a server in. A wrong answer puts it out at once, since wrong
labels are worse than none; silence does so when it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .backoff import RandomLike, delay_s

Look = Literal["ask", "test"]
#: What came of a look: it is well; it does not answer; it answers what no teacher may.
Found = Literal["well", "silent", "wrong"]
Step = Literal["stay", "register", "withdraw"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How often is looked, and how long silence is borne.

    Attributes:
        every_s: seconds from the end of one look to the next, at a server that is registered.
        test_every_s: seconds from the end of one test to the next.
        strikes: silent looks in a row that put a server out.
        retry_s: most seconds between two tests of a server that is not registered.

    Raises:
        ValueError: a number that makes no sense.
    """

    every_s: float = 1.0
    test_every_s: float = 15.0
    strikes: int = 2
    retry_s: float = 10.0

    def __post_init__(self) -> None:
        if min(self.every_s, self.test_every_s, self.retry_s) <= 0 or self.strikes < 1:
            raise ValueError(f"patience needs times above 0 and at least one strike: {self}")


@dataclass(frozen=True, slots=True)
class Vouching:
    """What is known of one server.

    Attributes:
        registered: whether it stands in the registry.
        strikes: silent looks in a row while it is registered.
        failures: tests in a row that let it not in.
        tested_s: when the last test ended that went well; None: a test is due.
        look_s: when the next look is due.
    """

    registered: bool = False
    strikes: int = 0
    failures: int = 0
    tested_s: float | None = None
    look_s: float = 0.0


def next_look(vouching: Vouching, now: float, patience: Patience) -> tuple[Look, float]:
    """How to look next, and in how many seconds."""
    tested_s = vouching.tested_s
    at_s = max(vouching.look_s, now)
    due = tested_s is None or at_s >= tested_s + patience.test_every_s
    return ("test" if due or not vouching.registered else "ask"), at_s - now


def looked(
    vouching: Vouching,
    look: Look,
    found: Found,
    now: float,
    patience: Patience,
    rng: RandomLike,
) -> tuple[Vouching, Step]:
    """A look has ended.

    Args:
        vouching: as it was.
        look: as `next_look` said.
        found: what came of it.
        now: seconds, as everywhere here.
        patience: how long silence is borne.
        rng: spreads repeated tests of those that are not let in.
    """
    if found == "well":
        tested_s = now if look == "test" else vouching.tested_s
        step: Step = "stay" if vouching.registered or look == "ask" else "register"
        registered = vouching.registered or step == "register"
        return Vouching(registered, 0, 0, tested_s, now + patience.every_s), step
    if not vouching.registered:
        return _out(vouching, now, patience, rng), "stay"
    strikes = vouching.strikes + 1
    if found == "wrong" or strikes >= patience.strikes:
        return _out(replace(vouching, failures=0), now, patience, rng), "withdraw"
    # One that was silent when it was tested is tested again: that it is ready is not the question.
    tested_s = None if look == "test" else vouching.tested_s
    return Vouching(True, strikes, 0, tested_s, now + patience.every_s), "stay"


def not_taken(now: float, patience: Patience) -> Vouching:
    """It was let in, and the registry could not take it: all begins anew, with a test."""
    return Vouching(look_s=now + patience.every_s)


def _out(vouching: Vouching, now: float, patience: Patience, rng: RandomLike) -> Vouching:
    wait_s = delay_s(vouching.failures, rng, patience.every_s, patience.retry_s)
    return Vouching(failures=vouching.failures + 1, look_s=now + wait_s)
