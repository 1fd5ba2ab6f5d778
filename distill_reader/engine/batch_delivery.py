"""Passes labelled batches to the trainer, and averages the labels of several services."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...proto.arena import Arena, Array, Record
from ...proto.channel import Channel
from ...proto.forms import kind_of, softmax
from ...runtime.errors import EdlError, UsageError
from ...scheduler.no_teacher import Mixture, Policy
from ...scheduler.reader_core import instructions as do
from ...scheduler.reader_core.delivery import Delivery
from ..config import ReaderConfig
from ..label_forms import LabelForms
from ..options import WEIGHTS, EnsembleConfig
from ..ring import memory_refused
from .ensemble_member import EnsembleMember, log_message
from .label_records import AssembledLabels


def mixed_into(
    mixed: Sequence[Array],
    labels: Sequence[tuple[float, Mapping[str, Array]]],
    forms: LabelForms,
    kinds: Sequence[Mapping[str, str]],
) -> None:
    """Write the weighted mean of probabilities to `mixed`.

    Args:
        mixed: a float32 array for each label; overwritten.
        labels: (share, labels by name) pairs of the services; shares sum to 1. Labels are matched
            by order, not by name; their shapes have been checked by `mean_layout`.
        forms: requested forms, and kinds that the user states.
        kinds: for each of `labels`, the `OutputKind` that its teachers publish, by name; unknown
            kinds are inferred from the values.

    Raises:
        UsageError: teachers publish the kind "other" for an output, or an output is not
            probabilities and has fewer than two classes.
    """
    for array in mixed:
        array[...] = 0.0
    for (share, by_name), published in zip(labels, kinds, strict=True):
        for total, (name, label) in zip(mixed, by_name.items(), strict=True):
            rows = label.astype(np.float32, copy=False)
            is_normalized = _are_probabilities(name, label, forms, published.get(name, ""))
            total += np.float32(share) * (rows if is_normalized else softmax(rows, 1.0))


def _are_probabilities(name: str, label: Array, forms: LabelForms, kind: str) -> bool:
    form = forms.of(name)
    if form is not None and form.temperature is not None:
        return True
    if kind == "other":
        raise UsageError(
            f"output {name!r} cannot be averaged, because its teachers publish that it is neither"
            " logits nor probabilities: name another output by fetches, or start the teachers with"
            " --output NAME=KIND"
        )
    if form is not None and form.k:
        return False  # top-k of probabilities arrives as logarithms
    if (forms.stated_kind(name) or kind or kind_of([label])) == "probabilities":
        return True
    if label.ndim < 2 or label.shape[-1] < 2:
        raise UsageError(
            f"output {name!r} of shape {list(label.shape)} cannot be averaged, because it has fewer"
            " than two classes: name another output by fetches, or state"
            " soft_label_is='probabilities'"
        )
    return False


def mean_layout(
    labels: Mapping[str, Mapping[str, Array]],
) -> list[tuple[str, np.dtype[np.float32], tuple[int, ...]]]:
    """Return the names, dtypes and shapes of the mean of labels.

    Args:
        labels: labels by service and name.

    Raises:
        UsageError: labels of different shapes, or labels that are not floats.
    """
    shapes = {
        service: [label.shape for label in by_name.values()] for service, by_name in labels.items()
    }
    (first, expected), *others = shapes.items()
    for service, differing in others:
        if differing != expected:
            raise UsageError(
                f"labels of {first!r} and {service!r} cannot be averaged: shapes {expected} and"
                f" {differing}; name outputs of equal shapes by fetches=[...]"
            )
    all_labels = [label for by_name in labels.values() for label in by_name.values()]
    if not all(label.dtype.kind in "fV" for label in all_labels):
        raise UsageError(
            "labels that are no floats cannot be averaged: name other outputs by fetches"
        )
    return [(name, np.dtype(np.float32), label.shape) for name, label in labels[first].items()]


class BatchDelivery:
    """Executes the instructions of `Delivery`. For the engine's thread.

    An engine has two: one for the batches of the training loop, and one for calls of `TeacherPool`.
    Batches of calls are released as soon as they are labelled, in any order.

    Args:
        config: settings of the reader.
        channel: channel to the trainer.
        arena: holds the labels.
        members: one member for each service.
        failed: called with the number of a batch with labels that cannot be averaged, and the
            error.
        released: called with the numbers of batches that are final.
        gave_up: called when the training loop stops waiting for teachers. None if this object is
            for calls, which have deadlines instead.
        loop_delivery: the object for the training loop's batches, if this one is for calls. None:
            this one is for the loop's batches.

    Attributes:
        delivery: decides which batches to offer and release.
        mixture: services and weights of the latest batch with averaged labels; None: none yet.
    """

    def __init__(
        self,
        config: ReaderConfig,
        channel: Channel,
        arena: Arena,
        members: Sequence[EnsembleMember],
        failed: Callable[[int, EdlError], None],
        released: Callable[[Sequence[int]], None],
        gave_up: Callable[[], None] | None = None,
        loop_delivery: BatchDelivery | None = None,
    ) -> None:
        self.delivery: Delivery = Delivery(
            {member.config.service: member.ledger for member in members},
            ordered=config.ordered and loop_delivery is None,
            policy=config.policy() if loop_delivery is None else Policy(),
            ensemble=None if config.ensemble is None else config.ensemble.core_settings(),
            loop_delivery=None if loop_delivery is None else loop_delivery.delivery,
        )
        self.mixture: Mixture | None = None
        self._config = config
        self._ensemble = config.ensemble
        self._channel = channel
        self._arena = arena
        self._members = {member.config.service: member for member in members}
        self._failed = failed
        self._released = released
        self._gave_up = gave_up
        self._names = _default_names(config)

    def execute(self, instructions: Sequence[do.StreamInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.ForwardEvent(service, event):
                    self._members[service].forward(event)
                case do.OfferBatch(number, mixture):
                    self._offer(number, mixture)
                case do.Release(numbers):
                    self._released(numbers)
                case do.OfferPoison(number, reasons):
                    self._channel.send(
                        "poison", number=number, text=poison_message(number, reasons)
                    )
                case do.Withdraw(number):
                    self._channel.send("withdraw", number=number)
                case do.DropBatch(number):
                    for member in self._members.values():
                        member.labels.drop(number)
                case do.GiveUp() if self._gave_up is not None:
                    self._gave_up()
                case do.LogMessage():
                    log_message(instruction)

    def _offer(self, number: int, mixture: Mixture | None) -> None:
        labelled: dict[str, AssembledLabels] = {}
        for service, member in self._members.items():
            if (offered := member.labels.offer(number)) is not None:
                labelled[service] = offered
        if mixture is None or not labelled:
            self._send(number, None, self._names)
        elif self._ensemble is not None:
            self._mix(number, labelled, mixture, self._ensemble)
        else:
            (labels,) = labelled.values()
            self._names = labels.names
            self._send(number, labels.record, labels.names)

    def _mix(
        self,
        number: int,
        labelled: Mapping[str, AssembledLabels],
        mixture: Mixture,
        ensemble: EnsembleConfig,
    ) -> None:
        """Average the labels of several services into a new record, and offer that record."""
        labels: dict[str, dict[str, Array]] = {
            service: self._members[service].labels.arrays(assembled)
            for service, assembled in labelled.items()
        }
        try:
            layouts = mean_layout(labels)
        except UsageError as error:
            self._failed(number, error)
            return
        rows = layouts[0][2][0]
        if ensemble.policy.with_weights:
            layouts.append((WEIGHTS, layouts[0][1], (rows, len(self._members))))
        try:
            record = self._arena.allocate([(dtype, shape) for _, dtype, shape in layouts])
        except OSError as error:
            raise memory_refused(self._arena, error) from error
        arrays = [self._arena.get(ref) for ref in record.arrays]
        if ensemble.policy.with_weights:
            arrays.pop()[...] = [mixture.shares.get(service, 0.0) for service in self._members]
        shares = [(mixture.shares[service], by_name) for service, by_name in labels.items()]
        kinds = [self._members[service].output_kinds for service in labels]
        try:
            mixed_into(arrays, shares, self._config.labels, kinds)
        except UsageError as error:
            self._arena.free(record.offset)
            self._failed(number, error)
            return
        self.mixture = mixture
        self._names = tuple(name for name, *_ in layouts)
        self._send(number, record, self._names)

    def _send(self, number: int, record: Record | None, names: Sequence[str]) -> None:
        members = self._members.items()
        makers = {service: member.ledger.makers(number) for service, member in members}
        self._channel.send("labelled", number=number, names=names, record=record, makers=makers)


def poison_message(number: int, reasons: tuple[str, ...]) -> str:
    """Return the error message for a batch that teachers refuse."""
    return f"teachers refuse batch {number}: {'; '.join(reasons)}; it is not sent to other teachers"


def _default_names(config: ReaderConfig) -> tuple[str, ...]:
    """Return the names to use for labels before the first batch is labelled."""
    names: list[str] = []
    for name in config.fetches or ("soft_label",):
        form = config.labels.of(name)
        in_parts = form is not None and form.k and not config.labels.expand
        names.extend(form.parts(name) if form is not None and in_parts else [name])
    if config.ensemble is not None and config.ensemble.policy.with_weights:
        names.append(WEIGHTS)
    return tuple(names)
