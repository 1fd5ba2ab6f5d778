"""Which cores of this machine are the student's, and which do everything else."""

from __future__ import annotations

from ....mesh.cores import available_cores


def divided(students: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """So many cores for the student, and the others; all for both where there are too few."""
    cores = tuple(sorted(available_cores()))
    if students >= len(cores):
        return cores, cores
    return cores[-students:], cores[:-students]
