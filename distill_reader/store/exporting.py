"""Inspect, verify and export a label store."""

from __future__ import annotations

import json
import os
import sqlite3
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...proto.arena import Array
from ...proto.forms import LabelForm, decode
from ...runtime.errors import LabelStoreUnavailable, RequestRefused, StoreDamaged, UsageError
from .database import Database
from .rows import LabelRow, Layout, ModelId, StoredOutput, covers, derived, unpack
from .table import ROWS_IN_A_QUERY, LabelTable, number_or_zero


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Statistics of the rows of one layout.

    Attributes:
        layout: layout of the rows; None: unreadable.
        rows: number of rows.
        nbytes: size of the rows.
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
        groups: rows by layout, the largest group first.
        services: content_id of the latest model of each service.
        counters: totals of all its readers.
    """

    disk_bytes: int
    used_bytes: int
    groups: tuple[RowGroup, ...]
    services: dict[str, str]
    counters: dict[str, int]

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)


def inventory_of(database: Database) -> Inventory:
    """Count rows by layout; reads every key and no label.

    Raises:
        StoreDamaged: the file is broken.
        LabelStoreUnavailable: the file cannot be read now.
    """
    table = LabelTable(database)
    with database.reading():
        grouped = database.execute(
            "SELECT layout, count(*), total(nbytes), min(made), max(made), min(used), max(used)"
            " FROM keys GROUP BY layout ORDER BY 2 DESC"
        ).fetchall()
        groups = tuple(
            RowGroup(table.layout(number), rows, int(nbytes), (made, last_made), (used, last_used))
            for number, rows, nbytes, *times in grouped
            for made, last_made, used, last_used in [map(number_or_zero, times)]
        )
        models = sorted(table.models().items())
        services = {name: model.model_id.content_id for name, model in models}
        counted = database.execute("SELECT name, value FROM counters").fetchall()
        counters = {name: number_or_zero(value) for name, value in counted}
        used_bytes = database.used_bytes
    return Inventory(database.disk_bytes, used_bytes, groups, services, counters)


def row_chunks(database: Database) -> Iterator[tuple[list[tuple[bytes, LabelRow]], int]]:
    """Yield all rows in chunks, in the order of keys, with the number of damaged rows in each.

    Rows that are written or deleted meanwhile may be included or not.

    Raises:
        StoreDamaged: the file is broken.
        LabelStoreUnavailable: the file cannot be read now.
    """
    table = LabelTable(database)
    last, more = b"", True
    counted = set[bytes]()  # damaged keys of the previous chunk; a query may return them again
    while more:
        with database.reading():
            rows = database.execute(
                "SELECT key FROM keys WHERE key > ? ORDER BY key LIMIT ?", (last, ROWS_IN_A_QUERY)
            )
            keys = [key for (key,) in rows]
            found = table.select(keys)
            intact = [key for key in keys if key in found.rows]
            damaged = [key for key in keys if key not in found.rows]
            if more := len(keys) == ROWS_IN_A_QUERY:
                # Damaged keys may be out of order: continue after an intact one.
                latest = (intact or damaged)[-1]
                if latest <= last:
                    raise sqlite3.DatabaseError("its keys are out of order")
                last = latest
        yield [(key, found.rows[key]) for key in intact], sum(key not in counted for key in damaged)
        counted = set(damaged)


def verify(database: Database, on_progress: Callable[[int], None]) -> int:
    """Check every row against its checksum, and then the pages of the file.

    `on_progress` receives the number of rows read so far.

    Returns:
        The number of rows.

    Raises:
        StoreDamaged: rows or the file are damaged.
        LabelStoreUnavailable: the file cannot be read now.
    """
    rows = damaged = 0
    for intact, damaged_in_chunk in row_chunks(database):
        rows += len(intact) + damaged_in_chunk
        damaged += damaged_in_chunk
        on_progress(rows)
    with database.reading():
        (check,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if damaged or check != "ok":
        what = f"{damaged} of {rows} rows" if damaged else f"pages of the file ({check})"
        raise StoreDamaged(
            f"{what} are damaged in the label store {database.path}. A damaged row counts as"
            " missing, and its sample is labelled again; delete the file if there are many"
        )
    return rows


def find_model_id(inventory: Inventory, name: str) -> ModelId:
    """Find a model in the store.

    Args:
        inventory: content of the store.
        name: the name that `edl store inspect` shows, or the content_id if only one model has it;
            empty: the only model.

    Raises:
        UsageError: no model has this name, several have it, or the store is empty.
    """
    layouts = (group.layout for group in inventory.groups)
    models = {str(layout.model_id): layout.model_id for layout in layouts if layout is not None}
    if name in models:
        return models[name]
    chosen = [model for model in models.values() if name in ("", model.content_id)]
    if len(chosen) == 1:
        return chosen[0]
    if not models:
        raise UsageError("the store holds no labels that could be exported")
    raise UsageError(f"name one content of the store by --content; there are: {', '.join(models)}")


@dataclass(slots=True)
class LabelExport:
    """Writes the labels of one model to numpy files, without damaged or inconvertible rows.

    Attributes:
        folder: folder for the files; created if missing.
        model_id: which model made the labels.
        form: form of the labels; None: as stored.
        dense: decode labels that have a form to dense float32; others stay as the model made them.
        rows_per_file: maximum rows of a file.
    """

    folder: Path
    model_id: ModelId
    form: LabelForm | None
    dense: bool
    rows_per_file: int
    _rows: int = field(default=0, init=False)
    _skipped: int = field(default=0, init=False)
    _files: list[dict[str, object]] = field(default_factory=list, init=False)
    _waiting: dict[Layout, list[tuple[bytes, LabelRow]]] = field(default_factory=dict, init=False)

    def write(self, database: Database, on_progress: Callable[[int], None]) -> Mapping[str, object]:
        """Write the files; `on_progress` receives the rows read so far.

        Returns:
            The content of labels.json.

        Raises:
            UsageError: the folder contains an export.
            StoreDamaged: the file is broken; damaged rows are skipped.
            LabelStoreUnavailable: the folder cannot be written, or the store cannot be read now.
        """
        index = self.folder / "labels.json"
        try:
            if index.exists():
                raise UsageError(f"{self.folder} holds an export already: name another folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            read = 0
            for intact, damaged in row_chunks(database):
                self._skipped += damaged
                for key, row in intact:
                    if row.layout.model_id == self.model_id:
                        self._add(key, row)
                read += len(intact) + damaged
                on_progress(read)
            for layout in list(self._waiting):
                self._write_file(layout)
            index_json: dict[str, object] = {
                **self.model_id._asdict(),
                "rows": self._rows,
                "skipped": self._skipped,
                "files": self._files,
            }
            index.with_suffix(".part").write_text(json.dumps(index_json, indent=2) + "\n")
            os.replace(index.with_suffix(".part"), index)
        except OSError as error:
            raise LabelStoreUnavailable(f"{self.folder} cannot be written: {error}") from None
        return index_json

    def _add(self, key: bytes, row: LabelRow) -> None:
        pairs = self._waiting.setdefault(row.layout, [])
        pairs.append((key, row))
        if len(pairs) == self.rows_per_file:
            self._write_file(row.layout)

    def _write_file(self, layout: Layout) -> None:
        pairs, arrays = self._converted(self._waiting.pop(layout))
        if not pairs:
            return
        keys = np.frombuffer(b"".join(key for key, _ in pairs), np.uint8).reshape(len(pairs), -1)
        name = f"labels-{len(self._files):05}.npz"
        _write_npz(self.folder / name, {"sample_key": keys, **arrays})
        forms = {
            output: {} if form is None else form.parameters(entry.class_count)
            for output, (entry, form) in self._chosen(layout).items()
        }
        self._files.append({"file": name, "rows": len(pairs), "forms": forms})
        self._rows += len(pairs)

    def _converted(
        self, pairs: list[tuple[bytes, LabelRow]]
    ) -> tuple[list[tuple[bytes, LabelRow]], Mapping[str, Array]]:
        """Return the rows that can have the form, and their arrays; count others as skipped.

        Args:
            pairs: keys and rows of one layout.
        """
        try:
            return pairs, self._arrays([row for _, row in pairs])
        except RequestRefused:  # this layout cannot have the form, or values of some rows cannot
            if len(pairs) == 1:
                self._skipped += 1
                return [], {}
        convertible = [pair for pair in pairs if self._converted([pair])[0]]
        return convertible, self._arrays([row for _, row in convertible]) if convertible else {}

    def _arrays(self, rows: list[LabelRow]) -> dict[str, Array]:
        """Return the arrays of one file by name.

        Raises:
            RequestRefused: an output cannot have the requested form.
        """
        layout, arrays = rows[0].layout, iter(unpack(rows))
        made = {f"sample_id.{index}": next(arrays) for index in range(len(layout.ids))}
        stored = {entry: [next(arrays) for _ in entry.pieces] for entry in layout.entries}
        for output, (entry, form) in self._chosen(layout).items():
            parts = derived(entry, stored[entry], form)
            if self.dense and form is not None:
                parameters = form.parameters(entry.class_count)
                parts = {output: decode(output, parts, form, parameters)}
            made |= parts
        return made

    def _chosen(self, layout: Layout) -> dict[str, tuple[StoredOutput, LabelForm | None]]:
        """Return the stored output from which each output is made, and the form that it gets.

        Raises:
            RequestRefused: an output cannot have the requested form.
        """
        chosen: dict[str, tuple[StoredOutput, LabelForm | None]] = {}
        for entry in layout.entries:
            form = entry.form if self.form is None else self.form
            if covers(entry, form):
                chosen.setdefault(entry.output, (entry, form))
        if missing := [output for output in layout.outputs if output not in chosen]:
            raise RequestRefused(
                f"outputs {missing} are not stored in a form that covers {self.form}"
            )
        return chosen


def _write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays like numpy.savez, which forbids some names, such as "file"."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            plain = array.astype(np.float32) if array.dtype.kind == "V" else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, plain, allow_pickle=False)
