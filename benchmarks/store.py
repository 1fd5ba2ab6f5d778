"""CPU time of a label store for keys, writes and reads, compared with alternatives.

The figures are CPU microseconds of one core per sample, and bytes of the file per row. Keys are
computed for images of 3x224x224 uint8, with the store's function and with other hashes of the same
bytes. Rows are written in batches of 256 and read in batches of 32, in random order: with
`LabelDatabase` as a reader uses it, with SQLite alone with the same page size, and with LMDB.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from ..distill_reader.store import LabelStore
from ..distill_reader.store.database import PAGE_BYTES
from ..distill_reader.store.rows import LabelRow, ModelId, keys_of, layout_of, pack
from ..distill_reader.store.store import LabelDatabase
from ..proto.forms import LabelForm, encode
from .labels import CLASSES, draw
from .report import BenchmarkReport, Estimate, Goal, Row, cpu_s, interleaved

IMAGES = 32
ROWS_PER_READ = 32
ROWS_PER_WRITE = 256
FORMS = ("float32", "bfloat16", "topk:20")
CONTENT = ModelId("content")
#: Limit of the engine's CPU microseconds for a sample with a stored label: key and lookup.
MOST_US = 200.0


class RowStore(Protocol):
    """A store of rows by key; `get` asserts that all keys are present."""

    def put(self, keys: Sequence[bytes], rows: Sequence[LabelRow]) -> None: ...

    def get(self, keys: Sequence[bytes]) -> None: ...


def run(quick: bool) -> BenchmarkReport:
    """Return a row for each hash, and for each store with each form of labels."""
    rows: list[Row] = _hashes(4 if quick else 20)
    key_us = float(rows[0]["read_us"])
    goals = []
    for text in FORMS:
        rows += (of_stores := _stores(text, 2_000 if quick else 20_000))
        name = f"key and label of a sample, {text}, microseconds"
        lookup_us = key_us + float(of_stores[0]["read_us"])
        goals.append(Goal.judge_speed(name, lookup_us, "<=", MOST_US))
    return BenchmarkReport(rows, goals)


def _hashes(repeats: int) -> list[Row]:
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 224, 224), np.uint8)
    raw = [image.tobytes() for image in images]
    ways: dict[str, Callable[[], object]] = {
        "keys_of (xxh3_128)": partial(keys_of, CONTENT, {"image": images}, 0, IMAGES),
        "hashlib.sha256": lambda: [hashlib.sha256(image).digest() for image in raw],
        "hashlib.blake2b": lambda: [
            hashlib.blake2b(image, digest_size=16).digest() for image in raw
        ],
    }
    medians = _cpu_us(ways.values(), IMAGES, repeats)
    return [
        _row("key of an image", way, us, 0.0, 0.0) for way, us in zip(ways, medians, strict=True)
    ]


def _stores(text: str, count: int) -> list[Row]:
    form = LabelForm.parse(text)
    assert form is not None
    arrays = list(encode("logits", draw(count)[0], form, "logits").values())
    layout = layout_of(CONTENT, {"logits": (form, CLASSES if form.k else None, arrays)}, whole=True)
    rows = pack(layout, arrays)
    rng = random.Random(0)
    keys = [rng.randbytes(16) for _ in rows]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        row_stores: dict[str, tuple[RowStore, Path]] = {
            "Store": (_LabelDatabase(Path(folder, "ours"), stack), Path(folder, "ours")),
            "SQLite alone": (_Sqlite(Path(folder, "sqlite"), stack), Path(folder, "sqlite")),
            "LMDB": (_Lmdb(Path(folder, "lmdb"), stack), Path(folder, "lmdb")),
        }
        write_us = []
        for row_store, _ in row_stores.values():
            written_s = cpu_s(partial(_write, row_store, keys, rows), repeats=1)
            write_us.append(written_s / count * 1e6)
        picks = [rng.sample(keys, ROWS_PER_READ) for _ in range(20)]
        reads = [partial(_read, row_store, picks) for row_store, _ in row_stores.values()]
        read_us = _cpu_us(reads, ROWS_PER_READ * len(picks), repeats=1)
        stack.close()  # complete the files
        return [
            _row(f"{text} of {CLASSES}", name, read, write, path.stat().st_size / count)
            for (name, (_, path)), read, write in zip(
                row_stores.items(), read_us, write_us, strict=True
            )
        ]


def _row(what: str, by: str, read_us: float, write_us: float, disk_bytes: float) -> Row:
    return {
        "what": what,
        "by": by,
        "read_us": read_us,
        "write_us": write_us,
        "disk_bytes": disk_bytes,
    }


def _write(row_store: RowStore, keys: Sequence[bytes], rows: Sequence[LabelRow]) -> None:
    for at in range(0, len(keys), ROWS_PER_WRITE):
        row_store.put(keys[at : at + ROWS_PER_WRITE], rows[at : at + ROWS_PER_WRITE])


def _read(row_store: RowStore, picks: Sequence[Sequence[bytes]]) -> None:
    for keys in picks:
        row_store.get(keys)


def _cpu_us(works: Iterable[Callable[[], object]], samples: int, repeats: int) -> list[float]:
    """Return the median CPU microseconds of each kind of work per sample, interleaved."""
    rounds = interleaved(*(partial(cpu_s, work, repeats) for work in works))
    return [Estimate.of(figures).value / samples * 1e6 for figures in rounds]


class _LabelDatabase:
    """The store of a reader's engine: with checksums, layouts, counters and times of use."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._store = stack.enter_context(LabelDatabase(LabelStore(path, 1 << 30)))

    def put(self, keys: Sequence[bytes], rows: Sequence[LabelRow]) -> None:
        self._store.put_many(keys, rows)

    def get(self, keys: Sequence[bytes]) -> None:
        assert None not in self._store.get_many(keys)


class _Sqlite:
    """A minimal store in SQLite: one table, no checksums, no counters."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        stack.callback(self._db.close)
        self._db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("CREATE TABLE labels (id INTEGER PRIMARY KEY, key BLOB UNIQUE, data BLOB)")

    def put(self, keys: Sequence[bytes], rows: Sequence[LabelRow]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        pairs = [(key, row.data) for key, row in zip(keys, rows, strict=True)]
        self._db.executemany("INSERT INTO labels (key, data) VALUES (?, ?)", pairs)
        self._db.execute("COMMIT")

    def get(self, keys: Sequence[bytes]) -> None:
        marks = ",".join("?" * len(keys))
        wanted = f"SELECT key, data FROM labels WHERE key IN ({marks})"
        assert len(self._db.execute(wanted, keys).fetchall()) == len(keys)


class _Lmdb:
    """A minimal store in LMDB; like the SQLite store above, it does not sync at commits."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        import lmdb

        self._env = lmdb.open(str(path), subdir=False, map_size=1 << 30, metasync=False, sync=False)
        stack.callback(self._env.close)

    def put(self, keys: Sequence[bytes], rows: Sequence[LabelRow]) -> None:
        with self._env.begin(write=True) as transaction:
            for key, row in zip(keys, rows, strict=True):
                transaction.put(key, row.data)

    def get(self, keys: Sequence[bytes]) -> None:
        with self._env.begin() as transaction:
            assert None not in [transaction.get(key) for key in keys]
