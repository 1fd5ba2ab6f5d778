"""Exceptions of the user's code as one message that names the file, the function and the line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from ...errors import EdlError, JobError


def place(file: str, function: str, line: int | None) -> str:
    """Where something is wrong, to begin a message with."""
    where = file if line is None else f"{file}, line {line}"
    return f"{where}, in {function}()" if function else where


def line_in(file: str, trace: TracebackType | None) -> int | None:
    """The line of `file` that was at work, innermost, when the exception arose."""
    frame = _frame_in(file, trace)
    return None if frame is None else frame.lineno


def blamed(error: BaseException, file: str) -> BaseException:
    """An exception that arose in code of the job file, as a `JobError`; any other as it is.

    So what a model's forward pass or a data set raises, while nobody calls a function of the file,
    is told as well as what these raise.
    """
    frame = None if isinstance(error, EdlError) else _frame_in(file, error.__traceback__)
    if frame is None or not isinstance(error, Exception):
        return error
    found = JobError(f"{place(file, frame.name, frame.lineno)}: {told(error)}")
    found.__cause__ = error
    return found


def trace_of(error: BaseException, file: str) -> str:
    """The traceback of an exception; of a `JobError` what the job file has called, alone."""
    cause = error.__cause__ if isinstance(error, JobError) else None
    if cause is None:
        return "".join(traceback.format_exception(error))
    trace = traceback.TracebackException.from_exception(cause)
    files = [frame.filename for frame in trace.stack]
    del trace.stack[: files.index(file) if file in files else 0]
    return "".join(trace.format(chain=False))


def _frame_in(file: str, trace: TracebackType | None) -> traceback.FrameSummary | None:
    frames = [frame for frame in traceback.extract_tb(trace) if frame.filename == file]
    return frames[-1] if frames else None


def told(error: BaseException) -> str:
    """An exception in one line: its kind and its first words."""
    words = " ".join(str(error).split())
    shown = words if len(words) <= 400 else words[:400] + "…"
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


@contextmanager
def blaming(file: str, function: str, line: int | None) -> Iterator[None]:
    """Turn whatever the user's code raises into a `JobError`; its cause stays attached.

    Args:
        file: the job file.
        function: the function of it that runs; empty: its body.
        line: where that is defined, for exceptions that arise before any line of it ran.
    """
    try:
        yield
    except JobError:
        raise
    except (Exception, SystemExit) as error:
        at = line_in(file, error.__traceback__) or line
        raise JobError(f"{place(file, function, at)}: {told(error)}") from error
