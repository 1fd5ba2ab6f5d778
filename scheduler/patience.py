"""How long a stream without any teacher is waited for."""

from __future__ import annotations


def is_over(no_teacher_since: float | None, now: float, timeout_s: float | None) -> bool:
    """Whether a student that has had no usable teacher since then is to be told so.

    Args:
        no_teacher_since: when the last usable teacher went, in seconds; None while there is one.
        now: the time, on the same clock.
        timeout_s: the wait that the user allows; None waits for ever.
    """
    if no_teacher_since is None or timeout_s is None:
        return False
    return now - no_teacher_since >= timeout_s
