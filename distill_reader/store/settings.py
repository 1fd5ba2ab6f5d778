"""Settings of a label store, and of the services in it.

A store remembers the model that was last at work for each service: a run without teachers reads
labels of that model. So each row bears a checksum, as labels do: a model that is not the one that
was put in would give labels of another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from ...errors import UsageError
from ...extras import install_command
from .database import Database
from .rows import Content, Model


def put_model(database: Database, service: str, model: Model) -> None:
    """This model is at work for `service`; within a transaction of the caller."""
    name, told = service.encode(), json.dumps([model.content, model.inputs]).encode()
    database.execute(
        "INSERT OR REPLACE INTO services VALUES (?, ?, ?)", (name, told, _sum_of(name, told))
    )


def model_of(database: Database, service: str) -> Model | None:
    """The one at work for `service`; None where nobody has said, or what was said is damaged."""
    return models_of(database, "WHERE service = ?", service.encode()).get(service)


def models_of(database: Database, which: str = "", *values: bytes) -> dict[str, Model]:
    """Those of all services by name, without what is damaged."""
    found: dict[str, Model] = {}
    rows = database.execute(f"SELECT service, told, sum FROM services {which}", values).fetchall()
    for name, told, checksum in rows:
        if isinstance(name, bytes) and isinstance(told, bytes) and checksum == _sum_of(name, told):
            content, inputs = json.loads(told)
            found[name.decode()] = Model(Content(*content), tuple(inputs))
    return found


def _sum_of(name: bytes, told: bytes) -> bytes:
    import xxhash

    return xxhash.xxh3_64(b"%d %s%s" % (len(name), name, told)).digest()


#: Smaller files cannot hold the tables and a few rows.
MIN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, init=False)
class LabelStore:
    """Soft labels that are kept on disk, so that no sample is labelled twice.

    These are settings alone: nothing is opened here, and they can be pickled.

    Args:
        path: of the file; it is made where there is none. Others are made beside it, of the same
            name with `-wal` and `-shm` behind it. It must be on a disk of this host, not on NFS.
        max_bytes: what the file may take of the disk; when it is full, the rows written first make
            room, but for those that were used lately. The files beside it take up to 32 MiB more.
        sample_ids: fields of a batch that together say which sample a row is and how it was
            augmented, as in `("index", "crop_seed")`. By default a sample is known by the bytes of
            what the teachers get.

    Attributes:
        path: absolute.
        max_bytes: as given.
        sample_ids: as given.

    Raises:
        UsageError: a size or a path that cannot work, or the extra `store` is not installed.
    """

    path: str
    max_bytes: int
    sample_ids: tuple[int | str, ...]

    def __init__(
        self, path: str | Path, max_bytes: int, *, sample_ids: Sequence[int | str] = ()
    ) -> None:
        if not str(path) or os.path.isdir(path):
            raise UsageError(f"a label store is a file, and {str(path)!r} is none: name one")
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < MIN_BYTES:
            raise UsageError(
                f"max_bytes of a label store is at least {MIN_BYTES} bytes, not {max_bytes!r}"
            )
        if isinstance(sample_ids, str):
            raise UsageError(f"sample_ids is a list of fields, as in sample_ids=[{sample_ids!r}]")
        if find_spec("xxhash") is None:
            raise UsageError(f"a label store needs xxhash: {install_command('store')}")
        object.__setattr__(self, "path", os.path.abspath(path))
        object.__setattr__(self, "max_bytes", max_bytes)
        object.__setattr__(self, "sample_ids", tuple(sample_ids))

    def __reduce__(self) -> tuple[Any, ...]:
        return self.from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "max_bytes": self.max_bytes, "sample_ids": list(self.sample_ids)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(value["path"], value["max_bytes"], sample_ids=value["sample_ids"])
