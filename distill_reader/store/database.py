"""The file of a label store: an SQLite database, opened, checked, and kept within its bounds.

```
labels    id, key, data                    the bytes of rows, in the order of writing: new ones go
                                           behind the last, the first make room
keys      key, id, layout, used, made,     where a row is, and what it must be like
          nbytes, maker, sum
layouts   layout, text                     what the bytes of rows are
makers    maker, text                      the teachers that have labelled a row, a line each
services  service, told, sum               the model that was last at work for a service
counters  name, value                      what readers have done here, all together
```

SQLite writes ahead (WAL): a process that is killed leaves either all of a transaction or nothing,
any number of processes may read while one writes, and what is broken is an error, never a signal.
ADR-0011 says what else was measured.
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

from ...errors import StoreDamaged, StoreUnavailable, UsageError

log = logging.getLogger(__name__)

PAGE_BYTES = 8192
#: The write-ahead log is taken into the file before it grows beyond this ...
WAL_LIMIT_BYTES = 16 << 20
#: ... and a transaction adds about twice this to it at most: of pages that change, and of rows.
TRANSACTION_BYTES = 8 << 20
#: A process that waits for another one's transaction gives up after this.
BUSY_S = 5.0
_LOOK_AGAIN_S = 0.005
_CACHE_KIB = 16 << 10
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
    """A connection of one thread. Use it as a context manager, or `close` it.

    Args:
        path: of the file.
        write: it is made where there is none, and `bound` says how large it may be; else the file
            must be there, and is only read.

    Attributes:
        writable: False where it is only to be read, or the disk lets nobody write.

    Raises:
        UsageError: there is no store at the path, or something else.
        StoreDamaged: it is broken.
        StoreUnavailable: it cannot be opened now.
    """

    def __init__(self, path: str, *, write: bool = False) -> None:
        self.path = path
        self.writable = False
        self._page_bytes = PAGE_BYTES
        if not os.path.exists(path):
            _check_may_be_new(path, write=write)
        try:
            with translated(path):
                self._open(write)
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """One statement; raises what SQLite raises: see `translated`."""
        return self._connection.execute(statement, values)

    def execute_many(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        """One statement with each of these values."""
        self._connection.executemany(statement, values)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """What is read within is of one moment; keep it short, for others cannot tidy up meanwhile.

        Raises:
            StoreDamaged: the file is broken.
            StoreUnavailable: it cannot be read now.
        """
        with translated(self.path):
            self.execute("BEGIN")
            try:
                yield
            finally:
                self._end("ROLLBACK")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: all that is written within, or nothing.

        Raises:
            StoreDamaged: the file is broken.
            StoreUnavailable: the disk is full or refuses, or others do not let go.
        """
        with translated(self.path):
            self._bound_the_log()
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                self._end("ROLLBACK")
                raise

    @property
    def page_bytes(self) -> int:
        """All pages of the file."""
        return self._page_bytes * self._pragma("page_count")

    @property
    def used_pages(self) -> int:
        """Those that hold something."""
        return self._pragma("page_count") - self._pragma("freelist_count")

    @property
    def used_bytes(self) -> int:
        """What they take."""
        return self._page_bytes * self.used_pages

    @property
    def disk_bytes(self) -> int:
        """What the file and those beside it take of the disk."""
        return sum(_size(self.path + suffix) for suffix in ("", "-wal", "-shm"))

    def bound(self, max_bytes: int) -> None:
        """From now on the file grows no further than to this."""
        with translated(self.path):
            self.execute(f"PRAGMA max_page_count = {max_bytes // self._page_bytes}")

    def shrink(self) -> None:
        """Give pages that hold nothing back to the disk, a few at a time."""
        while free := self._pragma("freelist_count"):
            with self.writing():
                few = min(free, TRANSACTION_BYTES // self._page_bytes // 4)
                self.execute(f"PRAGMA incremental_vacuum({few})").fetchall()
        with translated(self.path):
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """The last one to close takes the write-ahead log into the file."""
        with contextlib.suppress(sqlite3.Error):  # a disk that refuses loses nothing by this
            if hasattr(self, "_connection"):  # else it could not be opened at all
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
                f" {_VERSION}: name another path, or delete it"
            )

    def _open_to_write(self) -> None:
        try:
            self._connect("mode=rwc")
            self._check_is_ours(may_be_new=True)
            self.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            self.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self.execute("BEGIN IMMEDIATE")
            if not self._pragma("application_id"):  # within the transaction: nobody else makes it
                for statement in _SCHEMA.split(";"):
                    self.execute(statement)
                self.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                self.execute(f"PRAGMA user_version = {_VERSION}")
            self.execute("COMMIT")
            self._write_ahead()
            self.execute("PRAGMA synchronous = NORMAL")
            self.execute(f"PRAGMA wal_autocheckpoint = {WAL_LIMIT_BYTES // 2 // PAGE_BYTES}")
            self.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
            self._page_bytes = self._pragma("page_size")
        except sqlite3.OperationalError as error:
            if not _is(error, "READONLY", "CANTOPEN") or not os.path.exists(self.path):
                raise
            log.warning("the label store %s is only read: %s", self.path, error)
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
            time.sleep(_LOOK_AGAIN_S)  # SQLite does not wait for others that just begin with it

    def _open_to_read(self) -> None:
        try:
            self._connect("mode=ro")
            self._check_is_ours()
        except sqlite3.OperationalError as error:
            if not _is(error, "READONLY", "CANTOPEN"):
                raise
            self.close()
            if _size(self.path + "-wal"):
                raise StoreUnavailable(
                    f"the label store {self.path} was not closed by its last user: open it once"
                    " where it can be written"
                ) from None
            self._connect("immutable=1")  # nobody can write there, so nothing need be locked
            self._check_is_ours()
        self._page_bytes = self._pragma("page_size")

    def _check_is_ours(self, *, may_be_new: bool = False) -> None:
        """Before anything is changed.

        By SQLite, which waits for who is making the file just now. To open the file besides would
        be an error: closing that would take the locks of every connection of this process.
        """
        self.execute("BEGIN")
        try:
            told = self._pragma("application_id")
            empty = not self.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        except sqlite3.DatabaseError as error:
            if not _is(error, "NOTADB"):
                raise
            told, empty = 0, False
        finally:
            self._end("ROLLBACK")
        if told != _APPLICATION_ID and not (may_be_new and empty and not told):
            raise UsageError(
                f"{self.path} is no label store, or its beginning is destroyed; nothing was"
                " changed: name another path, or delete it"
            )

    def _connect(self, mode: str) -> None:
        self._connection = sqlite3.connect(
            f"file:{quote(self.path)}?{mode}", timeout=BUSY_S, isolation_level=None, uri=True
        )

    # --- bounds

    def _bound_the_log(self) -> None:
        deadline = time.monotonic() + BUSY_S
        while _size(self.path + "-wal") > WAL_LIMIT_BYTES:
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"the log of the label store {self.path} cannot be taken into its file: others"
                    " read it without a pause"
                )
            time.sleep(_LOOK_AGAIN_S)  # SQLite waits for readers, not for another one that does it

    def _pragma(self, name: str) -> int:
        return int(self.execute(f"PRAGMA {name}").fetchone()[0])

    def _end(self, statement: str) -> None:
        with contextlib.suppress(sqlite3.Error):  # SQLite may have ended it by itself
            self.execute(statement)


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """SQLite's errors become ours."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # ours: a closed connection, another thread
    except (sqlite3.Error, UnicodeDecodeError) as error:  # it may quote what is no text
        if not _is(error, "FULL", "IOERR", "BUSY", "LOCKED", "READONLY", "CANTOPEN", "PERM"):
            raise StoreDamaged(
                f"the label store {path} is broken ({error}): `edl store verify` says what can"
                " still be read; delete it, and it is filled again"
            ) from None
        words = f"the label store {path} cannot be used now: {error}"
        raise StoreUnavailable(words, full=_is(error, "FULL")) from None


def _is(error: Exception, *names: str) -> bool:
    name = getattr(error, "sqlite_errorname", "")
    return any(name.startswith(f"SQLITE_{one}") for one in names)


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
