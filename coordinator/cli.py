"""Command lines: `edl coordinator serve` and `edl status`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ..lifecycle import configure_logging, run_cli, stop_on_signals
from ..supervise import end_with_parent
from .config import DEFAULT_TTL_S, DEFAULT_URL, ManagerConfig

if TYPE_CHECKING:
    from rich.console import Console

_REFRESH_S = 1.0
_PLAIN_WIDTH = 160  # of tables that go to a file or a pipe

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def coordinator() -> None:
    """Who is alive, and who serves whom."""


@app.command()
def serve(
    redis: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_REDIS", help="URL of a running Redis or Valkey. Default: start one."
        ),
    ] = None,
    redis_port: Annotated[
        int | None,
        typer.Option(
            envvar="EDL_REDIS_PORT",
            min=0,
            max=65535,
            help="Port of the Redis that is started; 0: any free. Default: 6379, or any if taken.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(envvar="EDL_HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(envvar="EDL_PORT", min=0, max=65535, help="Port of the manager; 0: any free."),
    ] = 0,
    advertise: Annotated[
        str | None,
        typer.Option(envvar="EDL_ADVERTISE", help="Host name that others reach this machine by."),
    ] = None,
    ttl: Annotated[
        float,
        typer.Option(envvar="EDL_TTL", help="Seconds without a sign of life until one is dead."),
    ] = DEFAULT_TTL_S,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without credentials.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
) -> None:
    """Run a service manager, and a Redis unless one is named, until SIGTERM or Ctrl-C."""
    end_with_parent()
    configure_logging(verbose)
    _quiet_grpc()
    from .serve import ServeConfig
    from .serve import serve as run

    config = ServeConfig(
        redis=redis,
        redis_port=redis_port,
        host=host,
        port=port,
        advertise=advertise,
        insecure=insecure,
        manager=ManagerConfig(ttl_s=ttl),
    )

    def announce(url: str, address: str) -> None:
        typer.echo(f"coordinator ready: {url} manager {address}")

    with stop_on_signals() as stop:
        run(config, stop, announce)


def status(
    coordinator: Annotated[
        str, typer.Option(envvar="EDL_COORDINATOR", help="Redis URL of the mesh.")
    ] = DEFAULT_URL,
    service: Annotated[str, typer.Option(help="Show this service only.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON; see coordinator/status.py.")] = (
        False
    ),
    watch: Annotated[bool, typer.Option("--watch", help="Refresh each second until Ctrl-C.")] = (
        False
    ),
) -> None:
    """Show teachers, students, and who serves whom."""
    _quiet_grpc()
    try:
        if json:
            _print_json(coordinator, service, watch)
        elif watch:
            _watch(coordinator, service)
        else:
            from .client import fetch_status
            from .status import render

            _console().print(render(fetch_status(coordinator, service), service))
    except KeyboardInterrupt:
        if not watch:  # which is ended in no other way
            raise


def _print_json(url: str, service: str, again: bool) -> None:
    """One document; with `again`, one in a line each second."""
    import json
    import time

    from .client import fetch_status
    from .status import to_json

    while True:
        document = to_json(fetch_status(url, service))
        print(json.dumps(document, indent=None if again else 2), flush=True)
        if not again:
            return
        time.sleep(_REFRESH_S)


def _watch(url: str, service: str) -> None:
    import time

    from rich.live import Live
    from rich.text import Text

    from ..errors import UnavailableError
    from .client import fetch_status
    from .status import render

    with Live(
        render(fetch_status(url, service), service), console=_console(), auto_refresh=False
    ) as live:
        while True:
            time.sleep(_REFRESH_S)
            try:
                live.update(render(fetch_status(url, service), service), refresh=True)
            except UnavailableError as error:  # it may come back
                live.update(Text(str(error), style="bold red"), refresh=True)


def _quiet_grpc() -> None:
    """Its own lines about sockets are for its developers; ours say what they mean."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def main() -> None:
    """`python -m edl.coordinator.cli`."""
    run_cli(app)


if __name__ == "__main__":
    main()
