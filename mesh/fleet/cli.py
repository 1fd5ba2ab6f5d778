"""`edl fleet ...`: start and stop processes of the mesh on one machine."""

from __future__ import annotations

import typer

from ..jobs.fleet_cli import jobs
from .local_cli import local

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def fleet() -> None:
    """Start and stop processes of the mesh on one machine, as many as are needed."""


app.command("local")(local)
app.command("jobs")(jobs)
