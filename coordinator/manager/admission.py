"""How a teacher is probed before students hear of it, and who is asked to do that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ..registry import Member


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe found.

    Attributes:
        ok: the teacher is who it says, and answers.
        retry: when not `ok`: it may be later, so it is worth probing again.
        why: the reason of a refusal, in words; empty when `ok`.
    """

    ok: bool
    retry: bool = False
    why: str = ""

    @property
    def word(self) -> Literal["ok", "retry", "never"]:
        """The same in one word."""
        if self.ok:
            return "ok"
        return "retry" if self.retry else "never"


class Prober(Protocol):
    """Calls teachers."""

    def probe(self, service: str, member: Member, done: Callable[[Verdict], None]) -> None:
        """Begin to probe one teacher, without blocking; `done` is called once, in any thread."""
        ...
