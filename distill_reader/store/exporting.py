"""Inspect, verify and export a label store."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...proto.arena import Array
from ...proto.forms import LabelForm, decode
from ...runtime.errors import LabelStoreUnavailable, RequestRefused, StoreDamaged, UsageError
from .database import Database
from .rows import Content, LabelRow, Layout, covers, derived, unpack
from .table import ROWS_IN_A_QUERY, LabelTable


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Statistics of the rows of one layout.

    Attributes:
        layout: layout of the rows; None: unreadable.
        rows: number of rows.
        nbytes: their size.
        made_s: earliest and latest time of writing, in seconds since 1970.
        used_s: earliest and latest time of the last use.
    """

    layout: Layout | None
    rows: int
    nbytes: int
    made_s: tuple[int, int]
    used_s: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The content of a store.

    Attributes:
        disk_bytes: size of its files.
        used_bytes: size of the pages in use.
        layouts: rows by layout, the largest group first.
        services: (service, content_id of its latest model) pairs.
        counters: totals of all its readers.
    """

    disk_bytes: int
    used_bytes: int
    layouts: tuple[RowGroup, ...]
    services: tuple[tuple[str, str], ...]
    counters: dict[str, int]

    @property
    def rows(self) -> int:
        return sum(summary.rows for summary in self.layouts)


def inventory_of(database: Database) -> Inventory:
    """Count rows by layout; reads every key and no label.

    Raises:
        StoreDamaged: the file is broken.
    """
    table = LabelTable(database)
    with database.reading():
        grouped = database.execute(
            "SELECT layout, count(*), sum(nbytes), min(made), max(made), min(used), max(used)"
            " FROM keys GROUP BY layout ORDER BY 2 DESC"
        ).fetchall()
        layouts = tuple(
            RowGroup(table.layout(number), rows, nbytes, (made, last_made), (used, last_used))
            for number, rows, nbytes, made, last_made, used, last_used in grouped
        )
        models = sorted(table.models().items())
        services = tuple((name, model.content.content_id) for name, model in models)
        counters = dict(database.execute("SELECT name, value FROM counters").fetchall())
    return Inventory(database.disk_bytes, database.used_bytes, layouts, services, counters)


def each_row(database: Database) -> Iterator[tuple[list[tuple[bytes, LabelRow]], int]]:
    """Yield all rows in chunks, in the order of keys, with the number of damaged rows in each.

    Rows that are written or deleted meanwhile may be included or not.

    Raises:
        StoreDamaged: the file is broken.
    """
    table = LabelTable(database)
    last = b""
    while True:
        with database.reading():
            rows = database.execute(
                "SELECT key FROM keys WHERE key > ? ORDER BY key LIMIT ?", (last, ROWS_IN_A_QUERY)
            )
            keys = [key for (key,) in rows]
            found = table.select(keys)
        if not keys:
            return
        last = keys[-1]
        yield (
            [(key, found.rows[key]) for key in keys if key in found.rows],
            (len(keys) - len(found.rows)),
        )


def verify(database: Database, on_progress: Callable[[int], None]) -> int:
    """Check every row against its checksum; `on_progress` receives the rows read so far.

    Returns:
        The number of rows.

    Raises:
        StoreDamaged: rows or the file are damaged.
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
            " missing and is made anew; delete the file if there are many"
        )
    return rows


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Which labels to export, and how.

    Attributes:
        content: content of the labels.
        form: form of the labels; None: as stored.
        dense: export top-k as dense float32.
        rows_per_file: maximum rows of a file.
    """

    content: Content
    form: LabelForm | None = None
    dense: bool = False
    rows_per_file: int = 10_000


@dataclass(slots=True)
class _Shards:
    """Collects rows by layout, and writes a file when there are enough."""

    folder: Path
    options: ExportRequest
    rows: int = 0
    skipped: int = 0
    files: list[dict[str, object]] = field(default_factory=list)
    waiting: dict[Layout, list[tuple[bytes, LabelRow]]] = field(default_factory=dict)

    def add(self, key: bytes, row: LabelRow) -> None:
        some = self.waiting.setdefault(row.layout, [])
        some.append((key, row))
        if len(some) == self.options.rows_per_file:
            self.write(row.layout)

    def write(self, layout: Layout) -> None:
        some = self.waiting.pop(layout)
        try:
            arrays = _arrays([row for _, row in some], self.options)
        except RequestRefused:  # no row of this layout can have that form
            self.skipped += len(some)
            return
        keys = np.frombuffer(b"".join(key for key, _ in some), np.uint8).reshape(len(some), -1)
        name = f"labels-{len(self.files):05}.npz"
        _write_npz(self.folder / name, {"sample_key": keys, **arrays})
        self.files.append({"file": name, "rows": len(some)})
        self.rows += len(some)


def content_of(database: Database, content_id: str) -> Content:
    """Return the content with this id ("CONTENT" or "CONTENT/NUMERICS"); empty: the only one.

    Raises:
        UsageError: there is none, or more than one.
    """
    layouts = [
        summary.layout for summary in inventory_of(database).layouts if summary.layout is not None
    ]
    contents = list(dict.fromkeys(layout.content for layout in layouts))
    chosen = [one for one in contents if content_id in ("", one.content_id, "/".join(one))]
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join("/".join(one).rstrip("/") for one in contents) or "none"
    raise UsageError(f"name one content of the store by --content; there are: {known}")


def export(
    database: Database, folder: Path, options: ExportRequest, on_progress: Callable[[int], None]
) -> dict[str, object]:
    """Write all rows of one content into `folder`, which is created if missing.

    Returns:
        The content of labels.json.

    Raises:
        UsageError: the folder contains an export.
        StoreDamaged: the file is broken; damaged rows are skipped.
        LabelStoreUnavailable: the folder cannot be written.
    """
    index = folder / "labels.json"
    if index.exists():
        raise UsageError(f"{folder} holds an export already: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shards = _Shards(folder, options)
        looked = 0
        for some, damaged in each_row(database):
            shards.skipped += damaged
            for key, row in some:
                if row.layout.content == options.content:
                    shards.add(key, row)
            looked += len(some) + damaged
            on_progress(looked)
        for layout in list(shards.waiting):
            shards.write(layout)
        index_json: dict[str, object] = {
            **options.content._asdict(),
            "rows": shards.rows,
            "skipped": shards.skipped,
            "files": shards.files,
        }
        index.with_suffix(".part").write_text(json.dumps(index_json, indent=2) + "\n")
        os.replace(index.with_suffix(".part"), index)
    except OSError as error:
        raise LabelStoreUnavailable(f"{folder} cannot be written: {error}") from None
    return index_json


def _arrays(rows: list[LabelRow], options: ExportRequest) -> dict[str, Array]:
    """Return the arrays of one file by name.

    Raises:
        RequestRefused: an output cannot have the requested form.
    """
    layout, arrays = rows[0].layout, unpack(rows)
    made = {f"sample_id.{place}": arrays[place] for place in range(len(layout.ids))}
    at = len(layout.ids)
    left = dict.fromkeys(layout.outputs)
    for entry in layout.entries:
        own, at = arrays[at : at + len(entry.pieces)], at + len(entry.pieces)
        form = options.form if options.form is not None else entry.form
        if entry.output not in left or not covers(entry, form):
            continue
        del left[entry.output]
        parts = derived(entry, own, form)
        if options.dense and form is not None:
            classes = entry.classes or entry.pieces[0].shape[-1]
            parts = {entry.output: decode(entry.output, parts, form, form.parameters(classes))}
        made |= parts
    if left:
        raise RequestRefused(
            f"outputs {list(left)} are not kept in a form that gives {options.form}"
        )
    return made


def _write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays like numpy.savez, which does not allow every name of an output."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            plain = array.astype(np.float32) if array.dtype.kind == "V" else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, plain, allow_pickle=False)
