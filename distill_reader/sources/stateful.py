"""Step two: an iterable that knows by itself where it stands, such as a `StatefulDataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...proto.arena import Array
from .json_state import decoded, encoded
from .source import Mark, close_iterator, tell_epoch


class StatefulSource:
    """An iterable with `state_dict` and `load_state_dict`.

    Its state is asked for behind each batch, before the next one is: so it is that of the batch,
    however many are read ahead. Given back to `load_state_dict`, the next `iter` has to go on
    there. A mark is that state.
    """

    kind = "stateful"
    deals = False

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable

    def __len__(self) -> int:
        return len(self._iterable)

    def identity(self) -> dict[str, Any]:
        return {"type": type(self._iterable).__qualname__}

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> _StatefulReading:
        tell_epoch(epoch, self._iterable)
        if mark is not None:
            self._iterable.load_state_dict(decoded(mark["state"]))
        return _StatefulReading(self._iterable)

    def close(self) -> None:
        pass


class _StatefulReading:
    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable
        self._batches: Iterator[Any] = iter(iterable)
        self.start = self._state()

    def __next__(self) -> Any:
        return next(self._batches)

    def mark(self, arrays: Sequence[Array]) -> Mark:
        return self._state()

    def end(self) -> Mark:
        return self._state()

    def close(self) -> None:
        close_iterator(self._batches)

    def _state(self) -> Mark:
        return {"state": encoded(self._iterable.state_dict())}
