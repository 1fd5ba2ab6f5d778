"""The label store, its counters, and the eviction of rows.

When the file is full, the oldest rows are evicted until pages are free. Free pages count, not bytes
of rows: a page becomes free when its last row is deleted, and a change to a full file may itself
need a page.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

from ...errors import EdlError, StoreDamaged, StoreUnavailable
from ...scheduler import label_cache
from . import LabelStore
from .database import PAGE_BYTES, TRANSACTION_BYTES, Database
from .rows import Model, Row, merged
from .table import Table, lots_of, nbytes_of, pages_for

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters of one open store, and why it cannot be used.

    Attributes:
        hits: rows that were there.
        misses: rows that were not.
        written: rows that were added, or made richer.
        evicted: rows that made room.
        damaged: rows that failed their checksum; each was a miss, and was taken out.
        disowned: rows that were deleted because their teacher is not trusted any more.
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
        """A copy with these counters raised."""
        return replace(self, **{name: getattr(self, name) + n for name, n in more.items()})

    def since(self, before: StoreStats) -> dict[str, int]:
        """The counters minus those of `before`."""
        counted = [field.name for field in fields(self) if field.name != "trouble"]
        return {name: getattr(self, name) - getattr(before, name) for name in counted}


#: Pause after a disk error.
PAUSE_S = 60.0
#: Uses of rows are written in batches of this size in the order of keys: each page once.
USES_IN_A_LOT = 100_000
_NOT_KEPT = "not kept until it can be written"
_NOT_READ = "asked of teachers until it can be read"
#: Pages kept free for writes besides rows and for estimates that were too low.
_RESERVE_PAGES = 4


class Store:
    """An open store. One thread uses it; any number of processes may have the same file open.

    Args:
        settings: where, and how large.
        now: seconds since 1970.

    Attributes:
        stats: what was done since it was opened.

    Raises:
        UsageError: there is something else at the path.
        StoreDamaged: the file is broken.
        StoreUnavailable: it cannot be opened now.
    """

    def __init__(self, settings: LabelStore, now: Callable[[], float] = time.time) -> None:
        self.stats = StoreStats()
        self._settings = settings
        self._now = now
        self._used: dict[bytes, int] = {}  # not written down yet
        self._disowned: set[str] = set()  # whose rows are not taken out yet
        self._told = self.stats  # as far as the counters of the file have it
        self._broken = False
        self._troubles: dict[bool, str] = {}  # whether of writing -> why it is refused now
        self._no_reads_until = self._no_writes_until = 0.0
        self._database = Database(settings.path, write=True)
        self._table = Table(self._database)
        self._evictor = Evictor(self._database, settings.max_bytes)
        if self.writable:
            with self._degrading(writing=True):
                self._fit()
            self._database.bound(settings.max_bytes)

    @property
    def writable(self) -> bool:
        """False where rows can only be read."""
        return self._database.writable

    @property
    def disk_bytes(self) -> int:
        """What it takes of the disk now."""
        return self._database.disk_bytes

    def get_many(self, keys: Sequence[bytes]) -> list[Row | None]:
        """The row of each key; None where there is none that can be trusted."""
        found: Mapping[bytes, Row] = {}
        if self._reads:
            with self._degrading():
                found = self._read(list(dict.fromkeys(keys)))
        rows = [found.get(key) for key in keys]
        hits = sum(row is not None for row in rows)
        self._count(hits=hits, misses=len(rows) - hits)
        if len(self._used) >= USES_IN_A_LOT:
            self._write_down()
        return rows

    def put_many(self, keys: Sequence[bytes], rows: Sequence[Row]) -> None:
        """Keep these rows; one that is there already becomes as rich as both together."""
        self._take_out()
        pairs = list(dict(zip(keys, rows, strict=True)).items())
        for some in _in_transactions(pairs, self._settings.max_bytes):
            if not self._writes:
                self._count(dropped=len(some))
                continue
            with self._degrading(writing=True, rows=len(some)):
                self._write(dict(some))

    def disown(self, maker: str) -> None:
        """Take out every row that a teacher has labelled, in whichever of its lives.

        As long as the file does not let that be done, none of them is given out.
        """
        self._disowned.add(maker)
        self._take_out()

    def remember(self, service: str, model: Model) -> None:
        """This model is at work for `service`."""
        if not self._writes or self.recall(service) == model:
            return
        with self._degrading(writing=True), self._database.writing():
            self._table.put_model(service, model)

    def recall(self, service: str) -> Model | None:
        """The model that was last at work for `service`; None where nobody has said."""
        if self._reads:
            with self._degrading(), self._database.reading():
                return self._table.models().get(service)
        return None

    def close(self) -> None:
        """Write down what is still to be counted, and let go of the file."""
        self._take_out()
        for maker in self._disowned:
            log.warning("%s still holds labels of %s: edl store disown", self._settings.path, maker)
        self._write_down()
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- reading and writing

    def _read(self, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        with self._database.reading():
            found = self._table.select(keys)
        now_s = int(self._now())
        for key, used_s in found.used.items():
            if label_cache.should_record_use(used_s, now_s):
                self._used[key] = now_s
        if found.damaged:
            self._count(damaged=len(found.damaged))
            log.warning("%d rows of %s were damaged", len(found.damaged), self._settings.path)
            if self._writes:
                with self._degrading(writing=True), self._database.writing():
                    self._table.delete(found.damaged)
        rows = found.rows.items()
        return {key: row for key, row in rows if self._disowned.isdisjoint(row.makers)}

    def _write(self, rows: Mapping[bytes, Row]) -> None:
        """Evict what has to go, and write; where there was no room after all, again with more."""
        spare = _RESERVE_PAGES
        while True:
            try:
                with self._database.writing():
                    done, written, evicted = self._put(rows, spare)
            except StoreUnavailable as error:
                spare *= 2
                if not error.full or spare > self._evictor.pages // 4:
                    raise
                self._evictor.evict_recent()
            else:
                self._count(written=written, evicted=evicted)
                if done:
                    return

    def _put(self, rows: Mapping[bytes, Row], spare: int) -> tuple[bool, int, int]:
        """Whether all is written now, how many rows were, and how many were evicted.

        There have to be `spare` pages more than rows need; where that is not so before the
        transaction has become long, nothing is written yet.
        """
        there = self._table.select(list(rows))
        better = {
            key: kept
            for key, row in rows.items()
            if (kept := merged(there.rows[key], row) if key in there.rows else row)
            is not there.rows.get(key)
        }
        if not better:
            return True, 0, 0
        if (need := sum(map(nbytes_of, better.values()))) > self._settings.max_bytes // 4:
            raise StoreUnavailable(f"{len(rows)} rows of {need} bytes are too large for the store")
        made = self._evictor.evict(pages_for(better.values()) + spare, self._used)
        if made.more:
            return False, 0, made.gone
        self._table.delete(list(better))  # poorer or damaged ones of the same samples
        self._table.insert(better, int(self._now()))
        return True, len(better), made.gone

    def _take_out(self) -> None:
        """Delete the rows of teachers that are not believed, as far as the file lets us now."""
        while self._disowned and self._writes:
            maker = next(iter(self._disowned))
            behind: bytes | None = b""
            with self._degrading(writing=True):
                while behind is not None:
                    with self._database.writing():
                        keys, behind = self._table.made_by(maker, behind, ROWS_IN_A_TRANSACTION)
                        self._table.delete(keys)
                    self._count(disowned=len(keys))
                self._disowned.discard(maker)

    def _fit(self) -> None:
        """A file that was allowed to be larger becomes as small as it has to be."""
        if self._database.page_bytes <= self._settings.max_bytes:
            return
        more = True
        while more:
            with self._database.writing():
                gone, more = self._evictor.evict(0, self._used)
            self._count(evicted=gone)
        self._database.shrink()

    def _write_down(self) -> None:
        """When rows were used, and what was done since the last time."""
        used, self._used = sorted(self._used.items()), {}
        if not self._writes:
            return
        with self._degrading(writing=True):
            for some in lots_of(used, TRANSACTION_BYTES // PAGE_BYTES):
                with self._database.writing():
                    self._table.note(dict(some))
            with self._database.writing():
                self._table.count(self.stats.since(self._told))
            self._told = self.stats

    # --- trouble

    @property
    def _reads(self) -> bool:
        """Whether the file is asked now."""
        return not self._broken and self._now() >= self._no_reads_until

    @property
    def _writes(self) -> bool:
        return self.writable and not self._broken and self._now() >= self._no_writes_until

    @contextlib.contextmanager
    def _degrading(self, *, writing: bool = False, rows: int = 0) -> Iterator[None]:
        """What the file refuses within is told, `rows` are counted as lost, and it has a rest."""
        try:
            yield
        except StoreDamaged as error:
            self._broken = True
            self._refused(error, rows, writing)
        except StoreUnavailable as error:
            if writing:
                self._no_writes_until = self._now() + PAUSE_S
            else:
                self._no_reads_until = self._now() + PAUSE_S
            self._refused(error, rows, writing)
        else:
            if rows or not writing:  # a disk without room for rows may have some for other things
                self._accepted(writing)

    def _refused(self, error: EdlError, rows: int, writing: bool) -> None:
        self._count(dropped=rows)
        if writing not in self._troubles:
            log.warning("%s; labels are %s", error, _NOT_KEPT if writing else _NOT_READ)
        self._troubles[writing] = str(error)
        self.stats = replace(self.stats, trouble=str(error))

    def _accepted(self, writing: bool) -> None:
        if self._troubles.pop(writing, ""):
            log.info("the label store %s can be used again", self._settings.path)
            self.stats = replace(self.stats, trouble="".join(self._troubles.values()))

    def _count(self, **more: int) -> None:
        self.stats = self.stats.plus(**more)


def _in_transactions(
    pairs: Sequence[tuple[bytes, Row]], max_bytes: int
) -> Iterator[list[tuple[bytes, Row]]]:
    """`pairs` in lots that the write-ahead log and the budget can take."""
    most = min(TRANSACTION_BYTES // 2, max_bytes // 8)
    lot: list[tuple[bytes, Row]] = []
    nbytes = 0
    for pair in pairs:
        nbytes += len(pair[1].data)
        if lot and (len(lot) == ROWS_IN_A_TRANSACTION or nbytes > most):
            yield lot
            lot, nbytes = [], len(pair[1].data)
        lot.append(pair)
    if lot:
        yield lot


#: A row that goes or comes changes four pages at most, beside its own bytes.
ROWS_IN_A_TRANSACTION = TRANSACTION_BYTES // (4 * PAGE_BYTES)
#: Bytes of rows examined in one transaction: all may be rewritten at the end of the file.
_MOST_BYTES = TRANSACTION_BYTES // 4
#: Sample size for the typical time of use.

_ASKED = 64


class Eviction(NamedTuple):
    """The result of a transaction: rows evicted, and whether another transaction must follow."""

    gone: int
    more: bool


class Evictor:
    """Evicts rows to keep a store within its budget, in the caller's transaction.

    Args:
        database: open, to write.
        max_bytes: the budget.

    Attributes:
        pages: maximum pages of the file.
    """

    def __init__(self, database: Database, max_bytes: int) -> None:
        self.pages = max_bytes // PAGE_BYTES
        self._database = database
        self._table = Table(database)
        self._chances = label_cache.MOST_CHANCES  # recently used rows that may stay

    def evict_recent(self) -> None:
        """Evict recently used rows too, for now: there was no room after all."""
        self._chances = 0

    def evict(self, pages: int, used: Mapping[bytes, int]) -> Eviction:
        """Evict rows until so many pages are free; a bounded number of rows at a time.

        Args:
            pages: how many.
            used: later uses of rows than the file records, in seconds since 1970.

        Returns:
            With `more` there is not enough room yet; without, there is, or no row is left.
        """
        gone, rows_left, bytes_left = 0, ROWS_IN_A_TRANSACTION, _MOST_BYTES
        typical_s: int | None = None
        while (lacking := self._database.used_pages + pages - self.pages) > 0:
            head = self._table.head(rows_left, bytes_left)
            if not head:
                return Eviction(gone, more=rows_left < ROWS_IN_A_TRANSACTION)
            if typical_s is None:
                some = self._table.uses(_ASKED)
                typical_s = label_cache.median_use_s(
                    [max(at, used.get(key, 0)) for key, at in some]
                )
            rows = [row for row, _ in head]
            candidates = [
                replace(one, used_s=max(one.used_s, used.get(row.key or b"", 0)))
                for row, one in head
            ]
            swept = label_cache.plan_eviction(
                candidates, typical_s, lacking * PAGE_BYTES, self._chances
            )
            self._table.behead([rows[at] for at in swept.gone], [rows[at] for at in swept.moved])
            self._chances = swept.chances
            gone += len(swept.gone)
            looked = len(swept.gone) + len(swept.moved)
            rows_left -= looked
            bytes_left -= sum(one.nbytes for one in candidates[:looked])
        return Eviction(gone, more=False)
