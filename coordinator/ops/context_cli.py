"""The commands `edl context add|use`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from ...proto.security.options import TlsKeys
from ...runtime.errors import UsageError
from ...runtime.structured_option import Given, Key, StructuredOption
from ..config import DEFAULT_URL
from ..contexts import MeshContext
from ..store.redis_url import parse
from .options import context_file

#: Without variables: they are of other meshes.
TLS: Final = StructuredOption("--tls", TlsKeys, variables=False)


@dataclass(frozen=True, slots=True)
class JobsKeys:
    """Keys of `--jobs-on`."""

    where: Annotated[
        str,
        Key("queue (a fleet's, in Redis) or kubernetes\\[:NAMESPACE] (by the operator there)."),
    ] = "queue"
    queue: Annotated[str, Key("name of the queue, if a mesh has more than one.")] = "main"
    kubeconfig: Annotated[Path | None, Key("of the cluster. Default: kubectl's.")] = None
    kube_context: Annotated[str, Key("context of the kubeconfig. Default: its current one.")] = ""


JOBS_ON: Final = StructuredOption("--jobs-on", JobsKeys, first="where")

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
        list[Given] | None, JOBS_ON.option("Where elastic jobs run, as in kubernetes:research.")
    ] = None,
) -> None:
    """Add a context, or replace the one of this name. The first one becomes the current one.

    Nothing is contacted: 'edl doctor --context NAME' does that.
    """
    files, jobs = TLS.read(tls), JOBS_ON.read(jobs_on)
    parse(coordinator)  # raises if it is not a Redis URL
    made = MeshContext(
        coordinator=coordinator,
        tls_ca=_found(files.ca),
        tls_cert=_found(files.cert),
        tls_key=_found(files.key),
        token_file=_found(token_file),
        jobs_on=jobs.where,
        queue=jobs.queue,
        kubeconfig=_found(jobs.kubeconfig),
        kube_context=jobs.kube_context,
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
