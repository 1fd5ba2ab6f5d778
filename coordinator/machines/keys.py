"""The names of the machine board's Redis keys. All of them lie in one slot.

| key | type | holds |
|---|---|---|
| `edl:{edl:machines}:alive` | zset, expires | machine -> deadline (ms, Redis time) |
| `edl:{edl:machines}:facts` | hash, expires | machine -> `joined incarnation ttl_ms report` |
| `edl:{edl:machines}:orders` | hash, expires | machine -> its order (JSON); `=led`: somebody led |
| `edl:{edl:machines}:deployments` | hash, expires | service -> deployment (JSON) |
| `edl:{edl:machines}:leader` | string, PX | token of the manager that places |

Agents write the first two and read the third; the rest is for managers alone.
"""

from __future__ import annotations

import re
from typing import Final

from ...errors import UsageError

_PREFIX: Final = "edl:{edl:machines}:"
ALIVE: Final = f"{_PREFIX}alive"
FACTS: Final = f"{_PREFIX}facts"
ORDERS: Final = f"{_PREFIX}orders"
DEPLOYMENTS: Final = f"{_PREFIX}deployments"
LEADER: Final = f"{_PREFIX}leader"

_MACHINE: Final = re.compile(r"[A-Za-z0-9._:/@+\[\]-]{1,200}")


def check_machine(machine_id: str) -> str:
    """Return the id of a machine; raises UsageError when it cannot stand in a key."""
    if not is_machine(machine_id):
        raise UsageError(
            "the name of a machine is 1 to 200 letters, digits or '._-:/@+[]', not "
            f"{machine_id!r:.240}; give another one with --machine NAME"
        )
    return machine_id


def is_machine(machine_id: str) -> bool:
    """Whether an id that was read could have been written by us."""
    return _MACHINE.fullmatch(machine_id) is not None
