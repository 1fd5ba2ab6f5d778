"""`PaddleLoader`: a reader with the interface of a `paddle.io.DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...runtime.errors import UsageError
from ..reader import DistilReader
from ..structure import is_fed_dict, map_leaves
from .loader import Loader, numbers_of
from .tensors import PaddleKind, moved


class PaddleLoader(Loader):
    """Yields the batches of `reader` as tensors of Paddle on a chosen place.

    Without this loader, a reader already returns the source's Paddle tensors as Paddle tensors, on
    their place. This loader is for sources of numpy arrays, for another place, and for static-graph
    programs, which are fed by name. In static mode it yields `DenseTensor`, the type that
    `Executor.run` takes and Paddle's own loader yields.

    Args:
        reader: the reader.
        feed_list: with `return_list=False`, names or static variables for the fields of a batch in
            order, soft labels last; for batches that are dicts, the fields to keep.
        places: one place, or a list of one: `paddle.CUDAPlace(0)`, "gpu:0", "cpu" ...; by default,
            tensors stay on their place, and arrays go to Paddle's default place.
        return_list: True: batches have the structure of the source's batches, but a tuple becomes
            a list. False: a batch is a list of one dict from name to tensor, for
            `Executor.run(feed=...)`.

    Raises:
        UsageError: several places (start one rank with a reader for each), a place that this Paddle
            does not have, a text as `feed_list`, or `reader` is not a DistilReader. While
            iterating: `feed_list` does not fit the batch.
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
        """Begin a new epoch, like a call of Paddle's loader."""
        return iter(self)

    def _converted(self, batch: Any) -> Any:
        import paddle

        static = not paddle.in_dynamic_mode()
        batch = map_leaves(batch, lambda leaf: self._converted_leaf(leaf, static))
        if not self.return_list:
            return [by_name(batch, self._names)]
        return [*batch] if isinstance(batch, tuple) else batch

    def _converted_leaf(self, leaf: Any, static: bool) -> Any:
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
        specific_place = paddle.base.framework._get_paddle_place(places)
    except (ValueError, TypeError) as error:
        raise UsageError(f"no tensors can be put on {places!r}: {error}") from None
    place = paddle.base.core.Place()  # the general class, to which `tensor.place` compares equal
    place.set_place(specific_place)
    return place


def by_name(batch: Any, names: Sequence[str]) -> Mapping[Any, Any]:
    """Return the fields of a batch by name.

    Args:
        batch: a mapping, or a list of one mapping as static-graph loaders yield it: the fields with
            these names are kept. Or a sequence of fields, which get these names.
        names: names of the fields, in order; empty: all fields of a mapping.

    Raises:
        UsageError: a mapping lacks a name, or a sequence has another number of fields.
    """
    if is_fed_dict(batch):
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
