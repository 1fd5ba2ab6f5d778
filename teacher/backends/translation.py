"""Errors of a run, as ours: which may do elsewhere or later, and which will never do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import DeviceOutOfMemory, EdlError, RequestRefused, RetryableError

#: Words by which frameworks tell a memory or a device that failed, where the class does not.
_OF_MEMORY = ("out of memory", "allocate", "alloc_", "bad_alloc")
_OF_DEVICES = ("cuda", "cudnn", "cublas")


def lacks_resources(error: Exception) -> bool:
    """Whether `error` tells of the device or its memory rather than of the values given."""
    if isinstance(error, MemoryError | OSError | SystemError):
        return True
    said = str(error).lower()
    return any(word in said for word in (*_OF_MEMORY, *_OF_DEVICES))


def lacks_memory(error: Exception) -> bool:
    """Whether `error`, which tells of a resource, tells of memory."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(word in said for word in _OF_MEMORY)


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
        DeviceOutOfMemory: the device has too little memory.
        RetryableError: the device failed.
        RequestRefused: anything else is about the values that were given.
    """
    try:
        yield
    except EdlError:
        raise
    except Exception as error:  # frameworks and the user's own code may raise anything
        kind: type[EdlError] = RequestRefused
        if passing(error):
            kind = DeviceOutOfMemory if lacks_memory(error) else RetryableError
        raise kind(f"{doing} failed: {line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)
