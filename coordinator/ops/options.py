"""Options that commands such as `edl status` share: the mesh, and the output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...runtime.errors import UsageError
from ...runtime.standard_streams import escape_control_characters

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

    from ..contexts import ContextFile, MeshContext

_PLAIN_WIDTH = 100  # columns of output to a file or a pipe
#: Variables for fields of a context; read only if a URL names the mesh, or no context is in use.
#: The library of Kubernetes reads KUBECONFIG itself if a context names no kubeconfig.
FIELD_VARIABLES: Final = {
    "tls_ca": "EDL_TLS_CA",
    "tls_cert": "EDL_TLS_CERT",
    "tls_key": "EDL_TLS_KEY",
    "token_file": "EDL_TOKEN_FILE",
    "jobs_on": "EDL_JOBS_ON",
    "queue": "EDL_QUEUE",
    "kubeconfig": "KUBECONFIG",
}


def source_of(ctx: typer.Context, parameter: str) -> str:
    """Return the source of a parameter's value: COMMANDLINE, ENVIRONMENT, DEFAULT; "": unknown."""
    source = ctx.get_parameter_source(parameter)
    return "" if source is None else source.name


class _NameOrUrl:
    """Parser of the option that names the mesh, with the variables that replace it."""

    __name__ = "NAME|URL"
    variables: Final = {
        "EDL_COORDINATOR": "Redis URL of the mesh to use.",
        "EDL_CONTEXT": "Name of the mesh to use, in `edl get contexts`.",
    }

    def __call__(self, text: str) -> str:
        return text


Mesh = Annotated[
    list[str] | None,
    typer.Option(
        "--context",
        "--redis",
        metavar="NAME|URL",
        parser=_NameOrUrl(),
        autocompletion=lambda: _context_names(),
        help="Use this mesh: its name in `edl get contexts`, or its Redis URL. Default: "
        "EDL_COORDINATOR, else EDL_CONTEXT, else the current context.",
    ),
]
Service = Annotated[str, typer.Option(help="Only this service. Default: all services.")]


def context_file() -> ContextFile:
    """Return the file of contexts: EDL_CONFIG, else edl-dist/contexts.yaml in the config folder.

    That folder is XDG_CONFIG_HOME, else ~/.config. Raises UsageError if the user has no home.
    """
    from ..contexts import ContextFile

    if path := os.environ.get("EDL_CONFIG"):
        return ContextFile(Path(path).absolute())
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


def mesh_context(named: Sequence[str] | None) -> MeshContext:
    """Return how to reach the mesh that the options, or else the variables, name.

    With a context, the variables for credentials are ignored: they belong to a mesh that a URL
    names. So no credential is sent to another mesh.

    Args:
        named: values of the option `Mesh`.

    Raises:
        UsageError: there is no such context, its file is invalid, two meshes are named, or the name
            is empty.
    """
    from ..config import DEFAULT_URL
    from ..contexts import PATHS, MeshContext

    if len(named or ()) > 1:
        raise UsageError("give --context or --redis, not both, and only once")
    if named and not named[0]:  # an unset variable of a script must not mean the current context
        raise UsageError("--context and --redis expect the name or the URL of a mesh, got nothing")
    mesh = named[0] if named else next(filter(None, map(os.environ.get, _NameOrUrl.variables)), "")
    if "://" not in mesh:
        contexts = context_file().read()
        if chosen := mesh or contexts.current:
            return contexts.get(chosen)

    given = {name: os.environ.get(variable) for name, variable in FIELD_VARIABLES.items()}
    settings: dict[str, Any] = {
        name: Path(value) if name in PATHS else value for name, value in given.items() if value
    }
    return MeshContext(mesh or DEFAULT_URL, **settings)


def console() -> Console:
    """Return the console for tables; its width is that of the terminal, or fixed for a file.

    It shows control characters in texts instead of sending them to the terminal.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class EscapingConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(escape_control_characters(segment.text), segment.style)

    standard = EscapingConsole()
    return standard if standard.is_terminal else EscapingConsole(width=_PLAIN_WIDTH)


def quiet_grpc() -> None:
    """Turn off log lines of gRPC, mostly about sockets: our errors explain the problems."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
