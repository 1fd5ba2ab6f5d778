"""Fills a store for as long as it lives: `filling_program PATH MAX_BYTES SEED`.

Prints the number of a lot after it was put in, each on a line; reads others meanwhile, and ends
with exit code 3 when one is wrong.
"""

from __future__ import annotations

import os
import random
import sys

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.store import Store
from edl.tests.distill_reader.store.samples import rows_in, sample_keys

LOT = 40
LOTS = 200


def numbers_of(lot: int) -> range:
    return range(lot * LOT, (lot + 1) * LOT)


def main(path: str, max_bytes: int, seed: str) -> int:
    rng = random.Random(seed)
    with Store(LabelStore(path, max_bytes)) as store:
        parent = os.getppid()
        while os.getppid() == parent:
            lot, other = rng.randrange(LOTS), rng.randrange(LOTS)
            store.put_many(sample_keys(numbers_of(lot)), rows_in(None, numbers_of(lot)))
            if store.figures.dropped or store.figures.damaged or store.figures.trouble:
                print(store.figures, file=sys.stderr)
                return 2
            print(lot, flush=True)
            rows = rows_in(None, numbers_of(other))
            found = store.get_many(sample_keys(numbers_of(other)))
            if any(one not in (None, row) for one, row in zip(found, rows, strict=True)):
                return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
