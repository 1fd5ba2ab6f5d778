"""Of which model, of which numerics and of which float type the labels of a stream are.

A service moves to other content in one of two ways. *At the epoch*: the coordinator announces the
next content; a student that begins an epoch then sends nothing to the old teachers and waits until
it is moved, so that an epoch has labels of one content. *Now*: the content of the assignment is
another one than before; whatever is not delivered is labelled anew, so that the stream changes over
at one batch. Announcements and epochs cross. A student that had begun its epoch when the
announcement came, or that went on because no coordinator answered, is *bound*: it keeps to its
content until the epoch ends, or until no teacher of that content is left: a stream never stands
still for purity.

A deterministic stream is *pinned* to one numerics_id, as bits are equal between its teachers: of
those that come first, the one that most of them have, which leaves most to fall back on. It stays
so until the service moves to another model. Teachers of other numerics, and those that do not say
theirs, are barred. So are those whose numerics_id says that they promise nothing: where requests
are merged with others', or go to devices that differ, bits depend on more than the request.

Otherwise teachers of one content may be of unlike precision. Labels of several stand in the
narrowest float type that holds every value of both exactly: so no label loses a bit by standing
beside others, and who is compared with whom is compared at full precision. Other types than floats
are never joined: a class id is not a probability.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

#: With the coordinator away for so long, an epoch begins on the old content rather than not at all.
AWAY_S = 5.0

#: What to do: send to the teachers of the latest advice, at once or after labelling anew; send to
#: nobody; or leave things as they are for now.
Step = Literal["follow", "relabel", "hold", "stay"]


@dataclass(frozen=True, slots=True)
class Advice:
    """What an assignment says of contents.

    Attributes:
        content_id: of all its teachers; empty where there are none, or nothing is known.
        next_content_id: what the student moves to at its next epoch; empty: it stays.
        data_epoch: the student's epoch that the assignment was made for.
    """

    content_id: str = ""
    next_content_id: str = ""
    data_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Switch:
    """Where a student stands.

    Attributes:
        content_id: what labels of this epoch come from; empty while nothing has settled that.
        data_epoch: epochs begun by this student.
        advice: the latest.
        held_since: since when it waits to be moved; None while it does not.
        bound: whether this epoch keeps to `content_id`.
    """

    content_id: str = ""
    data_epoch: int = 0
    advice: Advice = field(default_factory=Advice)
    held_since: float | None = None
    bound: bool = False

    @property
    def told(self) -> str:
        """The content to report: empty says that the student may be moved now."""
        return "" if self.held_since is not None else self.content_id

    @property
    def awaited(self) -> str:
        """The content whose teachers it looks for; empty where that is not known."""
        if self.held_since is not None:
            return self.advice.next_content_id
        return self.content_id or self.advice.content_id


def begin(state: Switch, data_epoch: int, now: float) -> tuple[Switch, Step]:
    """The student begins an epoch; nothing of it has been sent yet."""
    state = replace(state, data_epoch=data_epoch, bound=False, held_since=None)
    if _is_to_be_moved(state, state.advice):
        return replace(state, held_since=now), "hold"
    return replace(state, content_id=state.advice.content_id), "follow"


def resume(
    state: Switch, data_epoch: int, left: Switch, heard: bool, now: float
) -> tuple[Switch, Step]:
    """Take over in mid-epoch from one who is gone.

    Args:
        state: where the successor stands.
        data_epoch: epochs begun by the student.
        left: where the other stood: `told` as its content, the advice that it followed, `bound`.
        heard: a coordinator has advised the successor already; else the other's advice counts.
        now: seconds of the same clock as in `begin`.
    """
    advice = state.advice if heard else left.advice
    state = replace(state, data_epoch=data_epoch, content_id=left.content_id, bound=left.bound)
    return advise(state, advice, now)


def advise(state: Switch, advice: Advice, now: float) -> tuple[Switch, Step]:
    """An assignment has come."""
    state = replace(state, advice=advice)
    pending = _is_to_be_moved(state, advice)
    if state.held_since is not None:
        if pending:
            return state, "hold"
        return replace(state, held_since=None, content_id=advice.content_id), "follow"
    if pending and not state.content_id:
        return replace(state, held_since=now), "hold"
    new = advice.content_id
    if not new or new == state.content_id:
        return replace(state, bound=state.bound or pending), "follow"
    if not state.content_id:
        return replace(state, content_id=new), "follow"
    if state.bound:
        return state, "stay"
    return replace(state, content_id=new), "relabel"


def look(state: Switch, now: float, away_since: float | None, usable: int) -> tuple[Switch, Step]:
    """Time goes by.

    Args:
        state: where the student stands.
        now: seconds of the same clock as in `begin`.
        away_since: since when no coordinator answers; None while one does.
        usable: teachers that the student can send to.
    """
    if state.held_since is not None:
        if away_since is None or now - max(away_since, state.held_since) < AWAY_S:
            return state, "stay"
        content = state.advice.content_id or state.content_id
        return replace(state, held_since=None, bound=True, content_id=content), "follow"
    new = state.advice.content_id
    if state.bound and new and new != state.content_id and not usable:
        return replace(state, bound=False, content_id=new), "relabel"
    return state, "stay"


def _is_to_be_moved(state: Switch, advice: Advice) -> bool:
    """Whether another content is announced, for epochs after one that is over."""
    return bool(advice.next_content_id) and advice.data_epoch < state.data_epoch


#: The first word of numerics of which even equal ones promise no equal bits.
NO_PROMISE = ("merged-", "mixed-")


def promises(numerics_id: str) -> bool:
    """Whether teachers of equal numerics answer alike, bit for bit."""
    return bool(numerics_id) and not numerics_id.startswith(NO_PROMISE)


def pinned(now: str, offered: Iterable[str]) -> str:
    """What a stream is pinned to.

    Args:
        now: what it is pinned to already; empty: nothing yet.
        offered: numerics of each teacher that there is; empty where one is not known.

    Returns:
        the numerics_id; empty while no teacher promises anything.
    """
    if now:
        return now
    counts = Counter(filter(promises, offered))
    return min(counts, key=lambda one: (-counts[one], one), default="")


def admits(pinned_to: str, numerics_id: str) -> bool:
    """Whether a teacher of these numerics may label a stream that is pinned so, or not yet."""
    return promises(numerics_id) and pinned_to in ("", numerics_id)


def read_alike(one: str, other: str) -> bool:
    """Whether numbers of both kinds mean the same to a loss: log-probabilities are valid logits."""
    return one == other or {one, other} == {"logits", "log-probabilities"}


#: Bits of the fraction and of the exponent, the narrowest type first.
_BITS: Final[Mapping[str, tuple[int, int]]] = {
    "float16": (10, 5),
    "bfloat16": (7, 8),
    "float32": (23, 8),
    "float64": (52, 11),
}


def widest(one: str, other: str) -> str | None:
    """The type for values of both, by their names; None where they cannot stand together."""
    if one == other:
        return one
    if one not in _BITS or other not in _BITS:
        return None
    fraction, exponent = map(max, _BITS[one], _BITS[other])
    return next(
        (name for name, (f, e) in _BITS.items() if f >= fraction and e >= exponent), "float64"
    )
