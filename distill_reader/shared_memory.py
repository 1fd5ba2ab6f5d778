"""When the system gives a reader no more shared memory: the error, which says what to do."""

from __future__ import annotations

from ..errors import MemoryRefused
from ..proto.arena import Arena


def refused(arena: Arena, error: OSError) -> MemoryRefused:
    """What to raise in place of what `Arena.allocate` has raised."""
    return MemoryRefused(
        f"the system gives the reader no more than {arena.size_bytes >> 20} MiB of shared memory"
        f" ({error}): lower upper_bytes or the size of batches, or raise its limits (`ulimit -f`,"
        " `ulimit -v`, the memory of the container)"
    )
