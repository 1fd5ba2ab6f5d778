"""The options that the commands of operators share, and how they print."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ...runtime.standard_streams import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

_PLAIN_WIDTH = 100  # of what goes to a file or a pipe

Coordinator = Annotated[str, typer.Option(envvar="EDL_COORDINATOR", help="Redis URL of the mesh.")]
Service = Annotated[str, typer.Option(help="This service only.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def console() -> Console:
    """Where tables go: as wide as the terminal, or wide enough for a file.

    What others wrote into them steers no terminal.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Harmless(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for one in super().render(renderable, options):
                yield one if one.control else Segment(visible(one.text), one.style)

    found = Harmless()
    return found if found.is_terminal else Harmless(width=_PLAIN_WIDTH)


def quiet_grpc() -> None:
    """Its own lines about sockets are for its developers; ours say what they mean."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
