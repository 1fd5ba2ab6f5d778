"""Troubles that last are said once, not each time that somebody comes upon them."""

from __future__ import annotations

import logging
from collections.abc import Container, Hashable


class Troubles:
    """What is wrong now, by whose trouble it is. Used by one thread."""

    def __init__(self) -> None:
        self._last: dict[Hashable, str] = {}

    def tell(
        self,
        log: logging.Logger,
        whose: Hashable,
        what: str,
        error: Exception,
        *,
        traceback: bool = False,
    ) -> None:
        """Log "what: error" as a warning; for debugging only where it is still the same trouble."""
        level = logging.DEBUG if self._last.get(whose) == str(error) else logging.WARNING
        self._last[whose] = str(error)
        log.log(level, "%s: %s", what, error, exc_info=traceback)

    def over(self, whose: Hashable) -> bool:
        """It has none now; whether it had one."""
        return self._last.pop(whose, None) is not None

    def keep(self, there: Container[Hashable]) -> None:
        """Nobody else is there any more."""
        self._last = {whose: said for whose, said in self._last.items() if whose in there}
