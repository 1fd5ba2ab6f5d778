"""The options that the commands of jobs share."""

from __future__ import annotations

from typing import Annotated

import typer

Queue = Annotated[
    str,
    typer.Option(envvar="EDL_QUEUE", help="Name of the queue, where a mesh has more than one."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the job, as in `edl job list`.")]
