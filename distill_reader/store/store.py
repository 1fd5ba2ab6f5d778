"""The label store, its counters, and the eviction of rows.

When the file is full, the oldest rows are evicted until enough pages are free. A recently used row
may get a second chance: it moves to the end of the file. Eviction counts pages, not bytes of rows,
because a page becomes free only when its last row is deleted, and a change to a full file may
itself need a page.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from statistics import median_high
from typing import NamedTuple, Self

from ...runtime.errors import LabelStoreUnavailable, StoreDamaged
from ...scheduler import label_cache
from . import LabelStore
from .database import PAGE_BYTES, TRANSACTION_BYTES, Database
from .rows import LabelRow, ServiceModel, merged
from .table import LabelTable, chunks_of, nbytes_of, pages_for

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters of one open store, and why it cannot be used.

    Attributes:
        hits: requested rows that were found.
        misses: requested rows that were not found.
        written: rows added, or extended by labels in other forms (float16, top-k, ...).
        evicted: rows deleted to make room.
        damaged: rows that failed their checksum. Each counts as a miss, and is deleted if the file
            can be written.
        disowned: rows deleted because their teacher is not trusted.
        dropped: rows that could not be written.
        trouble: why the store cannot be used now; empty: it can.
    """

    hits: int = 0
    misses: int = 0
    written: int = 0
    evicted: int = 0
    damaged: int = 0
    disowned: int = 0
    dropped: int = 0
    trouble: str = ""

    def plus(self, **more: int) -> Self:
        """Return a copy with these counters raised."""
        return replace(self, **{name: getattr(self, name) + n for name, n in more.items()})

    def since(self, before: StoreStats) -> dict[str, int]:
        """Return the counters minus those of `before`."""
        counted = [field.name for field in fields(self) if field.name != "trouble"]
        return {name: getattr(self, name) - getattr(before, name) for name in counted}


#: Pause after a disk error, in seconds.
PAUSE_S = 60.0
#: Times of use are written once there are this many, in the order of keys, so that each page is
#: written only once.
USES_PER_WRITE = 100_000
_NOT_KEPT = "labels are not kept until it can be written"
_NOT_READ = "labels are requested from teachers until it can be read"
_NOT_USED = "this reader does not use it any more"
#: Pages kept free for other writes than rows, and for estimates that were too low.
_RESERVE_PAGES = 4


class LabelDatabase:
    """An open store. Used by one thread; any number of processes may open the same file.

    After opening, errors of the file raise nothing: reads miss, writes are dropped and counted, and
    the file is tried again after `PAUSE_S`, unless it is broken.

    Args:
        settings: path and size.
        now: returns the time in seconds since 1970.

    Attributes:
        stats: counters since the store was opened.

    Raises:
        UsageError: the file at the path is not a label store of this version, or there is no folder
            for a new file.
        StoreDamaged: the file is broken.
        LabelStoreUnavailable: the file cannot be opened now.
    """

    def __init__(self, settings: LabelStore, now: Callable[[], float] = time.time) -> None:
        self.stats = StoreStats()
        self._settings = settings
        self._now = now
        self._used: dict[bytes, int] = {}  # times of use by key, not written yet
        self._disowned: set[str] = set()  # teachers with rows that are to be deleted
        self._counted = self.stats  # the part of `stats` that the counters of the file include
        self._broken = False
        # By writing (True) or reading (False): why that fails now, and when it failed last.
        self._troubles: dict[bool, str] = {}
        self._failed_s = {True: -inf, False: -inf}
        self._database = Database(settings.path, write=True)
        self._table = LabelTable(self._database)
        self._evictor = Evictor(self._database, settings.max_bytes)
        if self.writable:
            with self._tolerating_errors(writing=True):
                self._fit()
            self._database.bound(settings.max_bytes)

    @property
    def writable(self) -> bool:
        """False if the file can only be read."""
        return self._database.writable

    @property
    def disk_bytes(self) -> int:
        """Size of its files."""
        return self._database.disk_bytes

    def get_many(self, keys: Sequence[bytes]) -> list[LabelRow | None]:
        """Return the row of each key; None: missing, damaged, or of an untrusted teacher."""
        found: Mapping[bytes, LabelRow] = {}
        if self._may_read:
            with self._tolerating_errors():
                found = self._read(list(dict.fromkeys(keys)))
        rows = [found.get(key) for key in keys]
        hits = sum(row is not None for row in rows)
        self._count(hits=hits, misses=len(rows) - hits)
        if len(self._used) >= USES_PER_WRITE:
            self._write_uses()
        return rows

    def put_many(self, keys: Sequence[bytes], rows: Sequence[LabelRow]) -> None:
        """Write rows; a stored row of the same key is merged with the new one."""
        self._delete_disowned()
        pairs = list(dict(zip(keys, rows, strict=True)).items())
        for part in _in_transactions(pairs, self._settings.max_bytes):
            if not self._may_write:
                self._count(dropped=len(part))
                continue
            with self._tolerating_errors(writing=True, rows=len(part)):
                self._write(dict(part))

    def disown(self, teacher: str) -> None:
        """Delete every row that a teacher has labelled, in any of its incarnations.

        While the file cannot be written, `get_many` does not return these rows.
        """
        self._disowned.add(teacher)
        self._delete_disowned()

    def remember(self, service: str, model: ServiceModel) -> None:
        """Record the latest model of `service`."""
        if not self._may_write or self.recall(service) == model:
            return
        with self._tolerating_errors(writing=True), self._database.writing():
            self._table.put_model(service, model)

    def recall(self, service: str) -> ServiceModel | None:
        """Return the recorded model of `service`; None: unknown."""
        if self._may_read:
            with self._tolerating_errors(), self._database.reading():
                return self._table.models().get(service)
        return None

    def close(self) -> None:
        """Write the times of use and the counters, and close the file."""
        self._delete_disowned()
        for teacher in self._disowned:
            log.warning(
                "%s still holds labels of %s, which is not trusted: delete them by"
                " `edl store disown`",
                self._settings.path,
                teacher,
            )
        self._write_uses()
        self._database.close()

    def __enter__(self) -> LabelDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- reading and writing

    def _read(self, keys: Sequence[bytes]) -> Mapping[bytes, LabelRow]:
        with self._database.reading():
            found = self._table.select(keys)
        now_s = int(self._now())
        for key, used_s in found.used.items():
            if now_s - used_s >= label_cache.USE_STEP_S:
                self._used[key] = now_s
        if found.damaged:
            self._count(damaged=len(found.damaged))
            log.warning("%d rows of %s were damaged", len(found.damaged), self._settings.path)
            if self._may_write:
                with self._tolerating_errors(writing=True), self._database.writing():
                    self._table.delete(found.damaged)
        rows = found.rows.items()
        return {key: row for key, row in rows if self._disowned.isdisjoint(row.makers)}

    def _write(self, rows: Mapping[bytes, LabelRow]) -> None:
        """Evict and write; repeat with more eviction if the file is full nevertheless."""
        spare = _RESERVE_PAGES
        while True:
            try:
                with self._database.writing():
                    done, written, evicted = self._put(rows, spare)
            except LabelStoreUnavailable as error:
                spare *= 2
                if not error.full or spare > self._evictor.pages // 4:
                    raise
                self._evictor.drop_second_chances()
            else:
                self._count(written=written, evicted=evicted)
                if done:
                    return

    def _put(self, rows: Mapping[bytes, LabelRow], spare: int) -> tuple[bool, int, int]:
        """Evict until there is room for the rows and `spare` pages, then write.

        Returns:
            Whether all is written, rows written, rows evicted. If the bound of evictions in one
            transaction is reached, nothing is written yet.
        """
        stored = self._table.select(list(rows)).rows
        changed = {
            key: combined
            for key, row in rows.items()
            if (combined := merged(stored[key], row) if key in stored else row)
            is not stored.get(key)
        }
        if not changed:
            return True, 0, 0
        if (need := sum(map(nbytes_of, changed.values()))) > self._settings.max_bytes // 4:
            raise LabelStoreUnavailable(
                f"{len(rows)} rows of {need} bytes are too large for the store"
            )
        eviction = self._evictor.evict(pages_for(changed.values()) + spare, self._used)
        if eviction.more:
            return False, 0, eviction.gone
        self._table.delete(list(changed))  # stored rows with fewer forms, or damaged
        self._table.insert(changed, int(self._now()))
        return True, len(changed), eviction.gone

    def _delete_disowned(self) -> None:
        """Delete the rows of teachers that are not trusted, if the file can be written."""
        while self._disowned and self._may_write:
            teacher = next(iter(self._disowned))
            after: bytes | None = b""
            with self._tolerating_errors(writing=True):
                while after is not None:
                    with self._database.writing():
                        keys, after = self._table.made_by(teacher, after, ROWS_IN_A_TRANSACTION)
                        self._table.delete(keys)
                    self._count(disowned=len(keys))
                self._disowned.discard(teacher)

    def _fit(self) -> None:
        """Shrink the file if it is larger than the budget."""
        if self._database.file_bytes <= self._settings.max_bytes:
            return
        more = True
        while more:
            with self._database.writing():
                gone, more = self._evictor.evict(0, self._used)
            self._count(evicted=gone)
        self._database.shrink()

    def _write_uses(self) -> None:
        """Write the times of use and the counters."""
        used, self._used = sorted(self._used.items()), {}
        if not self._may_write:
            return
        with self._tolerating_errors(writing=True):
            for chunk in chunks_of(used, TRANSACTION_BYTES // PAGE_BYTES):
                with self._database.writing():
                    self._table.record_uses(dict(chunk))
            with self._database.writing():
                self._table.count(self.stats.since(self._counted))
            self._counted = self.stats

    # --- trouble

    @property
    def _may_read(self) -> bool:
        """Whether to read the file now."""
        return not self._broken and not self._is_paused(writing=False)

    @property
    def _may_write(self) -> bool:
        return self.writable and not self._broken and not self._is_paused(writing=True)

    def _is_paused(self, *, writing: bool) -> bool:
        # A clock that was set back does not make the pause longer.
        return 0 <= self._now() - self._failed_s[writing] < PAUSE_S

    @contextlib.contextmanager
    def _tolerating_errors(self, *, writing: bool = False, rows: int = 0) -> Iterator[None]:
        """Handle errors of the file in a `with` block: count `rows` as dropped, log, and pause."""
        try:
            yield
        except (LabelStoreUnavailable, StoreDamaged) as error:
            self._broken |= isinstance(error, StoreDamaged)
            self._failed_s[writing] = self._now()
            self._count(dropped=rows)
            if writing not in self._troubles:
                retried = _NOT_KEPT if writing else _NOT_READ
                log.warning("%s; %s", error, _NOT_USED if self._broken else retried)
            self._troubles[writing] = str(error)
            self.stats = replace(self.stats, trouble=str(error))
        else:
            # A full disk may still take writes other than rows.
            if (rows or not writing) and self._troubles.pop(writing, ""):
                log.info("the label store %s can be used again", self._settings.path)
                self.stats = replace(self.stats, trouble="".join(self._troubles.values()))

    def _count(self, **more: int) -> None:
        self.stats = self.stats.plus(**more)


def _in_transactions(
    pairs: Sequence[tuple[bytes, LabelRow]], max_bytes: int
) -> Iterator[list[tuple[bytes, LabelRow]]]:
    """Split `pairs` so that each part fits into the write-ahead log and the budget."""
    limit = min(TRANSACTION_BYTES // 2, max_bytes // 8)
    part: list[tuple[bytes, LabelRow]] = []
    part_bytes = 0
    for pair in pairs:
        nbytes = len(pair[1].data)
        if part and (len(part) == ROWS_IN_A_TRANSACTION or part_bytes + nbytes > limit):
            yield part
            part, part_bytes = [], 0
        part.append(pair)
        part_bytes += nbytes
    if part:
        yield part


#: A row that is written or deleted changes up to four pages, besides its own bytes.
ROWS_IN_A_TRANSACTION = TRANSACTION_BYTES // (4 * PAGE_BYTES)
#: Limit of the bytes of rows examined in one transaction. In the worst case all of them get a
#: second chance, so that they are written again.
_EXAMINED_BYTES = TRANSACTION_BYTES // 4
#: Sample size for the typical time of use.
_SAMPLED_USES = 64


class Eviction(NamedTuple):
    """The number of rows evicted in a transaction; `more`: another transaction must follow."""

    gone: int
    more: bool


class Evictor:
    """Evicts rows to keep a store within its budget, in the caller's transaction.

    Args:
        database: open for writing.
        max_bytes: the budget, as the maximum size of the file.

    Attributes:
        pages: maximum pages of the file.
    """

    def __init__(self, database: Database, max_bytes: int) -> None:
        self.pages = max_bytes // PAGE_BYTES
        self._database = database
        self._table = LabelTable(database)
        self._chances = label_cache.MOST_CHANCES  # rows that may get a second chance

    def drop_second_chances(self) -> None:
        """Let `evict` also evict recently used rows, until evicted rows have added new chances."""
        self._chances = 0

    def evict(self, pages: int, used: Mapping[bytes, int]) -> Eviction:
        """Evict rows until `pages` are free; each call examines a bounded number of rows.

        Args:
            pages: number of pages that must be free.
            used: times of use that are not in the file yet, in seconds since 1970.

        Returns:
            `more` is True if the call examined rows and there is not enough room yet. It is False
            if there is enough, or if the store had no rows.
        """
        gone, rows_left, bytes_left = 0, ROWS_IN_A_TRANSACTION, _EXAMINED_BYTES
        typical_s: int | None = None
        while (lacking := self._database.used_pages + pages - self.pages) > 0:
            head = self._table.head(rows_left, bytes_left)
            if not head:
                return Eviction(gone, more=rows_left < ROWS_IN_A_TRANSACTION)
            if typical_s is None:
                sample = [
                    max(at, used.get(key, 0)) for key, at in self._table.sample_uses(_SAMPLED_USES)
                ]
                typical_s = median_high(sample) if sample else 0
            locations = [location for location, _ in head]
            candidates = [
                replace(row, used_s=max(row.used_s, used.get(location.key or b"", 0)))
                for location, row in head
            ]
            plan = label_cache.plan_eviction(
                candidates, typical_s, lacking * PAGE_BYTES, self._chances
            )
            self._table.delete_or_move_oldest(
                [locations[at] for at in plan.gone], [locations[at] for at in plan.moved]
            )
            self._chances = plan.chances
            gone += len(plan.gone)
            examined = len(plan.gone) + len(plan.moved)
            rows_left -= examined
            bytes_left -= sum(row.nbytes for row in candidates[:examined])
        return Eviction(gone, more=False)
