"""How a map-style loader is made to read the batches of ids that it is told, in place of its own.

A framework's loader keeps its workers, its collating and its tensors; only the ids come from us.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Protocol

from .batched import Batched
from .source import close_iterator

#: What the samples of one batch are called in the data set.
Ids = Sequence[Any]


class Plan(Protocol):
    """Which batches are read: a list of them, or what says one after another as it is asked."""

    def __len__(self) -> int:
        """How many; where that is not known, at most so many."""

    def __iter__(self) -> Iterator[Ids]:
        """The ids of each batch."""


class Loader(Protocol):
    """Reads batches of ids.

    Attributes:
        dataset: what the ids name; with `set_epoch` it is told the number of each epoch.
        batch_sampler: gives the ids of each batch of an epoch, and has a length.
        keeps: whether its workers work for one epoch after another, if each is read to its end.
    """

    dataset: Any
    batch_sampler: Any
    keeps: bool

    def read(self, plan: Plan) -> Iterator[Any]:
        """The batches of these ids, in order."""

    def close(self) -> None:
        """End the workers that it keeps."""


def loader_of(given: Any) -> Loader | None:
    """The loader that `given` is; None where its batches have no ids that one could choose."""
    if isinstance(given, Batched):
        return _OwnLoader(given)
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return _ListLoader(given)
    if _is_frameworks(given) and isinstance(given.batch_sampler, Sized) and _is_map(given.dataset):
        return _FrameworkLoader(given)
    return None


class _OwnLoader:
    keeps = False

    def __init__(self, batched: Batched) -> None:
        self.dataset = batched.dataset
        self.batch_sampler = batched.batch_sampler
        self._batched = batched

    def read(self, plan: Plan) -> Iterator[Any]:
        return self._batched.batches_of(plan)

    def close(self) -> None:
        pass


class _ListLoader:
    """A list of batches: each is a sample, of a batch of its own."""

    keeps = False

    def __init__(self, batches: Sequence[Any]) -> None:
        self.dataset = batches
        self.batch_sampler = _EachByItself(batches)

    def read(self, plan: Plan) -> Iterator[Any]:
        return (self.dataset[number] for (number,) in plan)

    def close(self) -> None:
        pass


class _EachByItself:
    def __init__(self, batches: Sized) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return ([number] for number in range(len(self)))


class _FrameworkLoader:
    """A loader of Paddle or PyTorch; a copy of it reads, so that the user's stays as it is."""

    def __init__(self, loader: Any) -> None:
        self.dataset = loader.dataset
        self.batch_sampler = loader.batch_sampler
        self._plan = _Plan()
        self._copy = copy.copy(loader)
        # Past __setattr__: PyTorch's forbids what its constructor was given.
        vars(self._copy).update(batch_sampler=self._plan, _iterator=None)
        persistent = ("persistent_workers", "_persistent_workers")
        self.keeps = loader.num_workers > 0 and any(getattr(loader, n, False) for n in persistent)

    def read(self, plan: Plan) -> Iterator[Any]:
        self._plan.batches = plan
        iterator: Iterator[Any] = iter(self._copy)
        return iterator

    def close(self) -> None:
        kept, self._copy._iterator = self._copy._iterator, None
        if kept is not None:
            close_iterator(kept)


class _Plan:
    """A batch sampler that gives what it was told; one for all epochs, as workers may be kept."""

    batches: Plan = ()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Ids]:
        return iter(self.batches)


def _is_frameworks(given: Any) -> bool:
    # Exactly these: a class of the user's own may do more than hand ids to workers.
    return any(type(given) is module.DataLoader for module in _frameworks())


def _frameworks() -> list[Any]:
    # Who has one of their loaders has imported them; nobody else shall pay for the import.
    modules = (sys.modules.get(name) for name in ("paddle.io", "torch.utils.data"))
    return [module for module in modules if module is not None]


def _is_map(dataset: Any) -> bool:
    return not any(isinstance(dataset, module.IterableDataset) for module in _frameworks())
