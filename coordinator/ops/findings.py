"""What an examination finds: how good it is, about what, in words, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from rich.text import Text

Level = Literal["well", "doubt", "wrong"]

_MARKS: Final[dict[Level, tuple[str, str]]] = {
    "well": ("ok   ", "green"),
    "doubt": ("hm   ", "yellow"),
    "wrong": ("WRONG", "bold red"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: "well", "doubt" (it works, and an operator should know) or "wrong".
        about: what was looked at.
        text: what was found.
        advice: what to do; empty where there is nothing to do.
    """

    level: Level
    about: str
    text: str
    advice: str = ""


def well(about: str, text: str) -> Finding:
    """As it should be."""
    return Finding("well", about, text)


def doubt(about: str, text: str, advice: str = "") -> Finding:
    """It works, and an operator should know."""
    return Finding("doubt", about, text, advice)


def wrong(about: str, text: str, advice: str = "") -> Finding:
    """It does not work."""
    return Finding("wrong", about, text, advice)


def to_json(finding: Finding) -> dict[str, Any]:
    """Its fields."""
    return asdict(finding)


def render(finding: Finding) -> Text:
    """One line; the advice in a second one."""
    from rich.text import Text

    mark, style = _MARKS[finding.level]
    line = Text.assemble((mark, style), " ", (f"{finding.about}: ", "bold"), finding.text)
    if finding.advice:
        line.append(f"\n        {finding.advice}", style="dim")
    return line
