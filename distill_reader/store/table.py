"""The rows and models of a store in its database: read, written, taken out, in a transaction."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeVar

from ...errors import EdlError
from ...scheduler.label_cache import StoredRow
from .database import PAGE_BYTES, Database
from .rows import Content, Layout, Model, Row

T = TypeVar("T")
#: Of one row, beside its data: its key, there and among the keys, and its place.
ROW_BYTES = 64
#: What stands before the data of a row, at most: its key, its place, and how long they are.
_HEAD_BYTES = 40
#: A key in its table, at most; its pages are half full where many have just become two.
_KEY_BYTES = 72
_FULL_SHARE = 0.5
#: No store has ever had so many rows.
_LAST_PLACE = 1 << 60
_IN_ONE_QUERY = 256


@dataclass(slots=True)
class FoundRows:
    """The rows found for some keys.

    Attributes:
        rows: intact rows.
        used: last recorded use of each, in seconds since 1970.
        damaged: keys of damaged rows.
    """

    rows: dict[bytes, Row] = field(default_factory=dict)
    used: dict[bytes, int] = field(default_factory=dict)
    damaged: list[bytes] = field(default_factory=list)


class RowLocation(NamedTuple):
    """The place of a row at the head of the store, and its key; None: no key refers to it."""

    place: int
    key: bytes | None


class Table:
    """Works on an open database, in the transaction of the caller; errors are SQLite's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._texts: dict[tuple[str, int], bytes] = {}

    def select(self, keys: Sequence[bytes]) -> FoundRows:
        """The rows of these keys, each held against its checksum."""
        found = FoundRows()
        for some in lots_of(keys, _IN_ONE_QUERY):
            marks = ",".join("?" * len(some))
            raw = self._database.execute(
                "SELECT keys.key, layout, used, maker, sum, data FROM keys JOIN labels USING (id)"
                f" WHERE keys.key IN ({marks})",
                some,
            ).fetchall()
            wanted = set(some)
            for key, number, used, maker, told, data in raw:
                if key not in wanted:
                    continue  # a broken index leads astray
                texts = self._text("layout", number), self._text("maker", maker)
                if told == sum_of(*texts, key, data):
                    layout = Layout.from_text(texts[0].decode())
                    found.rows[key] = Row(layout, data, makers_of(texts[1]))
                    found.used[key] = _whole(used)
                else:
                    found.damaged.append(key)
        return found

    def insert(self, rows: Mapping[bytes, Row], now_s: int) -> None:
        """Put rows in that are not there, behind the last."""
        begin = self._behind_the_last()
        ids = range(begin, begin + len(rows))
        layouts = {row.layout: row.layout.text.encode() for row in rows.values()}
        makers = {row.makers: "\n".join(sorted(row.makers)).encode() for row in rows.values()}
        layout_numbers = {text: self._number("layout", text) for text in layouts.values()}
        maker_numbers = {text: self._number("maker", text) for text in makers.values()}
        self._database.execute_many(
            "INSERT INTO labels VALUES (?, ?, ?)",
            [(place, key, row.data) for place, (key, row) in zip(ids, rows.items(), strict=True)],
        )
        self._database.execute_many(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            sorted(
                (
                    key,
                    place,
                    layout_numbers[layouts[row.layout]],
                    now_s,
                    now_s,
                    nbytes_of(row),
                    maker_numbers[makers[row.makers]],
                    sum_of(layouts[row.layout], makers[row.makers], key, row.data),
                )
                for place, (key, row) in zip(ids, rows.items(), strict=True)
            ),
        )

    def delete(self, keys: Sequence[bytes]) -> None:
        """Take rows out."""
        for some in lots_of(keys, _IN_ONE_QUERY):
            which = f"WHERE key IN ({','.join('?' * len(some))})"
            places = self._database.execute(f"SELECT id FROM keys {which}", some).fetchall()
            self._database.execute(f"DELETE FROM keys {which}", some)
            self._database.execute_many("DELETE FROM labels WHERE id = ?", places)

    def uses(self, count: int) -> list[tuple[bytes, int]]:
        """When some rows were used: keys are hashes, so those behind a random one will do."""
        begin = os.urandom(16)
        some = "SELECT key, used FROM keys WHERE key {} ? ORDER BY key LIMIT ?"
        drawn = self._database.execute(some.format(">="), (begin, count)).fetchall()
        if len(drawn) < count:
            lacking = count - len(drawn)
            drawn += self._database.execute(some.format("<"), (begin, lacking)).fetchall()
        return [(key, _whole(used)) for key, used in drawn]

    def head(self, count: int, nbytes: int) -> list[tuple[RowLocation, StoredRow]]:
        """The first rows, in the order in which they were written: so many, of so many bytes."""
        if nbytes <= 0:
            return []
        told = self._database.execute(
            "SELECT first.id, keys.key, used, length FROM"
            " (SELECT id, key, length(data) AS length FROM labels ORDER BY id LIMIT ?) AS first"
            " LEFT JOIN keys ON keys.key = first.key AND keys.id = first.id ORDER BY first.id",
            (count,),
        )
        first = []
        for place, key, used, length in told:
            first.append(
                (RowLocation(_number(place), key), StoredRow(_whole(used), _whole(length)))
            )
            nbytes -= _whole(length)
            if nbytes <= 0:
                break
        return first

    def behead(self, gone: Sequence[RowLocation], moved: Sequence[RowLocation]) -> None:
        """Take out the first rows, of which some move behind the last: into pages that are free."""
        self._database.execute_many(
            "DELETE FROM labels WHERE id = ?", [(place,) for place, _ in gone]
        )
        self._database.execute_many(
            "DELETE FROM keys WHERE key = ?", sorted((key,) for _, key in gone if key is not None)
        )
        behind = self._behind_the_last()
        news = [(behind + at, place, key) for at, (place, key) in enumerate(moved)]
        self._database.execute_many(
            "UPDATE labels SET id = ? WHERE id = ?", [(new, place) for new, place, _ in news]
        )
        self._database.execute_many(
            "UPDATE keys SET id = ? WHERE key = ?", [(new, key) for new, _, key in news]
        )

    def note(self, used: Mapping[bytes, int]) -> None:
        """When rows were last used, in seconds since 1970."""
        self._database.execute_many(
            "UPDATE keys SET used = max(used, ?) WHERE key = ?",
            [(at, key) for key, at in used.items()],
        )

    def count(self, more: Mapping[str, int]) -> None:
        """Add to what all readers of the store have done."""
        self._database.execute_many(
            "INSERT INTO counters VALUES (?1, ?2)"
            " ON CONFLICT (name) DO UPDATE SET value = value + ?2",
            [(name, value) for name, value in more.items() if value],
        )

    def layout(self, number: int) -> Layout | None:
        """The layout of this number; None where it cannot be read."""
        try:
            return Layout.from_text(self._text("layout", number).decode())
        except (ArithmeticError, LookupError, TypeError, ValueError, EdlError):  # whatever it is
            return None

    def made_by(self, maker: str, behind: bytes, count: int) -> tuple[list[bytes], bytes | None]:
        """Of the next keys behind one those that a teacher has labelled, and the last of them all.

        The last is None where there are no more.
        """
        told = self._database.execute(
            "SELECT key, maker FROM keys WHERE key > ? ORDER BY key LIMIT ?", (behind, count)
        ).fetchall()
        mine = [key for key, number in told if maker in makers_of(self._text("maker", number))]
        return mine, told[-1][0] if len(told) == count else None

    def put_model(self, service: str, model: Model) -> None:
        """This model is at work for `service`: a run without teachers reads labels of that model.

        The row bears a checksum, as labels do: another model would give labels of another.
        """
        name, told = service.encode(), json.dumps([model.content, model.inputs]).encode()
        self._database.execute(
            "INSERT OR REPLACE INTO services VALUES (?, ?, ?)", (name, told, _model_sum(name, told))
        )

    def models(self) -> dict[str, Model]:
        """Those that were last at work for all services, by name, without what is damaged."""
        found: dict[str, Model] = {}
        rows = self._database.execute("SELECT service, told, sum FROM services").fetchall()
        for name, told, checksum in rows:
            whole = isinstance(name, bytes) and isinstance(told, bytes)
            if whole and checksum == _model_sum(name, told):
                content, inputs = json.loads(told)
                found[name.decode()] = Model(Content(*content), tuple(inputs))
        return found

    def _behind_the_last(self) -> int:
        """Where the next row goes."""
        last = _first_number(self._database.execute("SELECT ifnull(max(id), 0) FROM labels"))
        if last > _LAST_PLACE:
            raise sqlite3.DatabaseError("a row has a number that was never given")
        return last + 1

    def _text(self, kind: str, number: int) -> bytes:
        """What a `layout` or a `maker` of this number says; nothing where there is none."""
        if (kind, number) not in self._texts:
            row = self._database.execute(
                f"SELECT text FROM {kind}s WHERE {kind} = ?", (number,)
            ).fetchone()
            if row is None or not isinstance(row[0], bytes):
                return b""
            self._texts[kind, number] = row[0]
        return self._texts[kind, number]

    def _number(self, kind: str, text: bytes) -> int:
        """Of a `layout` or of a `maker`, which is put in where it is not there."""
        self._database.execute(f"INSERT OR IGNORE INTO {kind}s (text) VALUES (?)", (text,))
        return _first_number(
            self._database.execute(f"SELECT {kind} FROM {kind}s WHERE text = ?", (text,))
        )


def nbytes_of(row: Row) -> int:
    """What a row takes of the file, about."""
    return len(row.data) + ROW_BYTES


def pages_for(rows: Iterable[Row]) -> int:
    """How many pages rows take behind the last one, with their keys; about, and rather too many."""
    pages = count = left = 0
    for row in rows:
        count += 1
        nbytes = len(row.data) + _HEAD_BYTES
        if nbytes > left:
            more = -(-nbytes // (PAGE_BYTES - _HEAD_BYTES))
            pages += more + (more > 1)
            left = more * PAGE_BYTES
        left -= nbytes
    return pages + int(count * _KEY_BYTES / _FULL_SHARE / PAGE_BYTES) + 1


def _model_sum(name: bytes, told: bytes) -> bytes:
    import xxhash

    return xxhash.xxh3_64(b"%d %s%s" % (len(name), name, told)).digest()


def sum_of(layout: bytes, makers: bytes, key: bytes, data: object) -> bytes:
    """What tells a row that is as it was put in from every other: 8 bytes; none for a non-row."""
    import xxhash

    if not isinstance(data, bytes):
        return b""
    hasher = xxhash.xxh3_64(b"%d %d " % (len(layout), len(makers)) + layout + makers)
    hasher.update(key)
    hasher.update(data)
    return hasher.digest()


@lru_cache(maxsize=4096)
def makers_of(text: bytes) -> frozenset[str]:
    """The teachers that a text of theirs names; it is looked at only for rows that are whole."""
    return frozenset(text.decode(errors="replace").split("\n")) - {""}


def lots_of(values: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """`values` in lots of at most `count`."""
    for at in range(0, len(values), count):
        yield values[at : at + count]


def _first_number(told: sqlite3.Cursor) -> int:
    return _number(*(told.fetchone() or (None,)))


def _number(value: object) -> int:
    """A number that rows are found by: where the file says something else, it is broken."""
    if not isinstance(value, int):
        raise sqlite3.DatabaseError(f"{type(value).__name__} in the place of a number")
    return value


def _whole(value: object) -> int:
    """A number that says when or how much; in a damaged file anything may stand there."""
    return value if isinstance(value, int) else 0
