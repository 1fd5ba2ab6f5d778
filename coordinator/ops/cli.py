"""Command lines of operators: `edl drain`, `edl events`, `edl service ...` and `edl doctor`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ...runtime.errors import UsageError
from ...runtime.standard_streams import visible
from .options import Coordinator, Json, MeshName, Service, console, mesh_context, quiet_grpc

service_app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def drain(
    teacher: Annotated[
        str,
        typer.Argument(metavar="[TEACHER]", help="Id of the teacher, as `edl status` shows it."),
    ] = "",
    host: Annotated[str, typer.Option(help="All teachers of this machine instead.")] = "",
    service: Service = "",
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Ask teachers to finish what they have and leave; no label is lost.

    They get nothing new from this moment, and their processes end by themselves within their grace
    period. Needs a token of the role admin, where tokens are asked for.
    """
    quiet_grpc()
    from ..calling.client import drain as ask

    mesh = mesh_context(context, coordinator)
    asked = ask(
        mesh.coordinator,
        service=service,
        teacher_id=teacher,
        host=host,
        security=mesh.security(),
    )
    for name in asked:
        typer.echo(visible(f"draining {name}"))


def events(
    service: Service = "",
    last: Annotated[
        int, typer.Option(min=0, help="So many of the log, the latest; 0: all that it holds.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    json: Json = False,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Show what happened in the mesh, and why: who came, was lost, drained, was given to whom."""
    quiet_grpc()
    from ..calling.client import watch
    from .text_output import event_json, event_text

    mesh = mesh_context(context, coordinator)
    out = console()
    try:
        for event in watch(
            mesh.coordinator,
            service=service,
            last=last,
            follow=follow,
            security=mesh.security(),
        ):
            if json:
                print(event_json(event), flush=True)
            else:
                out.print(event_text(event), soft_wrap=True)
    except KeyboardInterrupt:
        if not follow:  # which is ended in no other way
            raise


@service_app.callback()
def service_commands() -> None:
    """Services: sets of teachers that label alike."""


@service_app.command("list")
def list_services(
    json: Json = False,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Show each service in a line."""
    quiet_grpc()
    import json as format_

    from ..calling.client import fetch_status
    from . import service_view

    mesh = mesh_context(context, coordinator)
    found = fetch_status(mesh.coordinator, max_members=1, security=mesh.security()).services
    if json:
        print(format_.dumps([service_view.to_json(service) for service in found], indent=2))
    elif found:
        console().print(service_view.table(found))
    else:
        typer.echo("no service: start a teacher, 'edl-teacher serve --model ... --service NAME'")


@service_app.command("show")
def show_service(
    name: Annotated[str, typer.Argument(metavar="SERVICE", help="Its name.")],
    json: Json = False,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Show one service: who leads it, how it is, which contents its members are on."""
    quiet_grpc()
    import json as format_

    from ..calling.client import fetch_status
    from . import service_view

    mesh = mesh_context(context, coordinator)
    found = fetch_status(mesh.coordinator, name, max_members=1, security=mesh.security()).services
    if not found:
        raise UsageError(f"there is no service {name!r}: 'edl service list' shows all")
    if json:
        print(format_.dumps(service_view.to_json(found[0]), indent=2))
    else:
        console().print(service_view.details(found[0]))


@service_app.command("upgrade")
def upgrade_service(
    name: Annotated[str, typer.Argument(metavar="SERVICE", help="Its name.")],
    content: Annotated[
        str,
        typer.Option(
            help="The content to move to: `edl service show` names those that are served, and the "
            "first characters of one do."
        ),
    ],
    at: Annotated[
        Literal["epoch", "now"],
        typer.Option(
            help="epoch: each student when it begins its next epoch, so that every epoch is of one "
            "content; now: at once."
        ),
    ] = "epoch",
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Move a service to another model: start teachers of it under the same service first.

    A student is never labelled by both at once, and stays where it is while no teacher of the new
    content serves. `edl service show` tells how many are still to move; then the old teachers can
    be drained.
    """
    quiet_grpc()
    from ..calling.client import upgrade

    mesh = mesh_context(context, coordinator)
    typer.echo(upgrade(mesh.coordinator, name, content, at, security=mesh.security()))


def doctor(
    json: Json = False,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Check, from this machine, whether a student or an operator here would be served.

    Redis, its clock and its memory, the service managers, versions, credentials, each service and
    whether its teachers can be reached from here. Exits with 1 when something is wrong.
    """
    quiet_grpc()
    import json as format_

    from .doctor import examine
    from .text_output import finding_json, finding_text

    findings = []
    out = console()
    mesh = mesh_context(context, coordinator)
    for finding in examine(mesh.coordinator, mesh.security):
        findings.append(finding)
        if not json:
            out.print(finding_text(finding), soft_wrap=True)
    if json:
        print(format_.dumps([finding_json(finding) for finding in findings], indent=2))
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(1)
