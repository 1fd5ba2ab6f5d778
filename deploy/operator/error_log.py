"""Logs a persistent error once, and tells which errors concern all resources."""

from __future__ import annotations

import logging
from collections.abc import Container, Hashable

from ...runtime.errors import (
    KubernetesUnavailable,
    LeaseSuperseded,
    Unauthenticated,
    UnavailableError,
)


def ends_round(error: Exception) -> bool:
    """Return whether an error at one resource would occur at all others, too."""
    if isinstance(error, KubernetesUnavailable):
        return not error.answered
    return isinstance(error, LeaseSuperseded | UnavailableError | Unauthenticated)


class ErrorLog:
    """The current error of each subject. Use it from one thread."""

    def __init__(self) -> None:
        self._last: dict[Hashable, str] = {}

    def report(
        self,
        log: logging.Logger,
        subject: Hashable,
        what: str,
        error: Exception,
        *,
        traceback: bool = False,
    ) -> None:
        """Log "what: error": as a warning if it is new for the subject, else at level debug."""
        level = logging.DEBUG if self._last.get(subject) == str(error) else logging.WARNING
        self._last[subject] = str(error)
        log.log(level, "%s: %s", what, error, exc_info=traceback)

    def clear(self, subject: Hashable) -> bool:
        """Forget the error of a subject; return whether it had one."""
        return self._last.pop(subject, None) is not None

    def retain(self, subjects: Container[Hashable]) -> None:
        """Forget all other subjects."""
        self._last = {
            subject: error for subject, error in self._last.items() if subject in subjects
        }
