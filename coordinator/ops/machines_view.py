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
from .text_output import add_row, plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STYLES: Final = {"serving": "green", "yielded": "yellow", "draining": "yellow", "failing": "red"}
_HASH: Final = 12
#: Shown troubles per deployment; those of other machines are mostly the same.
_TROUBLES: Final = 2


@dataclass(frozen=True, slots=True)
class MachinesState:
    """What the machine board holds."""

    machines: Sequence[Machine] = ()
    deployments: Sequence[Deployment] = ()

    def __bool__(self) -> bool:
        return bool(self.machines or self.deployments)

    def of(self, service: str) -> MachinesState:
        """Return what concerns a service; empty: all."""
        if not service:
            return self
        deployed = [one for one in self.deployments if one.service == service]
        its = [
            one
            for one in self.machines
            if service in (one.order.service, one.report.service)
            or any(one.report.trouble_with(deployment) for deployment in deployed)
        ]
        return MachinesState(its, deployed)


def machines_at(url: str) -> MachinesState | None:
    """Return what the board at a Redis URL holds; None: this user may ask managers alone.

    Raises:
        RedisUnavailable: Redis does not answer.
    """
    with closing(open_machines(url)) as board:
        try:
            return MachinesState(board.machines(), board.deployments())
        except AccessError:
            return None


def to_json(state: MachinesState) -> dict[str, Any]:
    """Return the JSON form that the module describes."""
    placed = _placed(state)
    return {
        "machines": [
            {
                "machine": one.machine_id,
                "lease_remaining_s": one.expires_in_s,
                "ordered": one.order.service,
                **asdict(one.report),
            }
            for one in state.machines
        ],
        "deployments": [
            {**asdict(one), "placed": placed[one.service], "troubles": _troubles(state, one)}
            for one in state.deployments
        ],
    }


def render(state: MachinesState, most: int = 0) -> RenderableType:
    """Return tables of both, with at most `most` machines; 0: all."""
    from rich.console import Group
    from rich.text import Text

    parts = [render_deployments(state)] if state.deployments else []
    if state.machines:
        # Those that cannot do what they should come first.
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
        Text(f"{one.service} on {machine}: {trouble}", style="bold red")
        for one in state.deployments
        for machine, trouble in list(_troubles(state, one).items())[:_TROUBLES]
    ]
    return Group(Text("deployments", style="bold"), _deployments(state), *troubles)


def _placed(state: MachinesState) -> Counter[str]:
    return Counter(one.order.service for one in state.machines)


def _troubles(state: MachinesState, deployment: Deployment) -> dict[str, str]:
    told = {one.machine_id: one.report.trouble_with(deployment) for one in state.machines}
    return {machine: trouble for machine, trouble in told.items() if trouble}


def _deployments(state: MachinesState) -> Table:
    table = plain_table(
        ["service", "content", "machines", "min", "max", "prio.", "model"],
        right=["min", "max", "prio."],
    )
    placed = _placed(state)
    for one in state.deployments:
        add_row(
            table,
            one.service,
            one.content_id[:_HASH],
            f"{placed[one.service]}{' (withdrawn)' if one.withdrawn else ''}",
            str(one.min),
            str(one.max),
            str(one.priority),
            one.model_url,
        )
    return table


def _machines(machines: Sequence[Machine]) -> Table:
    table = plain_table(
        ["machine", "devices", "state", "service", "others' load", "lease s", ""],
        right=["others' load", "lease s"],
    )
    for one in machines:
        told = one.report
        until = f" (for {told.until_s:.0f} s)" if told.until_s else ""
        add_row(
            table,
            one.machine_id,
            ",".join(told.devices),
            told.state,
            told.service or one.order.service,
            f"{told.load:.1f}",
            f"{one.expires_in_s:.1f}",
            f"{told.why}{until}",
            style=_STYLES.get(told.state, ""),
        )
    return table
