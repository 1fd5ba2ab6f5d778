"""The names of a job's Redis keys. All of one job lie in one slot, so that a script may touch them.

| key | type | holds |
|---|---|---|
| `edl:jobs` | zset, expires | job -> time of its last sign (ms, Redis time) |
| `edl:{job:j}:nodes` | zset, expires | node id -> deadline (ms, Redis time) |
| `edl:{job:j}:node:<id>` | hash, expires | facts of a node: facts (JSON), joined |
| `edl:{job:j}:leader` | hash, expires | the node that leads: holder, token, until_ms |
| `edl:{job:j}:generation` | hash, expires | number, body, at_ms, history, outcome of the job |
| `edl:{job:j}:shards` | zset, expires | `epoch:start:stop` that nobody has -> its place |
| `edl:{job:j}:held` | hash, expires | `epoch:start:stop` -> its rank; `=rank` -> its last answer |
| `edl:{job:j}:filled` | hash, expires | epoch -> how many shards were laid out |
| `edl:{job:j}:reports` | hash, expires | rank -> its report (JSON); `rank.at_ms` -> when |
| `edl:{job:j}:events` | stream, capped, expires | the timeline: body (JSON) |

Shards, what is held of them, and reports are of the current generation: what publishes the next one
deletes them. The colon in the hash tag keeps a job apart from a service of its name.
"""

from __future__ import annotations

from typing import Final

from ..store import LeaseSet, records

JOBS: Final = "edl:jobs"

#: What the leading node keeps alive.
KEPT: Final = ("generation", "shards", "held", "filled", "reports", "events")


def check_job(job: str) -> str:
    """Return the name of a job; raises UsageError when it cannot stand in a key."""
    return records.check_name("the name of a job", job, "; give another one with --job NAME")


def is_job(job: str) -> bool:
    """Whether a name that was read could have been written by us."""
    return records.is_name(job)


def check_node(node_id: str) -> str:
    """Return the id of a node; raises UsageError when it cannot stand in a key."""
    return records.check_member("the id of a node", node_id)


def of_job(job: str, name: str) -> str:
    """A key of a job."""
    return f"edl:{{job:{check_job(job)}}}:{name}"


def of_any_job() -> str:
    """The pattern, of Redis, of all keys of all jobs."""
    return "edl:{job:*}:*"


def nodes(job: str) -> LeaseSet:
    """The nodes of a job; they are dead at their deadlines."""
    return LeaseSet(of_job(job, "nodes"), of_job(job, "node:"))
