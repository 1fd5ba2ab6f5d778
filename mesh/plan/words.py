"""Times, sizes and sums of money as people read them."""

from __future__ import annotations


def span(seconds: float) -> str:
    """A time in two units at most."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 120:
        return f"{int(minutes)} min {int(seconds % 60):02} s"
    if hours < 48:
        return f"{int(hours)} h {int(minutes % 60):02} min"
    return f"{int(hours / 24)} d {int(hours % 24):02} h"


def size(size_bytes: float) -> str:
    """Bytes in the unit that leaves few digits."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.3g} GiB" if size_bytes < 1000 else f"{size_bytes:,.0f} GiB"


def rate(samples_per_s: float) -> str:
    """Samples per second, three digits at least."""
    if samples_per_s == float("inf"):
        return "any"
    return f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"


def figure(value: float) -> str:
    """A number of any size, without zeros that say nothing."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.6g}"
