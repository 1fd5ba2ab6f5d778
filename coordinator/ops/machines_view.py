"""Machines and deployments as tables and as JSON.

The JSON form:

```
{"machines": [{"machine": str, "lease_remaining_s": float, "ordered": service or "",
               every field of `machines.schema.Report`}],
 "deployments": [{every field of `machines.schema.Deployment`,
                  "placed": number of machines ordered to serve it,
                  "troubles": {machine: why it could not start a teacher}}]}
```
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ...runtime.errors import AccessError
from ..machines import Deployment, Machine, open_machines
from .text_output import Columns, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STYLES: Final = {"serving": "green", "yielded": "yellow", "draining": "yellow", "failing": "red"}
#: Shown characters of a content id.
_ID_LENGTH: Final = 12
#: Maximum number of troubles shown for a deployment; other machines mostly have the same troubles.
_SHOWN_TROUBLES: Final = 2


@dataclass(frozen=True, slots=True)
class MachinesState:
    """Machines and deployments of the machine board."""

    machines: Sequence[Machine] = ()
    deployments: Sequence[Deployment] = ()

    def __bool__(self) -> bool:
        return bool(self.machines or self.deployments)

    def of(self, service: str) -> MachinesState:
        """Return the deployment of a service, and its machines; empty: all."""
        if not service:
            return self
        deployed = [deployment for deployment in self.deployments if deployment.service == service]
        machines = [
            machine
            for machine in self.machines
            if service in (machine.order.service, machine.report.service)
            or any(machine.report.trouble_with(deployment) for deployment in deployed)
        ]
        return MachinesState(machines, deployed)


def machines_at(url: str) -> MachinesState | None:
    """Return the machines and deployments in the Redis at `url`; None: the user may not read them.

    Raises:
        RedisUnavailable: Redis does not answer.
    """
    with closing(open_machines(url)) as board:
        try:
            machines, deployments = board.machines(), board.deployments()
        except AccessError:
            return None
    used = {machine.order.service for machine in machines}
    shown = [one for one in deployments if not one.withdrawn or one.service in used]
    return MachinesState(machines, shown)


def to_json(state: MachinesState) -> dict[str, Any]:
    """Return the JSON form that the module describes."""
    placed = _placed(state)
    return {
        "machines": [
            {
                "machine": machine.machine_id,
                "lease_remaining_s": machine.expires_in_s,
                "ordered": machine.order.service,
                **asdict(machine.report),
            }
            for machine in state.machines
        ],
        "deployments": [
            {
                **asdict(deployment),
                "placed": placed[deployment.service],
                "troubles": _troubles(state, deployment),
            }
            for deployment in state.deployments
        ],
    }


def render(state: MachinesState, most: int = 0) -> RenderableType:
    """Return tables of the deployments and of at most `most` machines; 0: all."""
    from rich.console import Group
    from rich.text import Text

    parts = [render_deployments(state)] if state.deployments else []
    if state.machines:
        # Failing machines come first.
        shown = sorted(
            state.machines, key=lambda one: (one.report.state != "failing", one.machine_id)
        )[: most or None]
        parts += [Text(f"machines: {len(state.machines)}", style="bold"), _machines(shown)]
    return Group(*parts)


def render_deployments(state: MachinesState) -> RenderableType:
    """Return a table of the deployments, and why machines could not start teachers."""
    from rich.console import Group
    from rich.text import Text

    troubles = [
        Text(f"{deployment.service} on {machine}: {trouble}", style="bold red")
        for deployment in state.deployments
        for machine, trouble in list(_troubles(state, deployment).items())[:_SHOWN_TROUBLES]
    ]
    return Group(Text("deployments", style="bold"), _deployments(state), *troubles)


def _placed(state: MachinesState) -> Counter[str]:
    return Counter(machine.order.service for machine in state.machines)


def _troubles(state: MachinesState, deployment: Deployment) -> dict[str, str]:
    troubles = ((m.machine_id, m.report.trouble_with(deployment)) for m in state.machines)
    return {machine: trouble for machine, trouble in troubles if trouble}


def _deployments(state: MachinesState) -> Table:
    placed = _placed(state)
    columns: Columns[Deployment] = {
        "service": lambda one: one.service,
        "content": lambda one: one.content_id[:_ID_LENGTH],
        "machines": lambda one: f"{placed[one.service]}{' (withdrawn)' if one.withdrawn else ''}",
        "min": lambda one: str(one.min),
        "max": lambda one: str(one.max),
        "prio.": lambda one: str(one.priority),
        "model": lambda one: one.model_url,
    }
    return table_of(state.deployments, columns, numbers=["min", "max", "prio."])


_MACHINE: Final[Columns[Machine]] = {
    "machine": lambda one: one.machine_id,
    "devices": lambda one: ",".join(one.report.devices),
    "state": lambda one: one.report.state,
    "service": lambda one: one.report.service or one.order.service,
    "others' load": lambda one: f"{one.report.load:.1f}",
    "lease s": lambda one: f"{one.expires_in_s:.1f}",
    "": lambda one: one.report.why + _until(one.report.until_s),
}


def _until(seconds: float) -> str:
    return f" (for {seconds:.0f} s)" if seconds else ""


def _machines(machines: Sequence[Machine]) -> Table:
    numbers = ["others' load", "lease s"]
    return table_of(
        machines, _MACHINE, numbers, style=lambda one: _STYLES.get(one.report.state, "")
    )
