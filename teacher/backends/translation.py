"""Errors of a run, as ours: which may do elsewhere or later, and which will never do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import EdlError, RequestRefused, RetryableError

#: Words by which frameworks tell a device or a memory that failed, where the class does not.
_OF_RESOURCES = ("out of memory", "allocate", "alloc_", "cuda", "cudnn", "cublas")


def lacks_resources(error: Exception) -> bool:
    """Whether `error` tells of the device or its memory rather than of the values given."""
    if isinstance(error, MemoryError | OSError | SystemError):
        return True
    said = str(error).lower()
    return any(word in said for word in _OF_RESOURCES)


@contextmanager
def translated(
    doing: str,
    passing: Callable[[Exception], bool] = lacks_resources,
    line: Callable[[BaseException], str] = lambda error: first_line(error),
) -> Iterator[None]:
    """Turn what the block raises into one of our errors; ours go through as they are.

    Args:
        doing: what failed, in words.
        passing: whether the same values may do elsewhere, or later.
        line: one line of what an error says.

    Raises:
        RetryableError: the device or its memory failed.
        RequestRefused: anything else is about the values that were given.
    """
    try:
        yield
    except EdlError:
        raise
    except Exception as error:  # frameworks and the user's own code may raise anything
        kind = RetryableError if passing(error) else RequestRefused
        raise kind(f"{doing} failed: {line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)
