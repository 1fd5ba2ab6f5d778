"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from .picture import Picture

_COUNTS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def count(value: float) -> str:
    """12.3, 4.1k, 2.0M."""
    for size, unit in _COUNTS:
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def size(value: int) -> str:
    """12 MiB."""
    for unit, name in _BYTES:
        if value >= unit:
            return f"{value / unit:.0f} {name}"
    return f"{value} B"


def duration(seconds: float) -> str:
    """1:02:03, 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def figures(values: Mapping[str, float]) -> Iterator[str]:
    """Each with its name: total 1.234; the total first."""
    for name in sorted(values, key=lambda name: name != "total"):
        yield f"{name} {values[name]:.4g}"


def parts(picture: Picture) -> Iterator[str]:
    """All of a picture but how far it is: what stands behind the bar, or makes up a line."""
    yield from figures(picture.losses)
    yield from (f"{name} {value:.4g}" for name, value in picture.metrics.items())
    if picture.samples_per_s:
        yield f"{count(picture.samples_per_s)} samples/s"
    if picture.world > 1:
        yield f"{picture.world} ranks"
    if (told := teachers(picture)) is not None:
        yield told
    if (volume := picture.buffer) is not None:
        yield f"buffer {100 * volume[0] // volume[1]}% of {size(volume[1])}"
    if remaining := picture.remaining_s:
        yield f"ETA {duration(remaining)}"


def teachers(picture: Picture) -> str | None:
    """Of those that are wanted, how many there are: teachers 3/4."""
    if picture.teachers is None:
        return None
    has, wanted = picture.teachers
    return f"teachers {has}/{wanted}" if wanted else f"teachers {has}"


def place(picture: Picture) -> str:
    """How far it is: step 120/500  epoch 3."""
    of = f"/{picture.steps}" if picture.steps else ""
    return f"step {picture.step}{of}  epoch {picture.epoch}"
