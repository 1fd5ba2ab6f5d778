"""Teachers and students, according to a service manager, and machines that run `edl agent`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...coordinator.calling import client
from ...coordinator.ops import machines_view, status_view
from ...coordinator.ops.machines_view import MachinesState
from ...runtime.errors import AccessError
from .resource_kind import ResourceKind, ResourceList, facts_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...proto import coordinator_pb2 as pb


class _Members(ResourceKind):
    """Members of services. A name may occur in several services."""

    plural: Literal["teachers", "students"]

    def _status(self, name: str, service: str) -> pb.MeshStatus:
        mesh = self.mesh
        status = client.fetch_status(mesh.coordinator, service, security=mesh.security())
        known = set()
        for service_status in status.services:
            members = getattr(service_status, self.plural)
            known |= {self._id(member) for member in members}
            if name:
                matching = [member for member in members if self._id(member) == name]
                del members[:]
                members.extend(matching)
        if name and name not in known:
            raise self.not_found(name, known)
        return status

    def get(self, name: str, service: str) -> ResourceList:
        from rich.console import Group
        from rich.text import Text

        status = self._status(name, service)
        parts: list[RenderableType] = []
        for service_status in status.services:
            if getattr(service_status, self.plural):
                parts += [Text(service_status.name, "bold"), self._table(service_status)]
        return ResourceList(
            {self.plural: self._json(status)}, Group(*(parts or [Text(f"no {self.name}")]))
        )

    def describe(self, name: str) -> RenderableType:
        from rich.console import Group

        return Group(*map(facts_table, self._json(self._status(name, ""))))

    def _json(self, status: pb.MeshStatus) -> list[dict[str, Any]]:
        services = status_view.to_json(status)["services"]
        return [
            {"service": values["name"], **member}
            for values in services
            for member in values[self.plural]
        ]

    @abstractmethod
    def _id(self, member: Any) -> str: ...

    @abstractmethod
    def _table(self, service: pb.ServiceStatus) -> RenderableType: ...


class TeacherKind(_Members):
    name = "teacher"
    plural = "teachers"
    alternatives: ClassVar = {
        "logs": "its log is where it was started: the terminal or folder of 'edl up' and"
        " 'edl agent', 'journalctl', 'kubectl logs'",
        "scale": "'edl scale service NAME MIN:MAX' sets how many teachers a service has",
        "delete": "'edl drain teacher NAME' lets it finish and leave",
    }

    def drain(self, name: str, service: str) -> list[str]:
        mesh = self.mesh
        return client.drain(
            mesh.coordinator, service=service, teacher_id=name, security=mesh.security()
        )

    def _id(self, member: Any) -> str:
        return str(member.teacher_id)

    def _table(self, service: pb.ServiceStatus) -> RenderableType:
        return status_view.teacher_table(service)


class StudentKind(_Members):
    name = "student"
    plural = "students"
    alternatives: ClassVar = {
        "logs": "its log is where it was started",
        "scale": "'edl scale job NAME N' sets the nodes of an elastic job",
        "drain": "SIGTERM stops it at a safe point",
        "delete": "SIGTERM stops it at a safe point; 'edl delete job NAME' stops an elastic job",
    }

    def _id(self, member: Any) -> str:
        return str(member.report.student_id)

    def _table(self, service: pb.ServiceStatus) -> RenderableType:
        return status_view.student_table(service.students)


class MachineKind(ResourceKind):
    """Machines: hosts that lend themselves to the mesh."""

    name = "machine"
    alternatives: ClassVar = {
        "logs": "'edl agent' prints them on the machine",
        "scale": "'edl scale service NAME MIN:MAX' sets how many machines serve a service",
        "delete": "end its 'edl agent'; 'edl agent yield' gives it back for a while",
    }

    def get(self, name: str, service: str) -> ResourceList:
        from rich.text import Text

        state = self._state(name).of(service)
        return ResourceList(
            {"machines": machines_view.to_json(state)["machines"]},
            machines_view.render(replace(state, deployments=()))
            if state.machines
            else Text("no machine: 'edl agent' lends one"),
        )

    def describe(self, name: str) -> RenderableType:
        (machine,) = machines_view.to_json(self._state(name))["machines"]
        return facts_table(machine)

    def drain(self, name: str, service: str) -> list[str]:
        mesh = self.mesh
        return client.drain(mesh.coordinator, service=service, host=name, security=mesh.security())

    def _state(self, name: str) -> MachinesState:
        state = machines_view.machines_at(self.mesh.coordinator)
        if state is None:
            raise AccessError("this user may not read machines: use a URL of an operator")
        if not name:
            return state
        matching = [one for one in state.machines if one.machine_id == name]
        if not matching:
            raise self.not_found(name, (one.machine_id for one in state.machines))
        return replace(state, machines=matching)
