"""`PaddleLoader`: a reader with the face of a `paddle.io.DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import UsageError
from ..reader import DistilReader
from ..structure import map_leaves
from .loader import Loader, numbers_of
from .tensors import PaddleKind, moved


class PaddleLoader(Loader):
    """Yields the batches of `reader` as tensors of Paddle, on the place that is asked for.

    Paddle's tensors come back as such from a reader anyway, each where it was; this is for sources
    of numpy arrays, for another place, and for static-graph programs, which are fed by name. In
    static mode tensors are the `DenseTensor` that `Executor.run` takes, as Paddle's loader has it.

    Args:
        reader: what it iterates.
        feed_list: with `return_list=False`, names or static variables for the fields of a batch in
            their order, soft labels last; of batches that are dicts, which fields to keep.
        places: one place, or a list of one: `paddle.CUDAPlace(0)`, "gpu:0", "cpu" ...; by default
            what is a tensor stays where it is, and arrays go where Paddle puts new tensors.
        return_list: True: batches as the source has them, tuples as lists. False: a list of one
            dict from name to tensor, which is what `Executor.run(feed=...)` takes.

    Raises:
        UsageError: several places, which are one rank each, with a reader of its own; or a place
            that this Paddle cannot reach. While iterating, names that do not fit the batch.
    """

    def __init__(
        self,
        reader: DistilReader,
        *,
        feed_list: Sequence[Any] | None = None,
        places: Any = None,
        return_list: bool = True,
    ) -> None:
        super().__init__(reader)
        self.return_list = return_list
        if isinstance(feed_list, str):
            raise UsageError(f"feed_list is a list of fields, as in feed_list=[{feed_list!r}]")
        self._names = [str(getattr(feed, "name", feed)) for feed in feed_list or ()]
        self._place = _place_of(places)

    def __call__(self) -> Iterator[Any]:
        """A new epoch, as Paddle's loader has it."""
        return iter(self)

    def _converted(self, batch: Any) -> Any:
        import paddle

        static = not paddle.in_dynamic_mode()
        batch = map_leaves(batch, lambda leaf: self._leaf(leaf, static))
        if not self.return_list:
            return [by_name(batch, self._names)]
        return [*batch] if isinstance(batch, tuple) else batch

    def _leaf(self, leaf: Any, static: bool) -> Any:
        if (array := numbers_of(leaf)) is not None:
            return PaddleKind(self._place, static=static).tensor(array)
        return leaf if self._place is None else moved(leaf, self._place)


def _place_of(places: Any) -> Any:
    if isinstance(places, (list, tuple)):
        if len(places) != 1:
            raise UsageError(
                f"a loader feeds one place, not {len(places)}: start one rank for each device, with"
                " a reader of its own"
            )
        (places,) = places
    if places is None:
        return None
    import paddle

    try:
        asked = paddle.base.framework._get_paddle_place(places)
    except (ValueError, TypeError) as error:
        raise UsageError(f"no tensors can be put on {places!r}: {error}") from None
    place = paddle.base.core.Place()  # the general one, which tensors name and compare equal to
    place.set_place(asked)
    return place


def by_name(batch: Any, names: Sequence[str]) -> Mapping[Any, Any]:
    """The fields of a batch by name.

    Args:
        batch: a mapping, or a list of one, as static-graph loaders have it: then `names` are those
            that are kept, in their order. Or fields in their order, which are given these names.
        names: of fields; empty: all of a mapping.

    Raises:
        UsageError: names and fields do not fit each other.
    """
    if isinstance(batch, list) and len(batch) == 1 and isinstance(batch[0], Mapping):
        batch = batch[0]
    if isinstance(batch, Mapping):
        missing = [name for name in names if name not in batch]
        if missing:
            raise UsageError(f"feed_list names {missing[0]!r}, a batch has {list(batch)}")
        return {name: batch[name] for name in names} if names else batch
    if len(names) != len(batch):
        raise UsageError(
            f"feed_list names {len(names)} fields, a batch has {len(batch)}, soft labels included;"
            " with return_list=False name each of them, in their order"
        )
    return dict(zip(names, batch, strict=True))
