"""Fail where a public class name exists twice, or a class or module has a name that was replaced.

    python tests/check_names.py

Names are for readers who know the field but not this project: one term for each concept, and one
concept for each term. Tests, examples and generated stubs are not checked.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "scheduler", "distill_reader", "teacher", "proto", "coordinator", "student", "mesh", "deploy",
    "benchmarks", "runtime",
)  # fmt: skip

#: Names in lower case that said nothing to newcomers -> what to use instead.
REPLACED = {
    "LabelCache, CachedLabels": "shelf shelving stocked",
    "Listener, reporter, messages": "says hears telling teller words",
    "InstructionExecutor": "carrying",
    "TeacherStats, CircuitBreaker, WorkerGroup": "crew standing standings conclusion team",
    "delivery": "handing",
    "NoTeacherPolicy": "vigil",
    "Starvation, debounce": "moods hunger steadying pace",
    "InvalidateLabels, DeliverUnlabelled": "disbelieve doubt recalled forgo",
    "ParsedRequestCache": "alike understood familiar cut kind",
    "local transport, listener or connection": "near near_line door guest knock",
    "endpoint offer, session token": "invitation ticket",
    "Connection, ConnectionPool": "line lines",
    "GOAWAY, instance nonce": "farewell mark",
    "fallback, open CircuitBreaker": "detour shut",
    "SharedBuffer, BufferRef": "lent_arena led",
    "Credentials, Peer, Principal": "shown visitor claimant",
    "RequestedOutput, Request": "wanted asked",
    "counter, histogram, ...Stats": "tally spread figures",
    "Attestation, health check": "voucher vouching",
    "request handler, lease store, session, hub": "exchange desk board seat office",
    "Leadership with a fencing token, worker run": "term mandate ground",
    "roster, WatchCache": "roll mirror news",
    "desired state": "wish",
    "event, log deduplication, reconcile": "happening troubles turn turning",
    "dependencies, state directory, environment": "means corner belongings surroundings",
    "path, location or position": "place",
    "CheckpointManager, Verifier": "keeping judge",
    "RendezvousLeader, NodeInfo": "leading facts",
    "HandoffState": "legacy",
    "transport, load, paced, teacher, sharding": "lanes crowd pacing teaching uneven",
}
INSTEAD = {name: use for use, names in REPLACED.items() for name in names.split()}

#: Path, or path:class -> why the name is right there.
KEPT = {
    "coordinator/jobs/board.py": "contains JobBoard, a term of the docs",
    "coordinator/machines/board.py": "contains MachineBoard, a term of the docs",
    "mesh/kubernetes/resources.py:Kind": "the term of Kubernetes",
}


def faults(root: Path) -> list[str]:
    """Return a line for each name that is wrong in the package at `root`."""
    found: list[str] = []
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if "_pb2" in path.name:
            continue
        names = {place: path.parent.name if path.name == "__init__.py" else path.stem}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(f"{place}:{node.lineno}")
                names[f"{place}:{node.name}"] = node.name
        found += [
            f"{where}: {name} was replaced; use: {INSTEAD[name.lower()]}"
            for where, name in names.items()
            if name.lower() in INSTEAD and where not in KEPT
        ]
    return found + [
        f"{' and '.join(where)}: classes of one name, {name}; rename the less public one"
        for name, where in classes.items()
        if len(where) > 1
    ]


if __name__ == "__main__":
    lines = faults(ROOT)
    print("\n".join(lines) or "no name is used twice, and none that was replaced")
    sys.exit(bool(lines))
