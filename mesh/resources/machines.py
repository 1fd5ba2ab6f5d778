"""Machines that run `edl agent`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ...coordinator.calling import client
from ...coordinator.ops import machines_view
from ...coordinator.ops.machines_view import MachinesState
from ...runtime.errors import AccessError
from .resource_kind import ResourceKind, ResourceList, facts_table

if TYPE_CHECKING:
    from rich.console import RenderableType


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
        (found,) = machines_view.to_json(self._state(name))["machines"]
        return facts_table(found)

    def drain(self, name: str, service: str) -> list[str]:
        mesh = self.mesh
        return client.drain(mesh.coordinator, service=service, host=name, security=mesh.security())

    def _state(self, name: str) -> MachinesState:
        state = machines_view.machines_at(self.mesh.coordinator)
        if state is None:
            raise AccessError("this user may not read machines: use a URL of an operator")
        if not name:
            return state
        kept = [one for one in state.machines if one.machine_id == name]
        if not kept:
            raise self.not_found(name, (one.machine_id for one in state.machines))
        return replace(state, machines=kept)
