"""Logging of our processes: one line per record on stderr, as text or JSON.

A record may name its subjects: `log.info(..., extra={"teacher": name})` with keys of `KEYS`. In a
JSON record, these and the identity of the process (`add_log_fields`) are separate fields, so that a
batch can be traced from its student through its teachers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from .errors import UsageError
from .standard_streams import escape_control_characters

#: Environment variable: "text" or "json". Child processes inherit it.
FORMAT_VARIABLE: Final = "EDL_LOG_FORMAT"
#: Environment variable: "debug", "info", ..., the level of all processes of EDL-Dist.
LEVEL_VARIABLE: Final = "EDL_LOG_LEVEL"
#: Keys for subjects of a record. The value of "request" is STUDENT#NUMBER, the value of "batches"
#: has numbers of batches; each student numbers its own requests and batches.
KEYS: Final = ("job", "student", "service", "teacher", "request", "batches")

#: Libraries that write a debug record for each call and nothing else of use.
_VERBOSE_LIBRARIES: Final = ("grpc", "asyncio")
_TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger(__name__)

_process_fields: dict[str, str] = {}


class Fields(dict[str, object]):
    """A record that consists of named values: `log.debug(Fields(...))`."""

    def __str__(self) -> str:
        return json.dumps(self)


def configure_logging() -> None:
    """Log to stderr, with the level of `EDL_LOG_LEVEL` in the format of `EDL_LOG_FORMAT`.

    Only the main functions of processes call this. At level debug, exceptions have tracebacks.

    Raises:
        UsageError: `EDL_LOG_FORMAT` is neither "text" nor "json", or `EDL_LOG_LEVEL` is no level.
    """
    if (log_format := os.environ.get(FORMAT_VARIABLE, "")) not in ("", "text", "json"):
        raise UsageError(f"{FORMAT_VARIABLE} expects text or json, got {log_format!r:.40}")
    level = _level()
    tracebacks = level <= logging.DEBUG
    handler = logging.StreamHandler()
    handler.setFormatter(_Json(tracebacks) if is_json() else _OneLine(tracebacks))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(logging.INFO)


def is_json() -> bool:
    """Return whether log records are JSON objects."""
    return os.environ.get(FORMAT_VARIABLE) == "json"


def write_line(line: str) -> None:
    """Write a line to stderr in one piece, so that lines of several threads do not mix."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def print_progress(text: str) -> None:
    """Print a progress message to stderr: a plain line, or a JSON record.

    Text that contains `warning: ` becomes a record of the level WARNING.
    """
    if is_json():
        log.log(logging.WARNING if "warning: " in text else logging.INFO, "%s", text)
    else:
        with contextlib.suppress(OSError):  # stderr is closed, which must not end a server
            write_line(text)


def child_log_relay() -> Callable[[str], None] | None:
    """Return a function that writes log lines of a child to stderr.

    None unless the environment sets the format "json", or a level.
    """
    return write_line if is_json() or LEVEL_VARIABLE in os.environ else None


def add_log_fields(**own: str) -> None:
    """Add fields with keys of `KEYS` to all later JSON records of this process."""
    _process_fields.update(own)


def _level() -> int:
    name = os.environ.get(LEVEL_VARIABLE) or "info"
    level = logging.getLevelName(name.upper())
    if not isinstance(level, int):
        levels = "debug, info, warning, error or critical"
        raise UsageError(f"{LEVEL_VARIABLE} expects {levels}, got {name!r:.40}")
    return level


def _error_of(record: logging.LogRecord) -> str:
    """Return the exception of a record in one line; empty if there is none."""
    error = record.exc_info[1] if record.exc_info else None
    return "" if error is None else f"{type(error).__name__}: {error}"


class _Formatter(logging.Formatter):
    def __init__(self, tracebacks: bool) -> None:
        super().__init__(_TEXT_FORMAT)
        self._tracebacks = tracebacks


class _OneLine(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        if self._tracebacks:
            return escape_control_characters(super().format(record))
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        line = self.formatMessage(record)
        if error := _error_of(record):
            line += f" ({error})"
        return escape_control_characters(line.replace("\n", " | "))


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {"time": time, "level": record.levelname, "logger": record.name}
        fields |= _process_fields
        fields |= {key: getattr(record, key) for key in KEYS if hasattr(record, key)}
        if isinstance(record.msg, Fields):
            fields |= record.msg
        else:
            fields["message"] = record.getMessage()
        if error := _error_of(record):
            fields["error"] = error
            if self._tracebacks and record.exc_info:
                fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)
