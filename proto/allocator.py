"""Tells glibc to keep big buffers instead of giving each back to the kernel after use.

By default every buffer of some megabytes is mapped afresh and its pages are zeroed one fault at a
time: two thirds of the time that a 19 MB message takes. Processes of ours that move batches (the
teacher's two, the reader's engine) call this once at their start; a user's process is not
ours to tune.
"""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_KEEP_BELOW_BYTES = 1 << 30
#: The most that older versions of glibc take as mmap threshold.
_KEEP_BELOW_BYTES_AT_LEAST = 32 << 20
_TRIM_ABOVE_BYTES = (1 << 31) - 1


def tune_allocator() -> bool:
    """Keep freed buffers of up to 1 GiB in this process; it then holds as much as it ever needed.

    Returns:
        Whether it had an effect: it does with glibc only.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    kept = mallopt(_M_MMAP_THRESHOLD, _KEEP_BELOW_BYTES) or mallopt(
        _M_MMAP_THRESHOLD, _KEEP_BELOW_BYTES_AT_LEAST
    )
    return bool(kept and mallopt(_M_TRIM_THRESHOLD, _TRIM_ABOVE_BYTES))
