"""Batches of one or several services on their way back: waited for, mixed, handed over, let go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...errors import EdlError, UsageError
from ...proto.arena import Arena, Array, Record
from ...proto.channel import Channel
from ...proto.form_arrays import kind_of, softmax
from ...scheduler import no_teacher
from ...scheduler.ensemble import Mixture, mixture
from ..config import ReaderConfig
from ..ensembles import WEIGHTS
from ..label_forms import LabelForms
from ..ring import refused
from .labels import Assembled
from .member import Member
from .requests import Batch

log = logging.getLogger(__name__)


def mixed_into(
    mixed: Sequence[Array],
    labels: Sequence[tuple[float, Mapping[str, Array]]],
    forms: LabelForms,
    kinds: Sequence[Mapping[str, str]],
) -> None:
    """Write the weighted mean of probabilities.

    Args:
        mixed: a float32 array for each label, which is overwritten.
        labels: pairs (share, labels by name) of the services that take part; shares sum to 1. The
            first label of each is averaged with the first of the others, and so on, whatever their
            names; shapes have been checked by `layout_of`.
        forms: in which form they were asked for, and what the user states of them.
        kinds: of each of `labels`, the `OutputKind` that its teachers state, by name; what nobody
            states is found out by the values.

    Raises:
        UsageError: an output is "other".
    """
    for array in mixed:
        array[...] = 0.0
    for (share, named), stated in zip(labels, kinds, strict=True):
        for total, (name, label) in zip(mixed, named.items(), strict=True):
            rows = label.astype(np.float32, copy=False)
            known = _are_probabilities(name, label, forms, stated.get(name, ""))
            total += np.float32(share) * (rows if known else softmax(rows, 1.0))


def _are_probabilities(name: str, label: Array, forms: LabelForms, kind: str) -> bool:
    form = forms.of(name)
    if form is not None and form.temperature is not None:
        return True
    if kind == "other":
        raise UsageError(
            f"output {name!r} cannot be averaged, as its teachers publish that it is neither logits"
            " nor probabilities: name another by fetches, or start them with --output-kind"
        )
    if form is not None and form.k:
        return False  # top-k of probabilities arrives as logarithms
    return (forms.stated_kind(name) or kind or kind_of([label])) == "probabilities"


def layout_of(
    labels: Mapping[str, Mapping[str, Array]],
) -> list[tuple[str, np.dtype[np.float32], tuple[int, ...]]]:
    """Names, dtypes and shapes of the mean, of labels by service.

    Raises:
        UsageError: they are no labels of the same classes.
    """
    kinds = {
        service: [(label.shape, label.dtype.kind in "fV") for label in named.values()]
        for service, named in labels.items()
    }
    (first, expected), *others = kinds.items()
    for service, kind in others:
        if kind != expected:
            raise UsageError(
                f"labels of {first!r} and {service!r} cannot be averaged: shapes"
                f" {[shape for shape, _ in expected]} and {[shape for shape, _ in kind]}; name the"
                " outputs that can by fetches=[...]"
            )
    if not all(is_float for _, is_float in expected):
        raise UsageError("labels that are no floats cannot be averaged: name others by fetches")
    return [(name, np.dtype(np.float32), label.shape) for name, label in labels[first].items()]


@dataclass(slots=True)
class _Awaited:
    """A batch that some members are not done with yet, and what the others have labelled."""

    undone: set[str]
    labelled: dict[str, Assembled] = field(default_factory=dict)


class Handing:
    """Hands each batch over that all members are done with. Used by the engine's thread alone.

    A member is done with a batch when it has labelled it, or goes without. What several members
    have labelled is mixed into a record of its own.

    Args:
        config: of the reader.
        channel: to the trainer.
        arena: where labels lie.
        members: who labels.
        failed: told when labels cannot be mixed.

    Attributes:
        partial: batches whose labels lack those of a member.
        unlabelled: batches that went without any.
        mixture: of the latest batch that was mixed.
    """

    def __init__(
        self,
        config: ReaderConfig,
        channel: Channel,
        arena: Arena,
        members: Sequence[Member],
        failed: Callable[[EdlError], None],
    ) -> None:
        self.partial = self.unlabelled = 0
        self.mixture: Mixture | None = None
        self._config = config
        self._mixing = config.mixing
        self._rule = None if config.mixing is None else config.mixing.rule()
        self._channel = channel
        self._arena = arena
        self._members = {member.config.service: member for member in members}
        self._failed = failed
        self._awaited: dict[int, _Awaited] = {}  # by batch, in the order of the stream
        self._mixed: dict[int, int] = {}  # where the mixed labels of a batch lie that was sent
        self._recalls: dict[int, list[Member]] = {}  # who wants what the trainer has
        self._held: set[int] = set()  # what it has of an engine before this one
        self._names = _unseen_names(config)

    def queue(self, batch: Batch) -> None:
        """A batch is to be labelled by every member."""
        self._awaited[batch.number] = _Awaited(set(self._members))

    def hold(self, number: int) -> None:
        """The trainer has a batch with labels that an engine before this one has handed over."""
        self._held.add(number)

    @property
    def head(self) -> int | None:
        """The first batch that is not handed over; None: all are."""
        return next(iter(self._awaited), None)

    def done(self, member: Member, number: int) -> None:
        """It is the batch's turn at a member, which has labelled it or goes without."""
        if (awaited := self._awaited.get(number)) is None:
            member.labels.drop(number)  # another member will never label it
            return
        service = member.config.service
        awaited.undone.discard(service)
        if member.labels.has(number):  # from now on, whatever becomes of the member
            awaited.labelled[service] = member.labels.hand_over(number)
        if not awaited.undone:
            del self._awaited[number]
            self._hand_over(number, awaited.labelled)

    def recall(self, member: Member, number: int) -> None:
        """Not all labels that a member has given a batch are to be believed: it is to come back."""
        if (awaited := self._awaited.get(number)) is not None:  # it waits for other members
            service = member.config.service
            awaited.labelled.pop(service, None)  # none where the member went without it
            awaited.undone.add(service)
            member.take_back(number)
            return
        if number not in self._recalls:
            self._channel.send("recall", number=number)
        self._recalls.setdefault(number, []).append(member)
        if number in self._held:  # nobody can tell any more which of its labels are whose
            for other in self._members.values():
                if other not in self._recalls[number]:
                    other.doubt(number)

    def recalled(self, number: int) -> None:
        """The trainer has handed a batch back; what other members have labelled of it stays."""
        if not (members := self._recalls.pop(number, None)):
            return  # of an epoch that was left
        self._held.discard(number)
        undone = {member.config.service for member in members}
        labelled = {
            service: labels
            for service, member in self._members.items()
            if service not in undone and (labels := member.labels.handed(number)) is not None
        }
        if (offset := self._mixed.pop(number, None)) is not None:
            self._arena.free(offset)
            self.partial -= len(undone) + len(labelled) < len(self._members)
        self._awaited[number] = _Awaited(undone, labelled)
        self._awaited = dict(sorted(self._awaited.items()))
        for member in members:
            member.take_back(number)

    def drop(self, number: int) -> None:
        """A batch will never be labelled."""
        self._awaited.pop(number, None)
        self._free_what_was_mixed(number)

    def go_on_without(self, alone_since: dict[str, float], now: float) -> None:
        """Let batches go that only lack members which are missing, as far as that is tolerated."""
        if self._rule is None or not alone_since:
            return
        for number, awaited in list(self._awaited.items()):
            if any(self._members[service].is_on_shelf(number) for service in awaited.undone):
                continue  # a label store may have what teachers do not give
            if mixture(self._rule, awaited.labelled.keys(), alone_since, now) is not None:
                for service in list(awaited.undone):
                    self._members[service].forgo(number)

    def taken(self, number: int) -> None:
        """The training loop has consumed a batch."""
        self._free_what_was_mixed(number)

    def reset(self) -> None:
        """An epoch was left: what was handed over and is not consumed is the trainer's to free."""
        self._awaited.clear()
        self._recalls.clear()
        self._held.clear()
        self._mixed.clear()
        for member in self._members.values():
            for labels in member.labels.let_go_of_all():
                if self._mixing is not None:
                    self._arena.free(labels.record.offset)

    def _free_what_was_mixed(self, number: int) -> None:
        self._recalls.pop(number, None)
        self._held.discard(number)
        self._mixed.pop(number, None)
        for member in self._members.values():
            if (labels := member.labels.let_go(number)) is not None and self._mixing is not None:
                self._arena.free(labels.record.offset)

    def _hand_over(self, number: int, labelled: Mapping[str, Assembled]) -> None:
        if self._rule is not None:
            mix = mixture(self._rule, labelled.keys(), self._gone, 0.0)
            if mix is not None:
                self._mix(number, labelled, mix)
                return
        elif labelled:
            (labels,) = labelled.values()
            self._names = labels.names
            self._send(number, labels.record, labels.names)
            return
        self.unlabelled += 1
        self._send(number, None, self._names)

    @property
    def _gone(self) -> dict[str, float]:
        """Every member as missing for ever: who has not labelled a batch by its turn never will."""
        return dict.fromkeys(self._members, -float("inf"))

    def _mix(self, number: int, labelled: Mapping[str, Assembled], mix: Mixture) -> None:
        mixing = self._mixing
        assert mixing is not None
        labels: dict[str, dict[str, Array]] = {
            service: self._members[service].labels.arrays(one) for service, one in labelled.items()
        }
        try:
            layouts = layout_of(labels)
        except UsageError as error:
            self._failed(error)
            return
        rows = layouts[0][2][0]
        if mixing.policy.with_weights:
            layouts.append((WEIGHTS, layouts[0][1], (rows, len(self._members))))
        try:
            record = self._arena.allocate([(dtype, shape) for _, dtype, shape in layouts])
        except OSError as error:
            raise refused(self._arena, error) from error
        arrays = [self._arena.get(ref) for ref in record.arrays]
        if mixing.policy.with_weights:
            arrays.pop()[...] = [mix.shares.get(service, 0.0) for service in self._members]
        shared = [(mix.shares[service], named) for service, named in labels.items()]
        kinds = [self._members[service].output_kinds for service in labels]
        try:
            mixed_into(arrays, shared, self._config.labels, kinds)
        except UsageError as error:
            self._arena.free(record.offset)
            self._failed(error)
            return
        self.mixture = mix
        self.partial += len(labelled) < len(self._members)
        self._names = tuple(name for name, *_ in layouts)
        self._mixed[number] = record.offset
        self._send(number, record, self._names)

    def _send(self, number: int, record: Record | None, names: Sequence[str]) -> None:
        refs = [None] * len(names) if record is None else [ref.to_json() for ref in record.arrays]
        self._channel.send(
            "labelled",
            number=number,
            offset=None if record is None else record.offset,
            nbytes=0 if record is None else record.nbytes,
            labels=[[name, ref] for name, ref in zip(names, refs, strict=True)],
            makers={name: one.ledger.makers(number) for name, one in self._members.items()},
        )


def _unseen_names(config: ReaderConfig) -> tuple[str, ...]:
    """The labels of a batch that goes without any, before one was labelled."""
    names: list[str] = []
    for name in config.fetches or ("soft_label",):
        form = config.labels.of(name)
        in_parts = form is not None and form.k and not config.labels.expand
        names.extend(form.parts(name) if form is not None and in_parts else [name])
    if config.mixing is not None and config.mixing.policy.with_weights:
        names.append(WEIGHTS)
    return tuple(names)


#: Nobody waits without a teacher, and nobody has.
_CALM: Final = no_teacher.Patience()


class Vigil:
    """One look each time that something has changed, or time has gone by.

    Args:
        config: of the reader.
        members: who labels.
        handing: where their labels go.
    """

    def __init__(self, config: ReaderConfig, members: Sequence[Member], handing: Handing) -> None:
        self._policy = config.policy()
        self._needs_all = config.mixing is None or config.mixing.policy.missing == "wait"
        self._members = members
        self._handing = handing
        self._patience = no_teacher.Patience()
        self._alone_since: dict[str, float] = {}
        self._lacking: list[Member] = []  # who had no teacher lately

    def look(self, now: float) -> bool:
        """Let batches go that are not to wait any more; whether to give up instead."""
        for member in self._members:
            if member.ledger.usable:
                self._alone_since.pop(member.config.service, None)
            else:
                self._alone_since.setdefault(member.config.service, now)
        if not self._alone_since and self._patience == _CALM:
            return False
        self._handing.go_on_without(self._alone_since, now)
        usable = [member.ledger.usable for member in self._members]
        alone = [one for one in self._members if one.config.service in self._alone_since]
        self._lacking = alone or self._lacking
        need = no_teacher.Need(
            usable=min(usable) if self._needs_all else max(usable),
            waits=self._loop_waits() and self._head_lacks_teachers(),
            answers=sum(member.labels.accepted for member in self._lacking),
        )
        action, self._patience = no_teacher.decide(need, self._patience, now, self._policy)
        if action == "go_unlabelled":
            self._go_unlabelled(now)
        return action == "give_up"

    def _head_lacks_teachers(self) -> bool:
        head = self._handing.head
        return head is not None and not any(one.is_on_shelf(head) for one in self._members)

    def _loop_waits(self) -> bool:
        return any(member.core.waiting_since is not None for member in self._members)

    def _go_unlabelled(self, now: float) -> None:
        head = self._handing.head
        assert head is not None  # as the training loop waits for it
        log.warning("batch %d goes without soft labels: there is no teacher", head)
        for member in self._members:
            member.forgo(head)
            member.waits(now, waits=False)  # it has what it waits for
