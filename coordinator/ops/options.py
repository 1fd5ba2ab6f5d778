"""Options that the commands of operators share: the mesh, and the output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...runtime.errors import UsageError
from ...runtime.standard_streams import escape_control_characters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

    from ..contexts import ContextFile, MeshContext

_PLAIN_WIDTH = 100  # columns of output to a file or a pipe
#: Variables for fields of a context; read if a URL names the mesh, or there is no context.
FIELD_VARIABLES: Final = {
    "tls_ca": "EDL_TLS_CA",
    "tls_cert": "EDL_TLS_CERT",
    "tls_key": "EDL_TLS_KEY",
    "token_file": "EDL_TOKEN_FILE",
    "jobs_on": "EDL_JOBS_ON",
    "queue": "EDL_QUEUE",
    "kubeconfig": "KUBECONFIG",
}


def _one_mesh(ctx: typer.Context, url: str) -> str:
    """Prefer a flag to a variable, and EDL_COORDINATOR to EDL_CONTEXT."""
    if url and ctx.params.get("context"):
        if source_of(ctx, "context") == "COMMANDLINE":
            if source_of(ctx, "coordinator") == "COMMANDLINE":
                raise UsageError("give --context or --redis, not both")
            return ""
        ctx.params["context"] = ""
    return url


def source_of(ctx: typer.Context, parameter: str) -> str:
    """Return where the value of a parameter is from: COMMANDLINE, ENVIRONMENT, DEFAULT."""
    source = ctx.get_parameter_source(parameter)
    return "" if source is None else source.name


MeshName = Annotated[
    str,
    typer.Option(
        "--context",
        envvar="EDL_CONTEXT",
        metavar="NAME",
        is_eager=True,  # before --redis, whose callback reads it
        autocompletion=lambda: _context_names(),
        help="Use the mesh of this name in `edl get contexts`. Default: the current one.",
    ),
]
Coordinator = Annotated[
    str,
    typer.Option(
        "--redis",
        envvar="EDL_COORDINATOR",
        metavar="URL",
        callback=_one_mesh,
        help="Use the mesh with this Redis URL, in place of a context.",
    ),
]
Service = Annotated[str, typer.Option(help="Show this service only. Default: all.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def context_file() -> ContextFile:
    """Return the file of contexts: EDL_CONFIG, or ~/.config/edl-dist/contexts.yaml."""
    from ..contexts import ContextFile

    if named := os.environ.get("EDL_CONFIG"):
        return ContextFile(Path(named).absolute())
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".config"
    except RuntimeError:
        raise UsageError("this user has no home folder: name the file in EDL_CONFIG") from None
    return ContextFile(folder / "edl-dist" / "contexts.yaml")


def _context_names() -> list[str]:
    try:
        return list(context_file().read().named)
    except UsageError:
        return []


def mesh_context(name: str, coordinator: str) -> MeshContext:
    """Return how to reach the mesh that the options name.

    A context is used whole: variables for credentials belong to a URL of `--redis` or
    EDL_COORDINATOR, so no credential goes to another mesh than its own.

    Raises:
        UsageError: there is no such context, or its file is invalid.
    """
    from ..config import DEFAULT_URL
    from ..contexts import PATHS, MeshContext

    if not coordinator:
        contexts = context_file().read()
        if chosen := name or contexts.current:
            return contexts.get(chosen)

    given = {name: os.environ.get(variable) for name, variable in FIELD_VARIABLES.items()}
    settings: dict[str, Any] = {
        name: Path(value) if name in PATHS else value for name, value in given.items() if value
    }
    return MeshContext(coordinator or DEFAULT_URL, **settings)


def console() -> Console:
    """Return the console for tables; its width is that of the terminal, or fixed for a file.

    It shows control characters in texts instead of sending them to the terminal.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Harmless(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for one in super().render(renderable, options):
                yield (
                    one if one.control else Segment(escape_control_characters(one.text), one.style)
                )

    found = Harmless()
    return found if found.is_terminal else Harmless(width=_PLAIN_WIDTH)


def quiet_grpc() -> None:
    """Turn off log lines of gRPC about sockets; our errors explain them."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
