"""The command `edl status`: who is alive, and who serves whom."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ...errors import UsageError
from ...proto.security.options import TlsCa, TlsCert, TlsKey, TokenFile, client_security
from ..config import DEFAULT_URL
from .options import Coordinator, Service, console, quiet_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from ...proto import coordinator_pb2 as pb

_REFRESH_S: Final = 1.0
#: Rows of a table that people still read.
_ROWS: Final = 40


def status(
    service: Service = "",
    all_: Annotated[
        bool,
        typer.Option("--all", help=f"Show every member, not the first {_ROWS} that need a look."),
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON of all; see coordinator/ops/status_view.py."),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh each second until Ctrl-C.")] = (
        False
    ),
    coordinator: Coordinator = DEFAULT_URL,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
) -> None:
    """Show teachers, students, and who serves whom."""
    quiet_grpc()
    from ..calling.client import fetch_status

    ask = partial(
        fetch_status,
        coordinator,
        service,
        max_members=0 if all_ or json else _ROWS,
        security=client_security(tls_ca, tls_cert, tls_key, token_file),
    )
    try:
        if json:
            _print_json(ask, service, watch)
        elif watch:
            _watch(ask, service)
        else:
            from .status_view import render

            console().print(render(_found(ask(), service), service))
    except KeyboardInterrupt:
        if not watch:  # which is ended in no other way
            raise


def _found(mesh: pb.MeshStatus, service: str) -> pb.MeshStatus:
    if service and not mesh.services:
        raise UsageError(f"there is no service {service!r}: 'edl service list' shows all")
    return mesh


def _print_json(ask: Callable[[], pb.MeshStatus], service: str, again: bool) -> None:
    """One document; with `again`, one in a line each second."""
    import json
    import time

    from .status_view import to_json

    if not again:
        print(json.dumps(to_json(_found(ask(), service)), indent=2))
        return
    while True:
        print(json.dumps(to_json(ask())), flush=True)
        time.sleep(_REFRESH_S)


def _watch(ask: Callable[[], pb.MeshStatus], service: str) -> None:
    import time

    from rich.live import Live
    from rich.text import Text

    from ...errors import UnavailableError
    from .status_view import render

    def look() -> RenderableType:
        try:
            return render(ask(), service)
        except UnavailableError as error:  # it may come back
            return Text(str(error), style="bold red")

    out = console()
    first = render(ask(), service)
    if not out.is_terminal:  # a file, a pipe: one table after another
        out.print(first)
        while True:
            time.sleep(_REFRESH_S)
            out.print(look())
    with Live(first, console=out, auto_refresh=False) as live:
        while True:
            time.sleep(_REFRESH_S)
            live.update(look(), refresh=True)
