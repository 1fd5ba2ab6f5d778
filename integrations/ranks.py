"""Loaders with a state that includes the readers of all ranks, for trainers that save on rank 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from ..distill_reader.adapters.torch import TorchLoader
from ..distill_reader.reader import DistilReader
from ..distill_reader.saved_state import State
from ..runtime.errors import UsageError

_KEY: Final = "ranks"


class MakeReader(Protocol):
    """A function that creates this process's reader and passes both arguments to `DistilReader`."""

    def __call__(self, *, rank: int, world_size: int) -> DistilReader: ...


def check_even(reader: DistilReader) -> None:
    """Close the reader and raise UsageError if ranks may have different numbers of batches.

    In a training loop of Lightning, transformers or Accelerate, each step waits for all ranks, and
    a rank makes as many steps as its batches allow.
    """
    if reader.config.world_size > 1 and reader.config.uneven == "keep":
        reader.close()
        raise UsageError(
            "with uneven='keep', some ranks may have one batch less than others, which would wait"
            " for them: give the reader uneven='drop' or uneven='pad'"
        )


def of_all_ranks(state: State) -> dict[str, Any]:
    """Return the states of all ranks, given that of this rank. Collective: all must call it."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return {_KEY: [state]}
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, state)
    return {_KEY: states}


class RankedLoader(TorchLoader):
    """A `TorchLoader` of one rank of `torch.distributed`, or of a process without ranks."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the readers of all ranks. Collective: all ranks must call it."""
        return of_all_ranks(super().state_dict())

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Restore a state that `state_dict` returned, even for another number of ranks.

        Raises:
            UsageError: `state_dict` cannot have returned it, or the reader cannot continue from it.
        """
        if not isinstance(state, dict) or _KEY not in state:
            raise UsageError("this is not the state of a loader of all ranks")
        super().load_state_dict(state[_KEY])


class TrainerLoader(RankedLoader):
    """The loader for a trainer that counts epochs itself and expects batches in each of them.

    If the restored state is at the end of an epoch, iteration begins with the next epoch. An
    iterator from which no batch is taken does not count as an epoch.

    Raises:
        UsageError: `uneven` of the reader is "keep", and there are several ranks.
    """

    def __init__(self, reader: DistilReader, *, pin_memory: bool = False) -> None:
        super().__init__(reader, pin_memory=pin_memory)
        check_even(reader)

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        if (first := next(batches, None)) is None:
            batches = super().__iter__()
        else:
            yield first
        yield from batches
