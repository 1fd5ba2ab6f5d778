"""Opens each store that it is told of: paths on stdin, a line each; what went wrong on stdout."""

from __future__ import annotations

import sys

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.store import Store
from edl.errors import EdlError
from edl.tests.distill_reader.store.samples import rows_in, sample_keys

BUDGET_BYTES = 1 << 20


def main() -> None:
    keys, rows = sample_keys(range(4)), rows_in(None, range(4))
    for line in sys.stdin:
        try:
            with Store(LabelStore(line.strip(), BUDGET_BYTES)) as store:
                store.put_many(keys, rows)
                trouble = store.figures.trouble
        except EdlError as error:
            trouble = f"{type(error).__name__}: {error}"
        print(trouble, flush=True)


if __name__ == "__main__":
    main()
