"""Output of a child: its last lines in memory, and all of it in a log file if one is named."""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)

#: Lines kept in memory per child.
TAIL_LINES = 1000
#: Longest line in bytes; longer lines are split.
LINE_BYTES = 8192


class Output:
    """Splits a stream of bytes into lines. Not thread-safe: the owner locks.

    Attributes:
        lines: the last `TAIL_LINES` lines, without line ends.
        count: number of lines so far, including those no longer in `lines`.
    """

    def __init__(self, name: str, path: Path | None) -> None:
        self.lines: deque[str] = deque(maxlen=TAIL_LINES)
        self.count = 0
        self._name = name
        self._partial = b""
        self._file: BinaryIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def feed(self, data: bytes) -> list[str]:
        """Add `data`; return the lines that are complete now."""
        self._write(data)
        *lines, self._partial = [
            line[at : at + LINE_BYTES]
            for line in (self._partial + data).split(b"\n")
            for at in range(0, max(1, len(line)), LINE_BYTES)
        ]
        return self._add(lines)

    def close(self) -> list[str]:
        """Close the log file; return the last line if it had no line end."""
        last, self._partial = self._partial, b""
        self._close_file()
        return self._add([last] if last else [])

    def since(self, count: int) -> list[str]:
        """Return the lines after the first `count`, as far as they are still kept."""
        new = min(self.count - count, len(self.lines))
        return list(self.lines)[len(self.lines) - new :]

    def _add(self, raw: list[bytes]) -> list[str]:
        lines = [line.rstrip(b"\r").decode("utf-8", "replace") for line in raw]
        self.lines.extend(lines)
        self.count += len(lines)
        return lines

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as error:  # on a full disk, continue to read: else the child blocks
            log.warning("the log of %s ends here: %s", self._name, error)
            self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # a network file system may report a full disk only now
                log.warning("the log of %s may lack its end: %s", self._name, error)
