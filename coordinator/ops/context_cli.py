"""The commands `edl context add|use`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...proto.security.options import TlsKeys
from ...runtime.errors import UsageError
from ...runtime.structured_option import Given, StructuredOption
from ..config import DEFAULT_URL
from ..contexts import MeshContext
from ..store.redis_url import parse
from .options import context_file

#: Without variables: they are of other meshes.
TLS = StructuredOption("--tls", TlsKeys, variables=False)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@app.callback()
def context() -> None:
    """Contexts: how to reach a mesh, by name, in ~/.config/edl-dist/contexts.yaml.

    Commands of operators use the current context, or the one that --context names. 'edl get
    contexts' lists them, 'edl delete context NAME' removes one.
    """


@app.command()
def add(
    name: Name,
    coordinator: Annotated[
        str, typer.Option("--redis", help="Redis URL of the mesh.")
    ] = DEFAULT_URL,
    tls: Annotated[
        list[Given] | None, TLS.option("Files of TLS; ca is that of the service managers.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the bearer token to call with.")
    ] = None,
    jobs_on: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Run elastic jobs here: queue (of a fleet, in Redis) or kubernetes[:NAMESPACE]"
            " (a cluster with the operator).",
        ),
    ] = "queue",
    queue: Annotated[
        str, typer.Option(help="Name of the queue of elastic jobs, if a mesh has more than one.")
    ] = "main",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Kubeconfig of the cluster. Default: kubectl's."),
    ] = None,
    kube_context: Annotated[
        str,
        typer.Option(metavar="NAME", help="Context of the kubeconfig. Default: its current one."),
    ] = "",
) -> None:
    """Add a context, or replace the one of this name. The first one becomes the current one.

    Nothing is contacted: 'edl doctor --context NAME' does that.
    """
    files = TLS.read(tls)
    parse(coordinator)  # raises if it is not a Redis URL
    made = MeshContext(
        coordinator=coordinator,
        tls_ca=_found(files.ca),
        tls_cert=_found(files.cert),
        tls_key=_found(files.key),
        token_file=_found(token_file),
        jobs_on=jobs_on,
        queue=queue,
        kubeconfig=_found(kubeconfig),
        kube_context=kube_context,
    )
    made.security()  # raises if the files do not fit together
    file = context_file()
    contexts = file.read().add(name, made)
    file.write(contexts)
    use = "" if contexts.current == name else f"; 'edl context use {name}' makes it the current one"
    typer.echo(f"context {name} is in {file.path}{use}")


@app.command()
def use(name: Name) -> None:
    """Make a context the current one."""
    file = context_file()
    file.write(file.read().use(name))
    typer.echo(f"context {name} is the current one")


def _found(path: Path | None) -> Path | None:
    """Return the absolute path of a file, which the context keeps."""
    if path is None:
        return None
    if not path.expanduser().is_file():
        raise UsageError(f"there is no file {path}")
    return path.expanduser().absolute()
