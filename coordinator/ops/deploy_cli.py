"""The commands `edl service deploy` and `edl service undeploy`: what machines are to serve."""

from __future__ import annotations

from typing import Annotated

import typer

from .cli import service_app as app
from .options import Coordinator, MeshName, mesh_context, quiet_grpc

__all__ = ["app"]

Name = Annotated[str, typer.Argument(metavar="SERVICE", help="Its name.")]


@app.command("deploy")
def deploy_service(
    name: Name,
    model: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where machines fetch the model, a file or a folder: https://, s3://, gs://, "
            "hdfs://, file:// and others of fsspec.",
        ),
    ],
    content_id: Annotated[
        str,
        typer.Option(
            help="Of the model, as `edl teacher fingerprint MODEL` prints it, with the "
            "preprocessing of the deployment: a machine serves nothing else."
        ),
    ],
    min_: Annotated[
        int,
        typer.Option(
            "--min",
            min=0,
            help="Teachers that the service has at least, until no student has come for the "
            "coordinator's --idle-to-zero.",
        ),
    ] = 1,
    max_: Annotated[
        int | None,
        typer.Option("--max", min=0, show_default="--min", help="Teachers that it has at most."),
    ] = None,
    priority: Annotated[
        int, typer.Option(help="The higher goes first where machines are too few.")
    ] = 0,
    price: Annotated[
        float, typer.Option(min=0, help="Of one teacher for an hour, in your currency.")
    ] = 0.0,
    cost_ceiling: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="What all its teachers together may cost an hour: autoscaling wants no more than "
            "it pays for. Default: the coordinator's.",
        ),
    ] = None,
    freeze: Annotated[
        float,
        typer.Option(min=0, help="Seconds for which their number stays after it was changed."),
    ] = 30.0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of `edl teacher serve`, such as micro-batch=8 or preprocess=imagenet; "
            "only such as cannot run code. Repeat it for each.",
        ),
    ] = None,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Say what a service is served by on machines that run `edl agent`; said again, it replaces.

    The coordinator gives each machine the teacher that a service lacks, and takes it for another
    one when more of them want it. Needs a token of the role admin, where tokens are asked for.
    """
    quiet_grpc()
    from ...proto import coordinator_pb2 as pb
    from ..calling.client import deploy
    from ..operations import asked_by

    request = pb.DeployRequest(
        service=name,
        model_url=model,
        content_id=content_id,
        options=option or (),
        min=min_,
        max=min_ if max_ is None else max_,
        priority=priority,
        price_per_hour=price,
        freeze_seconds=freeze,
        cost_ceiling_per_hour=cost_ceiling,
    )
    asked_by(request)  # what cannot be is said here, whether or not a manager answers
    mesh = mesh_context(context, coordinator)
    typer.echo(deploy(mesh.coordinator, request, security=mesh.security()))


@app.command("undeploy")
def undeploy_service(
    name: Name,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Take all machines from a service; their teachers finish what they have."""
    quiet_grpc()
    from ...proto import coordinator_pb2 as pb
    from ..calling.client import deploy

    request = pb.DeployRequest(service=name, withdraw=True)
    mesh = mesh_context(context, coordinator)
    typer.echo(deploy(mesh.coordinator, request, security=mesh.security()))
