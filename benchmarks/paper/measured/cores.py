"""Division of this machine's cores between the student and everything else."""

from __future__ import annotations

from ....mesh.cores import available_cores


def divided(students: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return `students` cores for the student, and the others.

    If that leaves no others, both are all cores.
    """
    cores = tuple(sorted(available_cores()))
    if students >= len(cores):
        return cores, cores
    return cores[-students:], cores[:-students]
