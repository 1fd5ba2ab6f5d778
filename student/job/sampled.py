"""The batches of a feed, read once and in its own order, by who asks no teachers."""

from __future__ import annotations

from collections.abc import Generator

from ...errors import UsageError
from .batches import Parts, split
from .spec import JobSpec, Split, is_dataset


def batches_of(
    spec: JobSpec, part: Split, batch_size: int | None = None
) -> Generator[Parts, None, None]:
    """Each batch of `feed(part)`, taken apart.

    Args:
        spec: the job file.
        part: "train" or "eval".
        batch_size: rows of a batch, where the feed is a data set, which has samples alone.

    Raises:
        JobError: the feed fails, here or while it is read.
        UsageError: a data set without a batch size.
    """
    source = spec.feed(part)
    if is_dataset(source):
        if batch_size is None:
            raise UsageError(
                f"feed({part!r}) of {spec.path} gives a data set, which has no batches: say"
                " how many rows one has (--total-batch to train, else --batch-size), or return a"
                " DataLoader"
            )
        from ...distill_reader import Batched

        source = Batched(source, batch_size)
    with spec.blames("feed"):
        batches = iter(source)
    while True:
        with spec.blames("feed"):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield split(batch)


def first_batch(spec: JobSpec, part: Split, batch_size: int | None = None) -> Parts:
    """The first batch of `feed(part)`; raises as `batches_of`, and UsageError where it is empty."""
    batches = batches_of(spec, part, batch_size)
    try:
        found = next(batches, None)
    finally:
        batches.close()
    if found is None:
        raise UsageError(f"feed({part!r}) of {spec.path} has no batches")
    return found
