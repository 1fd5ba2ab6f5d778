"""The model content, numerics and output kinds of a stream's labels.

A service moves to another *content* (model files, preprocessing) in one of two ways. *At the
epoch*: the coordinator announces the next content. A student that begins an epoch after that sends
nothing to the old teachers, and waits until it is moved, so an epoch has labels of one content.
*Now*: the content of the assignment changes. Batches that are not released are labelled again, so
the stream changes over at one batch. A student is *bound* in two cases: it learned too late that it
should have been moved before this epoch, or no coordinator answered to move it. A bound student
keeps its content until the epoch ends. If no teacher of this content is left before, the student
changes to another content within the epoch, because the stream must go on.

A deterministic stream is *pinned* to one numerics_id (backend, precision, and all else that affects
bits), because only teachers of one numerics_id produce equal bits. The pin is the most frequent
numerics_id of the first teachers, which leaves the most replacements. It stays until the service
moves to another content. Teachers of other or unknown numerics are *barred*: they get no requests.
A teacher that is in no registry gets requests until an answer states its numerics_id. Teachers with
a numerics_id that promises nothing are barred as well: if requests are merged with other requests,
or run on different devices, bits depend on more than the request.

For each output, a reader keeps to one kind of numbers, such as logits, whichever teachers it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from ..circuit_breakers import Log
from .events import Advice, Assigned, HandoffState, Peer, PublishedKind

#: Seconds without a coordinator after which an epoch begins with the old content.
AWAY_S = 5.0
#: Seconds that a bound student waits for a usable teacher of its content before it changes content:
#: full teachers, and those that a new engine is still connecting to, become usable in a moment.
ALONE_S = 5.0

#: "follow": use the teachers of the latest assignment; "relabel": the same, and label all batches
#: again that are not released; "hold": use no teacher; "stay": change nothing.
SwitchAction = Literal["follow", "relabel", "hold", "stay"]


@dataclass(frozen=True, slots=True)
class ContentState:
    """Which content a student uses.

    Attributes:
        content_id: content of this epoch's labels; empty: not known yet.
        data_epoch: number of epochs that the student has begun.
        advice: the latest advice.
        held_since: since when the student waits to be moved to another content; None: it does not.
        bound: this epoch keeps `content_id`.
        alone_since: since when a bound student has no usable teacher while the coordinator names
            another content; None: this is not so.
    """

    content_id: str = ""
    data_epoch: int = 0
    advice: Advice = field(default_factory=Advice)
    held_since: float | None = None
    bound: bool = False
    alone_since: float | None = None

    @property
    def reported(self) -> str:
        """The content to report; empty: unknown, or the student waits to be moved."""
        return "" if self.held_since is not None else self.content_id

    @property
    def awaited(self) -> str:
        """The content that the student's teachers must serve; empty: unknown."""
        if self.held_since is not None:
            return self.advice.next_content_id
        return self.content_id or self.advice.content_id


def begin(state: ContentState, data_epoch: int, now: float) -> tuple[ContentState, SwitchAction]:
    """Begin an epoch, before any of its batches is sent."""
    state = replace(state, data_epoch=data_epoch, bound=False, held_since=None, alone_since=None)
    if _is_to_be_moved(state, state.advice):
        return replace(state, held_since=now), "hold"
    return replace(state, content_id=state.advice.content_id), "follow"


def resume(
    state: ContentState, data_epoch: int, left: ContentState, is_advice_newer: bool, now: float
) -> tuple[ContentState, SwitchAction]:
    """Continue an epoch of a previous engine.

    Args:
        state: state of this engine.
        data_epoch: number of epochs that the student has begun.
        left: state of the previous engine: content (`reported`), advice and `bound`.
        is_advice_newer: this engine's advice is at least as new as that of the previous engine.
            False: use the advice of the previous engine.
        now: seconds of the same clock as in `begin`.
    """
    advice = state.advice if is_advice_newer else left.advice
    state = replace(state, data_epoch=data_epoch, content_id=left.content_id, bound=left.bound)
    return advise(state, advice, now)


def advise(state: ContentState, advice: Advice, now: float) -> tuple[ContentState, SwitchAction]:
    """Apply the advice of a new assignment."""
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


def tick(
    state: ContentState, now: float, away_since: float | None, usable: int
) -> tuple[ContentState, SwitchAction]:
    """Check for a missing coordinator, and for a bound student without teachers.

    Args:
        state: the state.
        now: seconds of the same clock as in `begin`.
        away_since: since when no coordinator answers; None: one answers.
        usable: number of teachers that can get requests.
    """
    if state.held_since is not None:
        if away_since is None or now - max(away_since, state.held_since) < AWAY_S:
            return state, "stay"
        content = state.advice.content_id or state.content_id
        return replace(state, held_since=None, bound=True, content_id=content), "follow"
    new = state.advice.content_id
    if usable or not state.bound or new in ("", state.content_id):
        return state if state.alone_since is None else replace(state, alone_since=None), "stay"
    since = now if state.alone_since is None else state.alone_since
    if now - since < ALONE_S:
        return replace(state, alone_since=since), "stay"
    return replace(state, bound=False, content_id=new, alone_since=None), "relabel"


def _is_to_be_moved(state: ContentState, advice: Advice) -> bool:
    """Whether another content was announced before this epoch."""
    return bool(advice.next_content_id) and advice.data_epoch < state.data_epoch


#: Prefixes of numerics_ids that do not promise equal bits.
WITHOUT_EQUAL_BITS = ("merged-", "mixed-")


def promises_equal_bits(numerics_id: str) -> bool:
    """Whether teachers of this numerics_id answer with equal bits."""
    return bool(numerics_id) and not numerics_id.startswith(WITHOUT_EQUAL_BITS)


def pinned(current: str, offered: Iterable[str]) -> str:
    """Return the numerics_id that a stream is pinned to; empty: no teacher promises equal bits.

    Args:
        current: the numerics_id that it is pinned to so far; empty: none yet.
        offered: numerics_ids of the teachers; empty: unknown.
    """
    if current:
        return current
    counts = Counter(filter(promises_equal_bits, offered))
    return min(counts, key=lambda numerics_id: (-counts[numerics_id], numerics_id), default="")


def admits(pinned_to: str, numerics_id: str) -> bool:
    """Whether a teacher of this numerics_id may label a stream that is pinned to `pinned_to`."""
    return promises_equal_bits(numerics_id) and pinned_to in ("", numerics_id)


def kinds_compatible(kind: str, other: str) -> bool:
    """Whether a loss treats both kinds in the same way: log-probabilities are valid logits."""
    return kind == other or {kind, other} == {"logits", "log-probabilities"}


class NumericsPin:
    """Pins a deterministic reader to one numerics_id.

    Args:
        is_deterministic: the reader is deterministic; else no teacher is barred.

    Attributes:
        is_deterministic: see above.
        pinned: the numerics_id; empty: none yet.
    """

    def __init__(self, is_deterministic: bool) -> None:
        self.is_deterministic = is_deterministic
        self.pinned = ""
        self._answered: dict[str, str] = {}  # by teacher, the numerics_id of its latest answer

    def barred(self, peers: Iterable[Peer]) -> frozenset[str]:
        """Pin the stream if a peer allows it; return the ids of peers that must not label.

        A peer that is not in the registry (incarnation 0) may label until an answer states its
        numerics_id.
        """
        if not self.is_deterministic:
            return frozenset()
        peers = [*peers]
        for gone in self._answered.keys() - {peer.teacher_id for peer in peers}:
            del self._answered[gone]
        known = {
            peer.teacher_id: peer.numerics_id
            if peer.incarnation
            else self._answered[peer.teacher_id]
            for peer in peers
            if peer.incarnation or peer.teacher_id in self._answered
        }
        self.pinned = pinned(self.pinned, known.values())
        return frozenset(name for name, own in known.items() if not admits(self.pinned, own))

    def admits(self, numerics_id: str) -> bool:
        """Whether labels of this numerics_id may be used."""
        return not self.is_deterministic or admits(self.pinned, numerics_id)

    def record(self, teacher: str, numerics_id: str) -> bool:
        """Record the numerics_id of an answer; return whether its labels may be used."""
        self._answered[teacher] = numerics_id
        self.pinned = pinned(self.pinned, [numerics_id])
        return admits(self.pinned, numerics_id)


class LabelKinds:
    """How the numbers of each output are interpreted.

    The first teacher that publishes a kind decides: labels interpreted in two ways would be partly
    wrong. Teachers that publish another kind must not label. The decision is dropped if no fitting
    teacher is left before anything is labelled. A change of the content drops the decision only for
    outputs that teachers convert to labels: those are comparable, whatever kind they are made from.

    Attributes:
        settled: the kinds, by output; the dict is replaced as a whole.
        is_firm: the stream has labels.
    """

    def __init__(self) -> None:
        self.settled: dict[str, PublishedKind] = {}
        self.is_firm = False
        self._fitting: frozenset[str] = frozenset()  # teachers that publish the settled kinds

    def record(self, teacher: str, published: Iterable[PublishedKind]) -> str:
        """Record what a teacher publishes; return why it must not label, or an empty text."""
        self.forget_others(self._fitting - {teacher})  # its earlier kinds no longer count
        for new in published:
            known = self.settled.get(new.output)
            if known is not None and not kinds_compatible(known.kind, new.kind):
                return (
                    f"it publishes that output {new.output!r} is {new.kind}, but other teachers of"
                    f" its service published {known.kind}, and the labels of this stream are read"
                    f" as {known.kind}. If this teacher is wrong, restart it with"
                    f" --output {new.output}=KIND. If the others are wrong, restart them with this"
                    " option, and then the training"
                )
        for new in published:
            self.settled = {new.output: new, **self.settled}
            self._fitting |= {teacher}
        return ""

    def forget_others(self, teachers: Set[str]) -> None:
        """Forget all teachers but `teachers`."""
        self._fitting &= teachers
        if not self._fitting and not self.is_firm:
            self.settled = {}

    def content_changed(self) -> None:
        """Drop the kinds that another content may change."""
        self.settled = {output: kind for output, kind in self.settled.items() if kind.unconverted}


class ModelSwitch:
    """Decides which assignment a reader follows while its service changes the model content.

    Args:
        numerics: decides which teachers are barred.
        log: writes a log message.

    Attributes:
        state: the content state.
        kinds: how outputs are interpreted.
        handoff_state: state for a successor of this engine; the object is replaced as a whole.
    """

    def __init__(self, numerics: NumericsPin, log: Log) -> None:
        self.state = ContentState()
        self.kinds = LabelKinds()
        self.handoff_state = HandoffState()
        self._numerics = numerics
        self._log = log
        self._content_id = ""  # the latest known content, for which numerics are pinned
        self._latest = self._followed = Assigned(())
        self._away_since: float | None = None

    @property
    def moves_at_epoch(self) -> bool:
        """Whether the stream moves to an announced content when its next epoch begins."""
        return self.state.held_since is None and bool(self.state.advice.next_content_id)

    def assigned(self, assigned: Assigned, now: float) -> tuple[Assigned, bool]:
        """Apply a new assignment.

        Returns the teachers to use from now on, and whether to label all batches again that are not
        released.
        """
        self._latest = assigned
        self.state, step = advise(self.state, assigned.advice, now)
        return self._carry_out(step, assigned.lost)

    def epoch_began(self, data_epoch: int, now: float) -> tuple[Assigned, bool] | None:
        """Begin an epoch; returns what `assigned` returns. None: the teachers stay the same."""
        if data_epoch == self.state.data_epoch:
            return None
        self.state, step = begin(self.state, data_epoch, now)
        return self._carry_out_change(step)

    def resumed(self, data_epoch: int, left: HandoffState, now: float) -> tuple[Assigned, bool]:
        """Continue from the state of the previous engine; returns what `assigned` returns.

        Its teachers are used until the coordinator sends a newer assignment.
        """
        assigned = left.assigned
        self._content_id, self._numerics.pinned = left.content_id, left.numerics_id
        self.kinds.settled = {kind.output: kind for kind in left.kinds}
        self.kinds.is_firm = bool(left.kinds)
        is_advice_newer = self._latest.epoch >= assigned.epoch  # the versions, (term, counter)
        before = ContentState(left.content_id, advice=assigned.advice, bound=left.bound)
        self.state, step = resume(self.state, data_epoch, before, is_advice_newer, now)
        if not is_advice_newer:
            self._latest = assigned
        if step == "stay":
            self._followed = assigned
        return self._carry_out(step, frozenset())

    def record_numerics(self, teacher: str, numerics_id: str) -> Assigned | None:
        """Record the numerics_id of an answer.

        Returns the teachers to use from now on if the labels of the answer must not be used; else
        None.
        """
        if not self._numerics.is_deterministic:
            return None
        before = self._numerics.pinned
        admitted = self._numerics.record(teacher, numerics_id)
        if admitted and before == self._numerics.pinned:
            return None
        self._settle()
        return None if admitted else self._followed

    def labelled(self) -> None:
        """Record that the stream has labels."""
        self.kinds.is_firm = True
        self._update_handoff_state()

    def record_kinds(self, teacher: str, kinds: Iterable[PublishedKind]) -> str:
        """Record the kinds that a teacher publishes; see `LabelKinds.record`."""
        misfit = self.kinds.record(teacher, kinds)
        self._update_handoff_state()
        return misfit

    def tick(
        self, now: float, coordinator_answers: bool, usable: int
    ) -> tuple[Assigned, bool] | None:
        """Check for changes that follow from time.

        Returns what `assigned` returns; None: no change.
        """
        if coordinator_answers:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        before = self.state
        self.state, step = tick(before, now, self._away_since, usable)
        if step == "follow":
            self._log(
                "warning",
                f"an epoch begins with content {self.state.content_id}: no coordinator is"
                f" answering, so none can move this reader to content {before.awaited}",
                "",
            )
        return None if step == "stay" else self._carry_out_change(step)

    def _carry_out_change(self, step: SwitchAction) -> tuple[Assigned, bool] | None:
        """Carry out a step; None: the teachers stay the same, and nothing is labelled again."""
        before = self._followed
        after, again = self._carry_out(step, frozenset())
        return (after, again) if again or after.peers != before.peers else None

    def _carry_out(self, step: SwitchAction, lost: frozenset[str]) -> tuple[Assigned, bool]:
        match step:
            case "follow" | "relabel":
                self._followed = self._latest
            case "hold":
                self._log("info", f"an epoch begins: waiting for content {self.state.awaited}", "")
                self._followed = Assigned((), lost, self._latest.live, self._latest.epoch)
            case "stay":
                peers = tuple(p for p in self._followed.peers if p.teacher_id not in lost)
                self._followed = replace(self._followed, peers=peers, lost=lost)
        if step == "relabel":
            self._log("warning", f"from now on labels are of content {self.state.content_id}", "")
        self._settle()
        return self._followed, step == "relabel"

    def _settle(self) -> None:
        """Update the barred teachers, the kinds, and the state for a successor."""
        numerics = self._numerics
        if content_id := self.state.content_id:  # empty: unknown, possibly the same content
            if self._content_id not in ("", content_id):
                numerics.pinned = ""
                self.kinds.content_changed()
            self._content_id = content_id
        peers = self._followed.peers
        self._followed = replace(self._followed, barred=numerics.barred(peers))
        self.kinds.forget_others({peer.teacher_id for peer in peers})
        self._update_handoff_state()

    def _update_handoff_state(self) -> None:
        """Update the state for a successor."""
        state = self.state
        if state.held_since is None:
            assigned, pinned = self._followed, self._numerics.pinned
        else:
            assigned, pinned = self._latest, ""
        if state.content_id != self._content_id:
            pinned = ""  # the successor is not told the pin's content, so it could not end the pin
        kinds = tuple(self.kinds.settled.values()) if self.kinds.is_firm else ()
        assigned = replace(assigned, lost=frozenset(), barred=frozenset())
        left = HandoffState(state.reported, state.bound, assigned, pinned, kinds)
        if left != self.handoff_state:
            self.handoff_state = left
