"""Services, and their deployments on machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from ...coordinator.calling import client
from ...coordinator.ops import machines_view, status_view
from ...proto import coordinator_pb2 as pb
from ...runtime.errors import UsageError
from .resource_kind import ResourceKind, ResourceList

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...coordinator.ops.machines_view import MachinesState


class ServiceKind(ResourceKind):
    """Services: sets of interchangeable teachers."""

    name = "service"
    alternatives: ClassVar = {
        "logs": "'edl events --service NAME' shows what happened in it",
        "drain": "'edl drain teacher NAME' is for one teacher, 'edl drain machine NAME' for those"
        " of a host; 'edl delete service NAME' takes all its machines away",
    }

    def get(self, name: str, service: str) -> ResourceList:
        from rich.console import Group
        from rich.text import Text

        name = name or service
        services, machines = self._services(name), self._machines(name)
        deployed = [] if machines is None else machines.deployments
        if name and not services and not deployed:
            raise self.not_found(name, (one.name for one in self._services("")))
        parts = [
            status_view.service_table(services)
            if services
            else Text("no service: start a teacher, 'edl-teacher serve --model ... --service NAME'")
        ]
        if machines is not None and deployed:
            parts.append(machines_view.render_deployments(machines))
        body = {
            "services": [status_view.summary_json(one) for one in services],
            "deployments": None
            if machines is None
            else machines_view.to_json(machines)["deployments"],
        }
        return ResourceList(body, Group(*parts))

    def describe(self, name: str) -> RenderableType:
        from rich.console import Group

        services, machines = self._services(name), self._machines(name)
        if not services:
            return self.get(name, "").table
        deployed = machines is not None and machines.deployments
        more = [machines_view.render(machines)] if machines is not None and deployed else []
        return Group(status_view.service_details(services[0]), *more)

    def scale(self, name: str, size: str) -> str:
        bounds = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", size)
        if bounds is None:
            raise UsageError(f"a service has N or MIN:MAX teachers, not {size!r:.40}")
        least = int(bounds[1])
        most = int(bounds[2] or least)
        return self.deploy(pb.DeployRequest(service=name, scale=True, min=least, max=most))

    def delete(self, name: str, wait_s: float) -> str:
        if wait_s:
            raise UsageError("--wait is for jobs; 'edl get services' shows when machines are free")
        return self.deploy(pb.DeployRequest(service=name, withdraw=True))

    def deploy(self, request: pb.DeployRequest) -> str:
        """Request a deployment from the coordinator; return a line about what happens now."""
        return client.deploy(self.mesh.coordinator, request, security=self.mesh.security())

    def _services(self, name: str) -> list[pb.ServiceStatus]:
        mesh = self.mesh
        status = client.fetch_status(
            mesh.coordinator, name, max_members=1, security=mesh.security()
        )
        return list(status.services)

    def _machines(self, name: str) -> MachinesState | None:
        machines = machines_view.machines_at(self.mesh.coordinator)
        return None if machines is None else machines.of(name)
