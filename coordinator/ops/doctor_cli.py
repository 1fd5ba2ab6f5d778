"""The command `edl doctor`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from .options import Json, Mesh, console, mesh_context, quiet_grpc


def doctor(
    json: Json = False,
    context: Mesh = None,
) -> None:
    """Check from this machine whether students and operators can use the mesh.

    Checks Redis with its clock and memory, service managers, versions, credentials, services, and
    whether their teachers can be reached from here. Exits with 1 if something is wrong.
    """
    quiet_grpc()
    import json as format_

    from .doctor import examine
    from .text_output import finding_text

    findings = []
    out = console()
    mesh = mesh_context(context)
    for finding in examine(mesh.coordinator, mesh.security):
        findings.append(finding)
        if not json:
            out.print(finding_text(finding), soft_wrap=True)
    if json:
        print(format_.dumps([asdict(finding) for finding in findings], indent=2))
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(1)
