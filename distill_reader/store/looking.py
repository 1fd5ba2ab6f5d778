"""What is in a store, and is it whole? For operators: nothing here changes a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...errors import StoreDamaged
from .database import Database
from .rows import Layout, Row
from .services import models_of
from .table import Table

_IN_ONE_LOT = 256


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of one layout.

    Attributes:
        layout: theirs; None where it cannot be read.
        rows: how many.
        nbytes: what they take.
        made_s: when the first and the last of them was written, in seconds since 1970.
        used_s: when they were last used.
    """

    layout: Layout | None
    rows: int
    nbytes: int
    made_s: tuple[int, int]
    used_s: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a store holds.

    Attributes:
        disk_bytes: of its files.
        used_bytes: of those, pages that hold something.
        kinds: its rows by layout, the most first.
        services: the services whose model is remembered, each with its content_id.
        counters: what all its readers together have done.
    """

    disk_bytes: int
    used_bytes: int
    kinds: tuple[Kind, ...]
    services: tuple[tuple[str, str], ...]
    counters: dict[str, int]

    @property
    def rows(self) -> int:
        return sum(kind.rows for kind in self.kinds)


def take_stock(database: Database) -> Inventory:
    """Count; every key is read, and no label.

    Raises:
        StoreDamaged: the file is broken.
    """
    table = Table(database)
    with database.reading():
        grouped = database.execute(
            "SELECT layout, count(*), sum(nbytes), min(made), max(made), min(used), max(used)"
            " FROM keys GROUP BY layout ORDER BY 2 DESC"
        ).fetchall()
        kinds = tuple(
            Kind(table.layout(number), rows, nbytes, (made, last_made), (used, last_used))
            for number, rows, nbytes, made, last_made, used, last_used in grouped
        )
        models = sorted(models_of(database).items())
        services = tuple((name, model.content.content_id) for name, model in models)
        counters = dict(database.execute("SELECT name, value FROM counters").fetchall())
    return Inventory(database.disk_bytes, database.used_bytes, kinds, services, counters)


def each_row(database: Database) -> Iterator[tuple[list[tuple[bytes, Row]], int]]:
    """All rows in lots, in the order of their keys, and how many of each lot are damaged.

    Others may write meanwhile: a row that comes or goes may be among them or not.

    Raises:
        StoreDamaged: the file is broken.
    """
    table = Table(database)
    last = b""
    while True:
        with database.reading():
            told = database.execute(
                "SELECT key FROM keys WHERE key > ? ORDER BY key LIMIT ?", (last, _IN_ONE_LOT)
            )
            keys = [key for (key,) in told]
            found = table.select(keys)
        if not keys:
            return
        last = keys[-1]
        yield (
            [(key, found.rows[key]) for key in keys if key in found.rows],
            (len(keys) - len(found.rows)),
        )


def verify(database: Database, on_progress: Callable[[int], None]) -> int:
    """Read every row and hold it against its checksum; tells how many were read so far.

    Returns:
        How many rows there are.

    Raises:
        StoreDamaged: rows are damaged, or the file is.
    """
    rows = damaged = 0
    for some, bad in each_row(database):
        rows += len(some) + bad
        damaged += bad
        on_progress(rows)
    with database.reading():
        (words,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if damaged or words != "ok":
        what = f"{damaged} of {rows} rows are damaged" if damaged else f"its pages are: {words}"
        raise StoreDamaged(
            f"the label store {database.path} is not whole: {what}. A damaged row counts as"
            " missing and is made anew; delete the file where there are many"
        )
    return rows
