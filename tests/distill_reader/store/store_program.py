"""Programs that use a store: `store_program fill PATH MAX_BYTES SEED` and `store_program open`.

`fill` puts lots of rows in until its parent ends, and prints the number of each. It reads other
lots meanwhile; its exit code is 3 if a row is wrong. `open` opens each store whose path it reads
from stdin, and prints what went wrong, a line for each.
"""

from __future__ import annotations

import os
import random
import sys

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.store import LabelDatabase
from edl.runtime.errors import EdlError
from edl.tests.distill_reader.store.samples import rows_in, sample_keys

BUDGET_BYTES = 1 << 20
LOT = 40
LOTS = 200


def numbers_of(lot: int) -> range:
    return range(lot * LOT, (lot + 1) * LOT)


def fill(path: str, max_bytes: int, seed: str) -> int:
    rng = random.Random(seed)
    with LabelDatabase(LabelStore(path, max_bytes)) as store:
        parent = os.getppid()
        while os.getppid() == parent:
            lot, other = rng.randrange(LOTS), rng.randrange(LOTS)
            store.put_many(sample_keys(numbers_of(lot)), rows_in(None, numbers_of(lot)))
            if store.stats.dropped or store.stats.damaged or store.stats.trouble:
                print(store.stats, file=sys.stderr)
                return 2
            print(lot, flush=True)
            rows = rows_in(None, numbers_of(other))
            found = store.get_many(sample_keys(numbers_of(other)))
            if any(one not in (None, row) for one, row in zip(found, rows, strict=True)):
                return 3
    return 0


def open_each() -> int:
    keys, rows = sample_keys(range(4)), rows_in(None, range(4))
    for line in sys.stdin:
        try:
            with LabelDatabase(LabelStore(line.strip(), BUDGET_BYTES)) as store:
                store.put_many(keys, rows)
                trouble = store.stats.trouble
        except EdlError as error:
            trouble = f"{type(error).__name__}: {error}"
        print(trouble, flush=True)
    return 0


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    sys.exit(open_each() if what == "open" else fill(arguments[0], int(arguments[1]), arguments[2]))
