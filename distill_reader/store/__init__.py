"""A store of soft labels on disk, by sample.

`LabelStore` has the user's settings, `LabelDatabase` in `store.py` is an open store. See
docs/how-to/label-store.md for the use of a store, and ADR-0011 for its design.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...runtime.errors import UsageError
from ...runtime.extras import install_command
from ..setting_checks import integer

__all__ = ["LabelStore"]

#: Minimum of `max_bytes`: room for the tables and a few rows.
MIN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, init=False)
class LabelStore:
    """Settings of a store that keeps soft labels on disk: teachers need not label a sample again.

    Creating a `LabelStore` opens no file. It can be pickled.

    Args:
        path: path of the file. It is created if missing, together with two other files, which have
            the suffixes `-wal` and `-shm`. It must be on a disk of this host, not on NFS.
        max_bytes: maximum size of the file. If it is full, the oldest labels are evicted; recently
            used labels usually stay. The other files take up to 32 MiB more, plus one row if rows
            are larger than 4 MiB.
        sample_ids: fields of a batch that together identify a sample and its augmentation, as in
            `("index", "crop_seed")`. By default, the bytes of the teachers' inputs identify it.

    Attributes:
        path: absolute path of the file.
        max_bytes: the argument.
        sample_ids: the argument, as a tuple.

    Raises:
        UsageError: a wrong path, size or field, or the extra `store` is not installed.
    """

    path: str
    max_bytes: int
    sample_ids: tuple[int | str, ...]

    def __init__(
        self, path: str | Path, max_bytes: int, *, sample_ids: Sequence[int | str] = ()
    ) -> None:
        if not str(path) or os.path.isdir(path):
            raise UsageError(f"a label store is a file, not {str(path)!r}: name a file")
        max_bytes = integer("max_bytes", max_bytes)
        if max_bytes < MIN_BYTES:
            raise UsageError(
                f"max_bytes of a label store is at least {MIN_BYTES} bytes, not {max_bytes}"
            )
        try:
            listed = None if isinstance(sample_ids, (str, bytes)) else tuple(sample_ids)
        except TypeError:  # also of a numpy array without dimensions
            listed = None
        if listed is None:
            raise UsageError(f"sample_ids is a list of fields, as in sample_ids=[{sample_ids!r}]")
        fields = tuple(
            field if isinstance(field, str) else integer("an index in sample_ids", field)
            for field in listed
        )
        if find_spec("xxhash") is None:
            raise UsageError(f"a label store needs xxhash: {install_command('store')}")
        object.__setattr__(self, "path", os.path.abspath(path))
        object.__setattr__(self, "max_bytes", max_bytes)
        object.__setattr__(self, "sample_ids", fields)
