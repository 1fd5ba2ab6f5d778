"""Redis keys of a job. All keys of one job are in one slot, so that scripts can use them together.

| key | type | holds |
|---|---|---|
| `edl:jobs` | zset, expires | job -> time of its last activity (ms, Redis time) |
| `edl:{job:j}:nodes` | zset, expires | node id -> deadline (ms, Redis time) |
| `edl:{job:j}:node:<id>` | hash, expires | facts of a node: facts (JSON), joined |
| `edl:{job:j}:leader` | hash, expires | the node that leads: holder, token, until_ms |
| `edl:{job:j}:generation` | hash, expires | number, body, at_ms, history, outcome of the job |
| `edl:{job:j}:shards` | zset, expires | free shards: `epoch:start:stop` -> sort key |
| `edl:{job:j}:held` | hash, expires | `epoch:start:stop` -> its rank; `=rank` -> its last answer |
| `edl:{job:j}:filled` | hash, expires | epoch -> number of its shards |
| `edl:{job:j}:reports` | hash, expires | rank -> its report (JSON); `rank.at_ms` -> when |
| `edl:{job:j}:events` | stream, capped, expires | the timeline: body (JSON) |

Shards, their leases and reports belong to the current generation: publishing the next one deletes
them. The colon in the hash tag separates a job from a service of the same name.
"""

from __future__ import annotations

from typing import Final

from ..store import LeaseSet, records

JOBS: Final = "edl:jobs"

#: Keys that the leading node keeps alive.
KEPT: Final = ("generation", "shards", "held", "filled", "reports", "events")


def check_job(job: str) -> str:
    """Return a valid name of a job. Raises UsageError if it is invalid."""
    return records.check_name("the name of a job", job, "; give another one with --job NAME")


def is_job(job: str) -> bool:
    """Return whether a text is a valid name of a job."""
    return records.is_name(job)


def check_node(node_id: str) -> str:
    """Return a valid id of a node. Raises UsageError if it is invalid."""
    return records.check_member("the id of a node", node_id)


def of_job(job: str, name: str) -> str:
    """Return a key of a job."""
    return f"edl:{{job:{check_job(job)}}}:{name}"


def of_any_job() -> str:
    """Return the Redis pattern of all keys of all jobs."""
    return "edl:{job:*}:*"


def nodes(job: str) -> LeaseSet:
    """Return the lease set of a job's nodes; leases end at their deadlines."""
    return LeaseSet(of_job(job, "nodes"), of_job(job, "node:"))
