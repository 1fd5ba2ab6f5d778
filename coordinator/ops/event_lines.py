"""One event of the log as a line for people, or as a line of JSON for programs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from ...proto import coordinator_pb2 as pb

if TYPE_CHECKING:
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


def to_json(event: pb.Event) -> str:
    """One line; the fields of message `Event`, none left out."""
    return json.dumps(
        {
            field.name: list(value) if field.is_repeated else value
            for field in event.DESCRIPTOR.fields
            for value in (getattr(event, field.name),)
        }
    )


def to_text(event: pb.Event) -> Text:
    """When, in which service, what, about whom, why; and which teachers came and went."""
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
