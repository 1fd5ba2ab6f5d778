"""The training loop's progress in its source, and how it is saved and loaded.

Progress counts the batches that the loop received, not those that were read ahead. It is saved as
JSON values, with properties that are checked when it is loaded: the source (kind and identity) and
the rank must be equal; different settings of labels (service, feeds, fetches, forms, ensemble)
cause a warning. A map-style source can resume with another number of ranks from the states of all
former ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from ..proto.dataclass_json import from_plain, to_plain
from ..runtime.errors import UsageError, WireError
from ..scheduler.students.shards import RankShard, steps_of_rank, taken_together
from .config import ReaderConfig
from .sources.source import Mark, ResumableSource, changed_fields, reading_mark

_NO_MARKS: Final[Mapping[int, Mark | None]] = MappingProxyType({})


class StreamPosition(NamedTuple):
    """The position of a batch in its epoch.

    Attributes:
        ordinal: number of batches of this rank before it in the epoch.
        mark: the source's mark after it.
    """

    ordinal: int
    mark: Mark


class StreamProgress(NamedTuple):
    """The delivered part of an epoch.

    Attributes:
        epoch: its number, from 0.
        batches: number of batches delivered without a gap from the start of the epoch, or since the
            number of ranks last changed in it.
        samples: rows of all batches delivered since then.
        mark: the source's mark after those `batches`; None: the start of the epoch.
        ahead: marks of batches delivered beyond a gap, as with `ordered=False`, by ordinal. The
            mark is None for batches that a loaded state lists as delivered.
    """

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    mark: Mark | None = None
    ahead: Mapping[int, Mark | None] = _NO_MARKS

    def with_delivery(self, position: StreamPosition, samples: int) -> Self:
        """Return the progress after another delivery.

        Args:
            position: position of the batch.
            samples: its rows; 0 for a batch that was delivered before and is read again.
        """
        samples += self.samples
        if position.ordinal != self.batches:
            return self._replace(
                samples=samples, ahead={**self.ahead, position.ordinal: position.mark}
            )
        batches, mark, ahead = self.batches + 1, position.mark, self.ahead
        if ahead:
            ahead = {
                ordinal: mark for ordinal, mark in ahead.items() if ordinal != position.ordinal
            }
            while (following := ahead.get(batches)) is not None:
                del ahead[batches]
                batches, mark = batches + 1, following
        return type(self)(self.epoch, batches, samples, mark, ahead)


log = logging.getLogger(__name__)

FORMAT = "edl-reader-1"
#: A saved state of a reader, as JSON values.
State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _SavedState:
    """The fields of a saved state, without `format`.

    Attributes:
        epoch: as in `StreamProgress`.
        batches: as in `StreamProgress`.
        samples: as in `StreamProgress`.
        mark: as in `StreamProgress`.
        ahead: ordinals of the batches delivered beyond a gap.
        rank: rank of the reader.
        world_size: ranks among which the reader divided the source.
        source: properties that identify the source.
        labels: settings that determine the labels.
    """

    epoch: int
    batches: int
    samples: int
    mark: Mark | None
    ahead: tuple[int, ...]
    rank: int
    world_size: int
    source: Mapping[str, Any]
    labels: Mapping[str, Any]


def to_state(
    progress: StreamProgress, source: ResumableSource, config: ReaderConfig
) -> dict[str, Any]:
    """Convert `progress` to JSON values, with properties of its source and labels."""
    state = _SavedState(
        progress.epoch,
        progress.batches,
        progress.samples,
        progress.mark,
        tuple(sorted(progress.ahead)),
        config.rank,
        config.world_size,
        _identity(source),
        _labels(config),
    )
    return {"format": FORMAT, **to_plain(state)}


def from_state(
    states: State | Sequence[State], source: ResumableSource, config: ReaderConfig
) -> StreamProgress:
    """Convert a saved state, or those of all ranks, to the progress of this reader.

    Raises:
        UsageError: a state was not saved by a reader, or is of another source or rank; or the
            states do not suffice to resume with another number of ranks.
    """
    listed = states if isinstance(states, (list, tuple)) else [states]
    saved = [_read(state) for state in listed]
    if not saved:
        raise UsageError("no state was given to load")
    for state in saved:
        _check_fits(state, source, config)
    if any(state.world_size != config.world_size for state in saved):
        return _resharded(saved, source, config)
    state = next((state for state in saved if state.rank == config.rank), saved[0])
    if state.rank != config.rank:
        raise UsageError(
            f"this state is of rank {state.rank}, and the reader is rank {config.rank}; load the"
            " state of the reader's rank"
        )
    return StreamProgress(
        state.epoch, state.batches, state.samples, state.mark, dict.fromkeys(state.ahead)
    )


def _read(state: Any) -> _SavedState:
    """Check a state that the user gives; raises UsageError unless a reader has saved it."""
    with suppress(WireError):
        if isinstance(state, Mapping) and state.get("format") == FORMAT:
            return from_plain(_SavedState, to_plain(state))
    raise UsageError(
        f"this is not a reader's state in format {FORMAT!r}: {str(state)[:80]}; load what"
        " state_dict() returned"
    )


def _check_fits(state: _SavedState, source: ResumableSource, config: ReaderConfig) -> None:
    saved = dict(state.source)
    if source.kind == "map":
        saved.pop("batches", None)  # in older states; a sampler's length may depend on the epoch
    if differing := changed_fields(saved, _identity(source)):
        raise UsageError(
            f"this state is of another source: {differing}; load it into a reader with the source"
            " from which it was saved"
        )
    if differing := changed_fields(state.labels, _labels(config)):
        log.warning("the loaded state was saved with different label settings: %s", differing)


def _resharded(
    states: Sequence[_SavedState], source: ResumableSource, config: ReaderConfig
) -> StreamProgress:
    """Convert the states of another number of ranks to progress for `config.world_size` ranks."""
    former_ranks = states[0].world_size
    change = f"with {config.world_size} instead of {former_ranks} ranks"
    if not source.divides_ids:
        raise UsageError(
            f"cannot resume a {source.kind} source {change}: only map-style sources that the reader"
            " divides support this; keep the number of ranks, or begin the epoch anew"
        )
    by_rank = {state.rank: state for state in states}
    is_complete = sorted(by_rank) == list(range(former_ranks))
    if not is_complete or any(state.world_size != former_ranks for state in states):
        raise UsageError(
            f"to resume {change}, load the states of all {former_ranks} ranks, as"
            f" load_state_dict([rank 0's, rank 1's, ...]); these are of the ranks {sorted(by_rank)}"
        )
    in_order = [by_rank[rank] for rank in range(former_ranks)]
    if any(state.ahead for state in in_order):
        raise UsageError(
            f"to resume {change}, no rank may have delivered batches out of order (ordered=False):"
            " keep the number of ranks, or begin the epoch anew"
        )
    epoch = min(state.epoch for state in in_order)
    in_epoch = [state for state in in_order if state.epoch == epoch]
    mark = next((state.mark for state in in_epoch if state.mark is not None), None)
    if mark is None and len(in_epoch) == former_ranks:
        return StreamProgress(epoch)
    with reading_mark():
        delivered = None if mark is None else _delivered_in_total(mark, in_order, epoch, source)
    if mark is None or delivered is None:
        raise UsageError(
            f"to resume {change}, all ranks must have stopped at the same step; they have delivered"
            f" {[[state.epoch, state.batches] for state in in_order]} (epoch, batches)"
        )
    return (
        StreamProgress(epoch + 1)
        if delivered == mark["of"]  # the number of batches of the epoch
        else StreamProgress(epoch, mark={**mark, "start": delivered})
    )


def _delivered_in_total(
    mark: Mark, states: Sequence[_SavedState], epoch: int, source: ResumableSource
) -> int | None:
    """Count the epoch's batches that the ranks delivered in total.

    None: their steps differ, or the number of ranks last changed at different steps.
    """
    total, start, uneven = mark["of"], mark["start"], source.identity()["uneven"]
    delivered = []  # batches by rank
    for rank, state in enumerate(states):
        ended = state.epoch == epoch + 1 and state.batches == 0
        if not (ended or state.epoch == epoch):
            return None
        if ended:
            delivered.append(steps_of_rank(total, start, RankShard(rank, len(states), uneven)))
        elif state.mark is None or state.mark["start"] == start:
            delivered.append(state.batches)
        else:
            return None
    return taken_together(total, start, uneven, delivered)


def _identity(source: ResumableSource) -> dict[str, Any]:
    identity: dict[str, Any] = to_plain({"kind": source.kind, **source.identity()})
    return identity


def _labels(config: ReaderConfig) -> dict[str, Any]:
    names = ("service", "feeds", "fetches", "labels")
    labels: dict[str, Any] = {name: to_plain(getattr(config, name)) for name in names}
    if config.ensemble is not None:
        weights, policy = dict(config.ensemble.weights), config.ensemble.policy
        labels["ensemble"] = [weights, to_plain(policy)]
    return labels
