"""Events of the log and findings as lines or JSON; tables for the views."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from ...proto import coordinator_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.table import Table
    from rich.text import Text

_T = TypeVar("_T")
Columns = Mapping[str, Callable[[_T], "str | Text"]]

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
    fields = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            value = dict(value) if isinstance(value, Mapping) else list(value)
        fields[field.name] = value
    return fields


def event_json(event: pb.Event) -> str:
    """Return all fields of message `Event` as JSON in one line."""
    return json.dumps(message_fields(event))


def event_text(event: pb.Event) -> Text:
    """Return an event as a line: time, service, kind, subject, reason, and changed teachers."""
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
    changes = [f"+{name}" for name in event.after if name not in before]
    changes += [f"-{name}" for name in event.before if name not in after]
    return f"  [{' '.join(changes)}]" if changes else ""


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
        level: "well", "doubt" (it works, but users should know) or "wrong".
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
    """Return a finding as a line, with its advice in a second line."""
    from rich.text import Text

    mark, style = _MARKS[finding.level]
    line = Text.assemble((mark, style), " ", (f"{finding.about}: ", "bold"), finding.text)
    if finding.advice:
        line.append(f"\n        {finding.advice}", style="dim")
    return line


def table_of(
    rows: Iterable[_T],
    columns: Columns[_T],
    numbers: Collection[str] = (),
    *,
    gap: int = 2,
    style: Callable[[_T], str] = lambda row: "",
) -> Table:
    """Return a table.

    Args:
        rows: one object for each row.
        columns: head -> function that returns the cell of a row. Brackets in plain texts are no
            markup.
        numbers: heads of the columns with numbers.
        gap: blanks between columns.
        style: returns the style of a row.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold dim")
    for head in columns:
        if head in numbers:
            table.add_column(head, justify="right", no_wrap=True)
        else:
            table.add_column(head, overflow="fold")
    for row in rows:
        cells = [cell(row) for cell in columns.values()]
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        table.add_row(*texts, style=style(row))
    return table
