"""Reads the sizes of batches as a command line has them: `--micro-batch`, `--batch-...`."""

from __future__ import annotations

from ..errors import UsageError
from ..scheduler.batching import BatchRule

#: The micro-batch is measured.
AUTO = "auto"


def parse_micro_batch(text: str) -> int | None:
    """A number of samples, or None for "auto"; raises UsageError."""
    if text.strip().lower() == AUTO:
        return None
    return _size(text, f"--micro-batch is a number of samples or {AUTO!r}")


def parse_sizes(text: str, option: str) -> tuple[int, ...]:
    """Numbers of samples with commas between them, each once, ascending; raises UsageError."""
    sizes = {_size(part, f"{option} is a list of sizes, as 1,2,4") for part in text.split(",")}
    return tuple(sorted(sizes))


def parse_batching(max_samples: int, max_delay_s: float, preferred: str) -> BatchRule:
    """The rule by which requests are merged.

    Args:
        max_samples: of one batch; 0: nothing is merged.
        max_delay_s: longest wait for others.
        preferred: sizes with commas between them, or nothing.

    Raises:
        UsageError: one of them is no size or time, or a preferred size is above the largest.
    """
    sizes = frozenset(
        _size(part, "--batch-preferred is a list of sizes, as 8,16")
        for part in preferred.split(",")
        if part.strip()
    )
    if sizes and not max_samples:
        raise UsageError("--batch-preferred is for merged requests: name --batch-max too")
    try:
        return BatchRule(max_samples, max_delay_s if max_samples else 0.0, sizes)
    except ValueError as error:
        raise UsageError(f"batching: {error}") from None


def _size(text: str, expected: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
        raise UsageError(f"{expected}, not {digits!r}")
    return int(digits)
