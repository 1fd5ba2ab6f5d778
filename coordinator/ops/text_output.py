"""Events of the log and findings as lines or as JSON, and the tables of views."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from ...proto import coordinator_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.table import Table
    from rich.text import Text

_STYLES: Final = {
    "registered": "green",
    "subscribed": "green",
    "steady": "green",
    "assigned": "cyan",
    "draining": "yellow",
    "left": "yellow",
    "gone": "yellow",
    "recovery": "yellow",
    "lost": "bold red",
    "refused": "bold red",
    "starved": "bold red",
    "leader": "magenta",
    "upgrade": "magenta",
    "placed": "cyan",
    "scaled": "magenta",
    "released": "yellow",
    "failed": "bold red",
}
_KIND_WIDTH: Final = max(map(len, _STYLES))


def message_fields(message: Message) -> dict[str, Any]:
    """Return all fields of a message, with lists and dicts for repeated ones and maps."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            value = dict(value) if isinstance(value, Mapping) else list(value)
        found[field.name] = value
    return found


def event_json(event: pb.Event) -> str:
    """Return all fields of message `Event` as JSON in one line."""
    return json.dumps(message_fields(event))


def event_text(event: pb.Event) -> Text:
    """Return time, service, kind, subject and reason, and which teachers were assigned or taken."""
    from rich.text import Text

    seconds, ms = divmod(event.time_ms, 1000)
    line = Text(f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{ms:03d} ", style="dim")
    line.append(f"{event.service} ")
    line.append(f"{event.kind:{_KIND_WIDTH}} ", style=_STYLES.get(event.kind, ""))
    line.append(event.subject, style="bold")
    line.append(f"  {event.text}")
    if event.kind == "assigned":
        line.append(_moves(event), style="dim")
    return line


def _moves(event: pb.Event) -> str:
    before, after = set(event.before), set(event.after)
    signed = [f"+{name}" for name in event.after if name not in before]
    signed += [f"-{name}" for name in event.before if name not in after]
    return f"  [{' '.join(signed)}]" if signed else ""


Level = Literal["well", "doubt", "wrong"]

_MARKS: Final[dict[Level, tuple[str, str]]] = {
    "well": ("ok   ", "green"),
    "doubt": ("hm   ", "yellow"),
    "wrong": ("WRONG", "bold red"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: "well", "doubt" (it works, and an operator should know) or "wrong".
        about: what was checked.
        text: result, as text.
        advice: what to do; empty: nothing.
    """

    level: Level
    about: str
    text: str
    advice: str = ""


well = partial(Finding, "well")
doubt = partial(Finding, "doubt")
wrong = partial(Finding, "wrong")


def finding_text(finding: Finding) -> Text:
    """Return a line, and the advice in a second one."""
    from rich.text import Text

    mark, style = _MARKS[finding.level]
    line = Text.assemble((mark, style), " ", (f"{finding.about}: ", "bold"), finding.text)
    if finding.advice:
        line.append(f"\n        {finding.advice}", style="dim")
    return line


def plain_table(heads: Sequence[str], right: Collection[str]) -> Table:
    """Return an empty table with these heads; the columns of `right` have numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    return table


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of plain texts: brackets in them are no markup."""
    from rich.text import Text

    table.add_row(*map(Text, cells), style=style)
