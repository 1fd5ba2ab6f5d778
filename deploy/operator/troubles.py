"""Troubles that last are said once, not each time that somebody comes upon them."""

from __future__ import annotations

import logging
from collections.abc import Container, Hashable


class Troubles:
    """What is wrong now, by whose trouble it is. Used by one thread."""

    def __init__(self) -> None:
        self._last: dict[Hashable, str] = {}

    def level(self, whose: Hashable, error: Exception) -> int:
        """Take note of a trouble; at which level to log it.

        Returns:
            WARNING; DEBUG where the last trouble of this one was the same, and is not over.
        """
        same = self._last.get(whose) == str(error)
        self._last[whose] = str(error)
        return logging.DEBUG if same else logging.WARNING

    def over(self, whose: Hashable) -> bool:
        """It has none now; whether it had one."""
        return self._last.pop(whose, None) is not None

    def keep(self, there: Container[Hashable]) -> None:
        """Nobody else is there any more."""
        self._last = {whose: said for whose, said in self._last.items() if whose in there}
