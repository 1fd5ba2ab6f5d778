"""The file of a label store: an SQLite database with a bounded size.

```
labels    id, key, data                    the data of rows; ids grow in the order of writing, and
                                           eviction begins at the lowest
keys      key, id, layout, used, made,     one entry per row. `used`: last recorded use; `made`:
          nbytes, maker, sum               when it was written, in seconds since 1970; `nbytes`: its
                                           size; `sum`: its checksum; `layout` and `maker`: numbers
                                           of the two tables below
layouts   layout, text                     encodings of rows
makers    maker, text                      a `maker` is a set of teachers that made rows together;
                                           the text has one teacher per line
services  service, told, sum               `told`: the latest model of a service as JSON; `sum`: its
                                           checksum
counters  name, value                      totals of all readers
```

SQLite uses a write-ahead log (WAL): after a kill, a transaction is complete or absent; any number
of processes can read while one writes; and damage raises an error of SQLite, whereas damage of a
file that is mapped into memory can end the process by SIGBUS. See ADR-0011.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from ...runtime.errors import LabelStoreUnavailable, StoreDamaged, UsageError

log = logging.getLogger(__name__)

PAGE_BYTES = 8192
#: A write-ahead log above this size is merged into the file before a write transaction.
WAL_MERGE_BYTES = 16 << 20
#: A transaction adds at most about twice this to the log: changed pages, and rows. A single row of
#: more than half of this comes on top.
TRANSACTION_BYTES = 8 << 20
#: Timeout of waiting for another process's transaction.
BUSY_S = 5.0
_RETRY_S = 0.005
_CACHE_KIB = 16 << 10
#: SQLite's errors that do not mean damage. "PROTOCOL": other processes have kept locks for 10 s
#: that are usually held for a moment.
_TEMPORARY = ("FULL", "IOERR", "BUSY", "LOCKED", "PROTOCOL", "READONLY", "CANTOPEN", "PERM")
#: Its errors if files cannot be written, or `-wal` and `-shm` not created, as on a full disk.
_UNWRITABLE = ("READONLY", "CANTOPEN", "FULL", "IOERR")
_APPLICATION_ID = 0x45444C53  # "EDLS"
_VERSION = 2

_SCHEMA = """
CREATE TABLE labels (id INTEGER PRIMARY KEY, key BLOB NOT NULL, data BLOB NOT NULL);
CREATE TABLE keys (
    key BLOB PRIMARY KEY, id INTEGER NOT NULL, layout INTEGER NOT NULL, used INTEGER NOT NULL,
    made INTEGER NOT NULL, nbytes INTEGER NOT NULL, maker INTEGER NOT NULL, sum BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE layouts (layout INTEGER PRIMARY KEY, text BLOB NOT NULL UNIQUE);
CREATE TABLE makers (maker INTEGER PRIMARY KEY, text BLOB NOT NULL UNIQUE);
CREATE TABLE services (
    service BLOB PRIMARY KEY, told BLOB NOT NULL, sum BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""


class Database:
    """A connection, for one thread. Use it as a context manager, or `close` it.

    Args:
        path: path of the file.
        write: open it for writing, and create it if missing; see `bound` for its size. False: only
            read an existing file.

    Attributes:
        path: path of the file.
        writable: False if opened for reading, or if the file cannot be written.

    Raises:
        UsageError: the file is not a label store of this version. Or there is no file, and `write`
            is False or the folder is missing.
        StoreDamaged: the file is broken.
        LabelStoreUnavailable: the file cannot be opened now.
    """

    def __init__(self, path: str, *, write: bool = False) -> None:
        self.path = path
        self.writable = False
        self._page_bytes = PAGE_BYTES
        if not os.path.exists(path):
            _check_may_be_new(path, write=write)
        try:
            with converting_errors(path):
                self._open(write)
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Execute a statement; raises SQLite's errors, which `converting_errors` converts."""
        return self._connection.execute(statement, values)

    def execute_many(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        """Execute a statement once for each item of `values`."""
        self._connection.executemany(statement, values)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Run the body in a read transaction; keep it short: the log cannot be merged meanwhile.

        Raises:
            StoreDamaged: the file is broken.
            LabelStoreUnavailable: the file cannot be read now.
        """
        with converting_errors(self.path):
            self.execute("BEGIN")
            try:
                yield
            finally:
                self._roll_back()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run the body in a write transaction.

        Raises:
            StoreDamaged: the file is broken.
            LabelStoreUnavailable: the disk or the file's budget (`bound`) is full, the disk fails,
                another process locks the file, or readers keep the log from being merged.
        """
        with converting_errors(self.path):
            self._bound_the_log()
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    @property
    def file_bytes(self) -> int:
        """Bytes of all pages of the file."""
        with converting_errors(self.path):
            return self._page_bytes * self._pragma("page_count")

    @property
    def used_pages(self) -> int:
        """Pages in use."""
        return self._pragma("page_count") - self._pragma("freelist_count")

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages in use."""
        return self._page_bytes * self.used_pages

    @property
    def disk_bytes(self) -> int:
        """Bytes of the file and of its `-wal` and `-shm` files."""
        return sum(_size(self.path + suffix) for suffix in ("", "-wal", "-shm"))

    def bound(self, max_bytes: int) -> None:
        """Limit the size to which this connection lets the file grow."""
        with converting_errors(self.path):
            self.execute(f"PRAGMA max_page_count = {max_bytes // self._page_bytes}")

    def shrink(self) -> None:
        """Truncate unused pages, a few per transaction."""
        with converting_errors(self.path):
            while free := self._pragma("freelist_count"):
                with self.writing():
                    pages = min(free, TRANSACTION_BYTES // self._page_bytes // 4)
                    self.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the connection; the last one merges the log into the file."""
        with contextlib.suppress(sqlite3.Error):  # the log keeps what cannot be merged
            if hasattr(self, "_connection"):  # else opening failed
                self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- opening

    def _open(self, write: bool) -> None:
        if write:
            self._open_to_write()
        if not self.writable:
            self._open_to_read()
        self.execute("PRAGMA query_only = " + ("off" if self.writable else "on"))
        self.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if (version := self._pragma("user_version")) != _VERSION:
            raise UsageError(
                f"the label store {self.path} is of version {version}, this program reads"
                f" {_VERSION}: name another path, or delete the file"
            )

    def _open_to_write(self) -> None:
        try:
            self._connect("mode=rwc")
            self._check_is_label_store(may_be_new=True)
            self.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            self.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self.execute("BEGIN IMMEDIATE")
            if not self._pragma("application_id"):  # new; the transaction excludes other writers
                for statement in _SCHEMA.split(";"):
                    self.execute(statement)
                self.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                self.execute(f"PRAGMA user_version = {_VERSION}")
            self.execute("COMMIT")
            self._write_ahead()
            self.execute("PRAGMA synchronous = NORMAL")
            self.execute(f"PRAGMA wal_autocheckpoint = {WAL_MERGE_BYTES // 2 // PAGE_BYTES}")
            self.execute(f"PRAGMA journal_size_limit = {WAL_MERGE_BYTES}")
            self._page_bytes = self._pragma("page_size")
        except sqlite3.OperationalError as error:
            if not _is(error, *_UNWRITABLE) or not os.path.exists(self.path):
                raise
            log.warning("the label store %s can only be read: %s", self.path, error)
            self.close()
            return
        self.writable = True

    def _write_ahead(self) -> None:
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self.execute("PRAGMA journal_mode = WAL").fetchone()
                return
            except sqlite3.OperationalError as error:
                if not _is(error, "BUSY") or time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_S)  # SQLite does not wait for processes that change the mode

    def _open_to_read(self) -> None:
        try:
            self._connect("mode=ro")
            self._check_is_label_store()
        except sqlite3.OperationalError as error:
            if not _is(error, *_UNWRITABLE):
                raise
            self.close()
            if _size(self.path + "-wal"):
                raise LabelStoreUnavailable(
                    f"the label store {self.path} was not closed by its last user: open it once"
                    " where it can be written"
                ) from None
            self._connect("immutable=1")  # this process cannot create the file of locks
            self._check_is_label_store()
        self._page_bytes = self._pragma("page_size")

    def _check_is_label_store(self, *, may_be_new: bool = False) -> None:
        """Raise UsageError if the file is not a label store; changes nothing.

        Reads the file through SQLite, which waits for a process that creates it. Opening the file
        directly would be an error: closing that descriptor would release this process's locks.
        """
        self.execute("BEGIN")
        try:
            application_id = self._pragma("application_id")
            empty = not self.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        except sqlite3.DatabaseError as error:
            if not _is(error, "NOTADB"):
                raise
            application_id, empty = 0, False
        finally:
            self._roll_back()
        is_new = may_be_new and empty and not application_id
        if application_id != _APPLICATION_ID and not is_new:
            raise UsageError(
                f"{self.path} is no label store, or its beginning is destroyed; nothing was"
                " changed: name another path, or delete the file"
            )

    def _connect(self, mode: str) -> None:
        self._connection = sqlite3.connect(
            f"file://{quote(os.fsencode(os.path.abspath(self.path)))}?{mode}",
            timeout=BUSY_S,
            isolation_level=None,
            uri=True,
        )

    # --- bounds

    def _bound_the_log(self) -> None:
        deadline = time.monotonic() + BUSY_S
        while _size(self.path + "-wal") > WAL_MERGE_BYTES:
            if time.monotonic() >= deadline:
                raise LabelStoreUnavailable(
                    f"the write-ahead log of {self.path} cannot be merged: other processes read the"
                    " store without a pause"
                )
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            time.sleep(_RETRY_S)  # SQLite waits for readers, not for other checkpoints

    def _pragma(self, name: str) -> int:
        return int(self.execute(f"PRAGMA {name}").fetchone()[0])

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # SQLite may have ended it by itself
            self.execute("ROLLBACK")


@contextlib.contextmanager
def converting_errors(path: str) -> Iterator[None]:
    """Convert errors of SQLite to StoreDamaged or LabelStoreUnavailable."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a defect: a closed connection, or another thread's
    except (sqlite3.Error, UnicodeDecodeError) as error:  # a message may quote invalid text
        if not _is(error, *_TEMPORARY):
            raise StoreDamaged(
                f"the label store {path} is broken ({error}): `edl store inspect --verify` shows"
                " what can still be read; delete the file, and readers fill a new one"
            ) from None
        message = f"the label store {path} cannot be used now: {error}"
        raise LabelStoreUnavailable(message, full=_is(error, "FULL")) from None


def _is(error: Exception, *names: str) -> bool:
    errorname = getattr(error, "sqlite_errorname", "")
    return any(errorname.startswith(f"SQLITE_{name}") for name in names)


def _check_may_be_new(path: str, *, write: bool) -> None:
    if not write:
        raise UsageError(f"there is no label store at {path}")
    if not Path(path).parent.is_dir():
        raise UsageError(f"there is no directory {Path(path).parent} for a store")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
