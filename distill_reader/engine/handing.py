"""Labelled batches on their way from the members to the trainer, mixed where there are several."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import EdlError, UsageError
from ...proto.arena import Arena, Array, Record
from ...proto.channel import Channel
from ...scheduler.ensemble import Mixture, mixture
from ..config import ReaderConfig
from ..ensembles import WEIGHTS
from ..shared_memory import refused
from .batches import Batch
from .labels import Assembled
from .member import Member
from .mixing import layout_of, mixed_into

log = logging.getLogger(__name__)


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
