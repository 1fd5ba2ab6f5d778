"""Makes room in a full store: the first rows go, until pages of the file hold nothing.

What counts is what the file says of its pages, not what rows take: a page becomes free when the
last row of it has gone, and to change a file without any free page may itself need one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ...scheduler import label_cache
from .database import PAGE_BYTES, TRANSACTION_BYTES, Database
from .table import Table

#: A row that goes or comes changes four pages at most, beside its own bytes.
ROWS_IN_A_TRANSACTION = TRANSACTION_BYTES // (4 * PAGE_BYTES)
#: What is looked at in one transaction: it may be written again, behind the last row.
_MOST_BYTES = TRANSACTION_BYTES // 4
#: Of so many rows it is asked when they were used, to know the typical one.
_ASKED = 64


class Made(NamedTuple):
    """What was done in a transaction: how many rows went, and whether another one has to follow."""

    gone: int
    more: bool


class Room:
    """Of a store within its budget. Works on an open database, in the transaction of the caller.

    Args:
        database: open, to write.
        max_bytes: the budget.

    Attributes:
        pages: so many the file may have.
    """

    def __init__(self, database: Database, max_bytes: int) -> None:
        self.pages = max_bytes // PAGE_BYTES
        self._database = database
        self._table = Table(database)
        self._mercy = label_cache.MOST_MERCY  # so many rows may stay that were used lately

    def insist(self) -> None:
        """There was no room after all: who was used lately goes too, for now."""
        self._mercy = 0

    def make(self, pages: int, used: Mapping[bytes, int]) -> Made:
        """Evict rows until so many pages hold nothing; not too many rows at a time.

        Args:
            pages: how many.
            used: rows that were used later than the file knows, in seconds since 1970.

        Returns:
            With `more` there is not enough room yet. Without, there is, or no row is left.
        """
        gone, rows_left, bytes_left = 0, ROWS_IN_A_TRANSACTION, _MOST_BYTES
        typical_s: int | None = None
        while (lacking := self._database.used_pages + pages - self.pages) > 0:
            head = self._table.head(rows_left, bytes_left)
            if not head:
                return Made(gone, more=rows_left < ROWS_IN_A_TRANSACTION)
            if typical_s is None:
                some = self._table.uses(_ASKED)
                typical_s = label_cache.typical([max(at, used.get(key, 0)) for key, at in some])
            rows = [row for row, _ in head]
            candidates = [
                replace(one, used_s=max(one.used_s, used.get(row.key or b"", 0)))
                for row, one in head
            ]
            swept = label_cache.sweep(candidates, typical_s, lacking * PAGE_BYTES, self._mercy)
            self._table.behead([rows[at] for at in swept.gone], [rows[at] for at in swept.moved])
            self._mercy = swept.mercy
            gone += len(swept.gone)
            looked = len(swept.gone) + len(swept.moved)
            rows_left -= looked
            bytes_left -= sum(one.nbytes for one in candidates[:looked])
        return Made(gone, more=False)
