"""The rows and models of a store in its database."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeVar

from ...runtime.errors import EdlError
from ...scheduler.label_cache import StoredRow
from .database import PAGE_BYTES, Database
from .rows import LabelRow, Layout, ModelId, ServiceModel

T = TypeVar("T")
#: Bytes of a row besides its data: its key and its id, each in two tables.
ROW_BYTES = 64
#: Maximum bytes before the data of a row: its key, its id, and their lengths.
_HEAD_BYTES = 40
#: Maximum bytes of an entry in the table of keys. Its pages are half full after many splits.
_KEY_BYTES = 72
_FULL_SHARE = 0.5
#: A greater id means that the file is damaged.
_LAST_ID = 1 << 60
#: Maximum rows of one query.
ROWS_IN_A_QUERY = 256


@dataclass(slots=True)
class FoundRows:
    """The rows found for some keys.

    Attributes:
        rows: intact rows.
        used: last recorded use of each, in seconds since 1970.
        damaged: keys of damaged rows.
    """

    rows: dict[bytes, LabelRow] = field(default_factory=dict)
    used: dict[bytes, int] = field(default_factory=dict)
    damaged: list[bytes] = field(default_factory=list)


class RowLocation(NamedTuple):
    """The id of a row in the table of labels, and its key; None: no key refers to it."""

    id: int
    key: bytes | None


class LabelTable:
    """Reads and writes an open database, in the caller's transaction; raises SQLite's errors."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._texts: dict[tuple[str, int], bytes] = {}

    def select(self, keys: Sequence[bytes]) -> FoundRows:
        """Find the rows of these keys, and verify their checksums."""
        found = FoundRows()
        for chunk in chunks_of(keys, ROWS_IN_A_QUERY):
            placeholders = ",".join("?" * len(chunk))
            raw = self._database.execute(
                "SELECT keys.key, layout, used, maker, sum, data FROM keys JOIN labels USING (id)"
                f" WHERE keys.key IN ({placeholders})",
                chunk,
            ).fetchall()
            requested = set(chunk)
            for key, layout_number, used, maker_number, checksum, data in raw:
                if key not in requested:
                    continue  # a broken index may return other rows
                texts = self._text("layout", layout_number), self._text("maker", maker_number)
                if checksum == sum_of(*texts, key, data):
                    layout = Layout.from_text(texts[0].decode())
                    found.rows[key] = LabelRow(layout, data, makers_of(texts[1]))
                    found.used[key] = number_or_zero(used)
                else:
                    found.damaged.append(key)
        return found

    def insert(self, rows: Mapping[bytes, LabelRow], now_s: int) -> None:
        """Append rows; none of them may be in the table."""
        begin = self._next_id()
        ids = range(begin, begin + len(rows))
        layouts = {row.layout: row.layout.text.encode() for row in rows.values()}
        makers = {row.makers: "\n".join(sorted(row.makers)).encode() for row in rows.values()}
        layout_numbers = {text: self._number_of("layout", text) for text in layouts.values()}
        maker_numbers = {text: self._number_of("maker", text) for text in makers.values()}
        self._database.execute_many(
            "INSERT INTO labels VALUES (?, ?, ?)",
            [(row_id, key, row.data) for row_id, (key, row) in zip(ids, rows.items(), strict=True)],
        )
        self._database.execute_many(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            sorted(
                (
                    key,
                    row_id,
                    layout_numbers[layouts[row.layout]],
                    now_s,
                    now_s,
                    nbytes_of(row),
                    maker_numbers[makers[row.makers]],
                    sum_of(layouts[row.layout], makers[row.makers], key, row.data),
                )
                for row_id, (key, row) in zip(ids, rows.items(), strict=True)
            ),
        )

    def delete(self, keys: Sequence[bytes]) -> None:
        for chunk in chunks_of(keys, ROWS_IN_A_QUERY):
            condition = f"WHERE key IN ({','.join('?' * len(chunk))})"
            ids = self._database.execute(f"SELECT id FROM keys {condition}", chunk).fetchall()
            self._database.execute(f"DELETE FROM keys {condition}", chunk)
            self._database.execute_many("DELETE FROM labels WHERE id = ?", ids)

    def sample_uses(self, count: int) -> list[tuple[bytes, int]]:
        """Sample `count` keys and their times of use.

        Keys are hashes, so a range of keys is a random sample.
        """
        begin = os.urandom(16)
        query = "SELECT key, used FROM keys WHERE key {} ? ORDER BY key LIMIT ?"
        sample = self._database.execute(query.format(">="), (begin, count)).fetchall()
        if len(sample) < count:
            lacking = count - len(sample)
            sample += self._database.execute(query.format("<"), (begin, lacking)).fetchall()
        return [(key, number_or_zero(used)) for key, used in sample]

    def head(self, count: int, nbytes: int) -> list[tuple[RowLocation, StoredRow]]:
        """Return the oldest rows: at most `count`, until their data reach `nbytes`."""
        if nbytes <= 0:
            return []
        rows = self._database.execute(
            "SELECT first.id, keys.key, used, length FROM"
            " (SELECT id, key, length(data) AS length FROM labels ORDER BY id LIMIT ?) AS first"
            " LEFT JOIN keys ON keys.key = first.key AND keys.id = first.id ORDER BY first.id",
            (count,),
        )
        oldest = []
        for row_id, key, used, length in rows:
            oldest.append(
                (
                    RowLocation(_number(row_id), key),
                    StoredRow(number_or_zero(used), number_or_zero(length)),
                )
            )
            nbytes -= number_or_zero(length)
            if nbytes <= 0:
                break
        return oldest

    def delete_or_move_oldest(
        self, gone: Sequence[RowLocation], moved: Sequence[RowLocation]
    ) -> None:
        """Delete the oldest rows `gone`, and move the rows `moved` to the end, to free pages."""
        self._database.execute_many(
            "DELETE FROM labels WHERE id = ?", [(row_id,) for row_id, _ in gone]
        )
        self._database.execute_many(
            "DELETE FROM keys WHERE key = ?", sorted((key,) for _, key in gone if key is not None)
        )
        begin = self._next_id()
        new_ids = [(begin + at, old, key) for at, (old, key) in enumerate(moved)]
        self._database.execute_many(
            "UPDATE labels SET id = ? WHERE id = ?", [(new, old) for new, old, _ in new_ids]
        )
        self._database.execute_many(
            "UPDATE keys SET id = ? WHERE key = ?", [(new, key) for new, _, key in new_ids]
        )

    def record_uses(self, used: Mapping[bytes, int]) -> None:
        """Record the times of use of rows, in seconds since 1970."""
        self._database.execute_many(
            "UPDATE keys SET used = max(used, ?) WHERE key = ?",
            [(at, key) for key, at in used.items()],
        )

    def count(self, increments: Mapping[str, int]) -> None:
        """Add to the counters of the store, which are totals of all its readers."""
        self._database.execute_many(
            "INSERT INTO counters VALUES (?1, ?2)"
            " ON CONFLICT (name) DO UPDATE SET value = value + ?2",
            [(name, value) for name, value in increments.items() if value],
        )

    def layout(self, number: int) -> Layout | None:
        """Return the layout of this number; None: unreadable."""
        try:
            return Layout.from_text(self._text("layout", number).decode())
        except (ArithmeticError, LookupError, TypeError, ValueError, EdlError):  # any damaged text
            return None

    def made_by(self, teacher: str, after: bytes, count: int) -> tuple[list[bytes], bytes | None]:
        """Find rows that a teacher has labelled among the next `count` keys.

        Args:
            teacher: name of the teacher.
            after: look at keys greater than this.
            count: number of keys to look at.

        Returns:
            Keys of its rows, and the last key that was looked at; None: there are no more.
        """
        rows = self._database.execute(
            "SELECT key, maker FROM keys WHERE key > ? ORDER BY key LIMIT ?", (after, count)
        ).fetchall()
        made = [key for key, number in rows if teacher in makers_of(self._text("maker", number))]
        if len(rows) < count:
            return made, None
        last = rows[-1][0]
        if not isinstance(last, bytes) or last <= after:
            raise sqlite3.DatabaseError("its keys are out of order")
        return made, last

    def put_model(self, service: str, model: ServiceModel) -> None:
        """Record the latest model of a service, with a checksum.

        A run without teachers reads the labels of that model, so a damaged entry must be detected.
        """
        name, model_json = service.encode(), json.dumps([model.model_id, model.inputs]).encode()
        self._database.execute(
            "INSERT OR REPLACE INTO services VALUES (?, ?, ?)",
            (name, model_json, _model_sum(name, model_json)),
        )

    def models(self) -> dict[str, ServiceModel]:
        """Return the latest model of each service by name, without damaged entries."""
        found: dict[str, ServiceModel] = {}
        rows = self._database.execute("SELECT service, told, sum FROM services").fetchall()
        for name, model_json, checksum in rows:
            have_types = isinstance(name, bytes) and isinstance(model_json, bytes)
            if have_types and checksum == _model_sum(name, model_json):
                model_id, inputs = json.loads(model_json)
                found[name.decode()] = ServiceModel(ModelId(*model_id), tuple(inputs))
        return found

    def _next_id(self) -> int:
        last = _first_number(self._database.execute("SELECT ifnull(max(id), 0) FROM labels"))
        if last > _LAST_ID:
            raise sqlite3.DatabaseError(f"a row has the impossible id {last}")
        return last + 1

    def _text(self, kind: str, number: int) -> bytes:
        """Return the text of a "layout" or "maker" by its number; empty: there is none.

        A "maker" is a set of teachers; see the tables in `database`.
        """
        if (kind, number) not in self._texts:
            row = self._database.execute(
                f"SELECT text FROM {kind}s WHERE {kind} = ?", (number,)
            ).fetchone()
            if row is None or not isinstance(row[0], bytes):
                return b""
            self._texts[kind, number] = row[0]
        return self._texts[kind, number]

    def _number_of(self, kind: str, text: bytes) -> int:
        """Return the number of a "layout" or "maker" by its text, which is inserted if missing."""
        self._database.execute(f"INSERT OR IGNORE INTO {kind}s (text) VALUES (?)", (text,))
        return _first_number(
            self._database.execute(f"SELECT {kind} FROM {kind}s WHERE text = ?", (text,))
        )


def nbytes_of(row: LabelRow) -> int:
    """Estimate the size of a row in the file."""
    return len(row.data) + ROW_BYTES


def pages_for(rows: Iterable[LabelRow]) -> int:
    """Return an upper estimate of the pages for new rows and their keys."""
    pages = count = free_bytes = 0
    for row in rows:
        count += 1
        nbytes = len(row.data) + _HEAD_BYTES
        if nbytes > free_bytes:
            new_pages = -(-nbytes // (PAGE_BYTES - _HEAD_BYTES))
            pages += new_pages + (new_pages > 1)
            free_bytes = new_pages * PAGE_BYTES
        free_bytes -= nbytes
    return pages + int(count * _KEY_BYTES / _FULL_SHARE / PAGE_BYTES) + 1


def _model_sum(name: bytes, model_json: bytes) -> bytes:
    import xxhash

    return xxhash.xxh3_64(b"%d %s%s" % (len(name), name, model_json)).digest()


def sum_of(layout: bytes, makers: bytes, key: bytes, data: object) -> bytes:
    """Return the checksum of a row: 8 bytes; empty if `data` is not bytes, as in a damaged file."""
    import xxhash

    if not isinstance(data, bytes):
        return b""
    hasher = xxhash.xxh3_64(b"%d %d " % (len(layout), len(makers)) + layout + makers)
    hasher.update(key)
    hasher.update(data)
    return hasher.digest()


@lru_cache(maxsize=4096)
def makers_of(text: bytes) -> frozenset[str]:
    """Return the teachers in the text of a "maker"."""
    return frozenset(text.decode(errors="replace").split("\n")) - {""}


def chunks_of(values: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """Split `values` into parts of at most `count`."""
    for at in range(0, len(values), count):
        yield values[at : at + count]


def _first_number(cursor: sqlite3.Cursor) -> int:
    return _number(*(cursor.fetchone() or (None,)))


def _number(value: object) -> int:
    """Return a number that identifies rows; another type means that the file is broken."""
    if not isinstance(value, int):
        raise sqlite3.DatabaseError(f"{type(value).__name__} instead of a number")
    return value


def number_or_zero(value: object) -> int:
    """Return a time or size; 0 if a damaged file has another type there."""
    return value if isinstance(value, int) else 0
