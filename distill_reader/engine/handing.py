"""Labels of one or several services on their way to the trainer: mixed, offered, released."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from ...errors import EdlError, UsageError
from ...proto.arena import Arena, Array, Record
from ...proto.channel import Channel
from ...proto.forms import kind_of, softmax
from ...scheduler import no_teacher
from ...scheduler.no_teacher import Mixture, mixture
from ...scheduler.reader_core.delivery import Delivery
from ..config import ReaderConfig
from ..label_forms import LabelForms
from ..options import WEIGHTS
from ..ring import refused
from .labels import Assembled
from .member import Member

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


class Handing:
    """Offers each batch that all members are done with, as `Delivery` says. For one thread.

    A member is done with a batch when it has labelled it, or goes without. What several members
    have labelled is mixed into a record of its own.

    Args:
        config: of the reader.
        channel: to the trainer.
        arena: where labels lie.
        members: who labels.
        failed: told when labels cannot be mixed.

    Attributes:
        delivery: in which order, and how far ahead.
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
        self.delivery = Delivery(
            [member.config.service for member in members], ordered=config.ordered
        )
        self.partial = self.unlabelled = 0
        self.mixture: Mixture | None = None
        self._config = config
        self._mixing = config.mixing
        self._rule = None if config.mixing is None else config.mixing.rule()
        self._channel = channel
        self._arena = arena
        self._members = {member.config.service: member for member in members}
        self._failed = failed
        self._poison: dict[int, str] = {}  # why a batch will never be labelled
        self._taking_part: dict[int, int] = {}  # services whose labels an offered batch has
        self._names = _unseen_names(config)

    def labelled(self, member: Member, number: int) -> None:
        """A member has labelled a batch, or goes without."""
        if number in self._poison:
            member.labels.drop(number)
        self._offer(self.delivery.done(member.config.service, number))

    def poisoned(self, number: int, text: str) -> None:
        """A batch will never be labelled."""
        self._poison.setdefault(number, text)
        for member in self._members.values():
            member.pass_over(number)
        self._offer(self.delivery.poisoned(number))

    def unlabelled_again(self, member: Member, number: int) -> None:
        """Labels that a member has given a batch are void."""
        self._poison.pop(number, None)
        self._taking_part.pop(number, None)
        if anew := self.delivery.undone(member.config.service, number):
            self._channel.send("withdraw", number=number)
            for service in anew - {member.config.service}:
                self._members[service].doubt(number)

    def release(self) -> None:
        """Let the training loop take what it may."""
        if not (numbers := self.delivery.release()):
            return
        self._channel.send("release", numbers=numbers)
        for number in numbers:
            if (services := self._taking_part.pop(number, None)) is not None:
                self.unlabelled += not services
                self.partial += 0 < services < len(self._members)
            for member in self._members.values():
                member.released(number)

    def go_on_without(self, alone_since: dict[str, float], now: float) -> None:
        """Let batches go that only lack members which are missing, as far as that is tolerated."""
        if self._rule is None or not alone_since:
            return
        members = self._members
        for number, undone in self.delivery.incomplete.items():
            if any(members[service].is_on_shelf(number) for service in undone):
                continue  # a label store may have what teachers do not give
            labelled = {s for s in members.keys() - undone if members[s].labels.has(number)}
            if mixture(self._rule, labelled, alone_since, now) is not None:
                for service in undone:
                    members[service].forgo(number)

    def reset(self) -> None:
        """An epoch was left."""
        self.delivery.reset()
        self._poison.clear()
        self._taking_part.clear()

    def _offer(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (text := self._poison.get(number)) is not None:
                self._channel.send("poison", number=number, text=text)
                continue
            labelled = {
                service: labels
                for service, member in self._members.items()
                if (labels := member.labels.offer(number)) is not None
            }
            self._taking_part[number] = len(labelled)
            self._send_labels(number, labelled)

    def _send_labels(self, number: int, labelled: Mapping[str, Assembled]) -> None:
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
        self._taking_part[number] = 0
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
        self._names = tuple(name for name, *_ in layouts)
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
        head = self._head
        return head is not None and not any(one.is_on_shelf(head) for one in self._members)

    @property
    def _head(self) -> int | None:
        """The first batch that not all members are done with; None: there is none."""
        return next(iter(self._handing.delivery.incomplete), None)

    def _loop_waits(self) -> bool:
        return any(member.core.waiting_since is not None for member in self._members)

    def _go_unlabelled(self, now: float) -> None:
        head = self._head
        assert head is not None  # as the training loop waits for it
        log.warning("batch %d goes without soft labels: there is no teacher", head)
        for member in self._members:
            member.forgo(head)
            member.waits(now, waits=False)  # it has what it waits for
