"""Redis keys of the machine board, all in one slot.

| key | type | holds |
|---|---|---|
| `edl:{edl:machines}:alive` | zset, expires | machine -> deadline (ms, Redis time) |
| `edl:{edl:machines}:machine:<id>` | hash, expires | incarnation, report (JSON), joined |
| `edl:{edl:machines}:orders` | hash, expires | machine -> its order (JSON) |
| `edl:{edl:machines}:deployments` | hash, expires | service -> deployment (JSON) |
| `edl:{edl:machines}:leader` | hash, expires | the manager that places: holder, token, until_ms |
| `edl:{edl:machines}:facts` | stream, expires | refuses agents of older versions |

Agents write the first two and read the third; the others are only for managers.
"""

from __future__ import annotations

from typing import Final

from ..store import LeaseSet
from ..store.records import check_member

_PREFIX: Final = "edl:{edl:machines}:"
#: The lease set of machines; leases end at their deadlines.
MACHINES: Final = LeaseSet(f"{_PREFIX}alive", f"{_PREFIX}machine:")
FORMER_FACTS: Final = f"{_PREFIX}facts"
ORDERS: Final = f"{_PREFIX}orders"
DEPLOYMENTS: Final = f"{_PREFIX}deployments"
LEADER: Final = f"{_PREFIX}leader"


def check_machine(machine_id: str) -> str:
    """Return a valid id of a machine. Raises UsageError if it is invalid."""
    hint = "; give another one with --machine NAME"
    return check_member("the name of a machine", machine_id, hint)
