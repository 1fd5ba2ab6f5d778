"""The names of a job's Redis keys. All of one job lie in one slot, so that a script may touch them.

| key | type | holds |
|---|---|---|
| `edl:jobs` | zset, expires | job -> time of its last sign (ms, Redis time) |
| `edl:{job:j}:nodes` | zset, expires | node id -> deadline (ms, Redis time) |
| `edl:{job:j}:facts` | hash, expires | node id -> `joined ttl_ms JSON`; `=joined`: last number |
| `edl:{job:j}:leader` | string, PX | id of the node that leads |
| `edl:{job:j}:generation` | hash, expires | number, body (JSON), at_ms, history (JSON) |
| `edl:{job:j}:shards` | zset, expires | `epoch:start:stop` that nobody has -> its place |
| `edl:{job:j}:held` | hash, expires | `epoch:start:stop` -> its rank; `=rank` -> its last answer |
| `edl:{job:j}:filled` | hash, expires | epoch -> how many shards were laid out |
| `edl:{job:j}:reports` | hash, expires | rank -> `at_ms JSON` |
| `edl:{job:j}:events` | stream, capped, expires | the timeline: body (JSON) |
| `edl:{job:j}:outcome` | string, PX | how it ended (JSON) |

Shards, what is held of them, and reports are of the current generation: what publishes the next one
deletes them. The colon in the hash tag keeps a job apart from a service of its name.
"""

from __future__ import annotations

import re
from typing import Final

from ...errors import UsageError
from ..registry import keys as registry_keys

JOBS: Final = "edl:jobs"

#: In the order in which every script of a job gets its keys.
NAMES: Final = (
    "nodes",
    "facts",
    "leader",
    "generation",
    "shards",
    "held",
    "filled",
    "reports",
    "events",
    "outcome",
)
_JOB: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NODE: Final = re.compile(r"[A-Za-z0-9._:/@+\[\]-]{1,200}")


def check_job(job: str) -> str:
    """Return the name of a job; raises UsageError when it cannot stand in a key."""
    if not is_job(job):
        raise UsageError(
            "the name of a job is 1 to 128 letters, digits, '.', '_' or '-', not "
            f"{job!r:.160}; give another one with --job NAME"
        )
    return job


def is_job(job: str) -> bool:
    """Whether a name that was read could have been written by us."""
    return _JOB.fullmatch(job) is not None


def check_node(node_id: str) -> str:
    """Return the id of a node; raises UsageError when it cannot stand in a key."""
    if not is_node(node_id):
        raise UsageError(
            f"the id of a node is 1 to 200 letters, digits or '._-:/@+[]', not {node_id!r:.240}"
        )
    return node_id


def is_node(node_id: str) -> bool:
    """Whether an id that was read could have been written by us."""
    return _NODE.fullmatch(node_id) is not None


def event_place(event_id: str) -> tuple[int, int]:
    """The order of an entry of the timeline; "" is before all.

    Raises:
        UsageError: it is no id of an entry.
    """
    return registry_keys.event_place(event_id)


def of_job(job: str, name: str) -> str:
    """Key of one of `NAMES` of a job."""
    return f"edl:{{job:{check_job(job)}}}:{name}"


def of_any_job() -> str:
    """The pattern, of Redis, of all keys of all jobs."""
    return "edl:{job:*}:*"


def all_of_job(job: str) -> list[str]:
    """Keys of all `NAMES` of a job, in their order."""
    return [of_job(job, name) for name in NAMES]
