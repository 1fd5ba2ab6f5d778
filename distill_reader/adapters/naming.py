"""Which field of a batch has which name, where a program is fed by names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UsageError


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
