"""When a teacher is asked again that could not answer, and how often before it is believed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from .backoff import RandomLike, retry_s

#: A teacher that does not let the reader in is asked as rarely: an operator has to mend that.
REFUSED_PAUSE_S: Final = 5.0
#: A teacher that is full is believed no more than this about when it will have room.
FULL_PAUSE_S: Final = 30.0
#: So often a server names its outputs alike, where it does not describe its model, to be believed.
TELLINGS: Final = 2

Outputs = Literal["ask", "believe", "contradiction"]


def pause_s(
    failures: int, rng: RandomLike, *, refused: bool = False, room_in_s: float | None = None
) -> float:
    """Seconds until a teacher is asked again.

    The first retry is made at once. A teacher that is full and says when it will have room is asked
    then, however often it was full before: it has not failed.

    Args:
        failures: how often it had failed before this time, in a row.
        rng: scatters the retries.
        refused: it does not let the reader in.
        room_in_s: when it will have room, as it says; None: it says nothing of that.
    """
    if room_in_s is not None:
        return min(max(room_in_s, 0.0), FULL_PAUSE_S)
    pause = retry_s(failures, rng)
    return max(pause, REFUSED_PAUSE_S) if refused else pause


def outputs(told: Sequence[Sequence[str]]) -> Outputs:
    """What to do about a server that does not describe its model, of whose outputs it named these.

    The order in which it names them does not matter, so long as none is missing or new.
    """
    if any(sorted(names) != sorted(told[0]) for names in told):
        return "contradiction"
    return "believe" if len(told) >= TELLINGS else "ask"
